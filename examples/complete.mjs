// Streams an answer of the daemon to stdout, with Node alone: no package is needed.
//
//     export EDGE_RUNTIME_SOCKET=/run/edge-runtime/api.sock
//     node examples/complete.mjs "The licence says" 32      # the prompt, and the most tokens of the answer
//
// What it shows: the OpenAI protocol over a Unix socket (`socketPath`), and server-sent events that arrive in pieces.
// A reader that leaves closes the connection, and with it the daemon ends the answer.
import http from "node:http";

const [prompt, most = "64"] = process.argv.slice(2);
if (!prompt || !/^[0-9]+$/.test(most)) fail("usage: complete.mjs PROMPT [MAX_TOKENS]", 2);

const request = http.request({
  socketPath: process.env.EDGE_RUNTIME_SOCKET ?? "/run/edge-runtime/api.sock",
  path: "/v1/completions",
  method: "POST",
  headers: { "content-type": "application/json" },
});
request.on("response", (response) => read(response).catch((problem) => fail(problem.message, 1)));
request.on("error", (problem) => fail(`no answer from the daemon: ${problem.message}`, 2));
request.end(
  JSON.stringify({
    prompt,
    max_tokens: Number(most),
    temperature: 0,
    stream: true,
    stream_options: { include_usage: true },
  }),
);
process.stdout.on("error", () => process.exit(141)); // a reader that left

async function read(response) {
  response.setEncoding("utf8"); // a character may be cut in two between pieces
  if (response.statusCode !== 200) {
    let body = "";
    for await (const piece of response) body += piece;
    throw new Error(JSON.parse(body).error.message);
  }
  for await (const event of events(response)) {
    if (event.error) throw new Error(event.error.message);
    for (const choice of event.choices) process.stdout.write(choice.text);
    if (event.usage) process.stderr.write(`\n[${event.usage.completion_tokens} tokens]\n`);
  }
}

// The JSON of each event, up to [DONE].
async function* events(response) {
  let held = "";
  for await (const piece of response) {
    const whole = (held + piece).split("\n\n");
    held = whole.pop();
    for (const event of whole) {
      const data = event.replace(/^data: /, "");
      if (data === "[DONE]") return;
      yield JSON.parse(data);
    }
  }
  throw new Error("the answer broke off");
}

function fail(message, code) {
  process.stderr.write(`error: ${message}\n`);
  process.exit(code);
}
