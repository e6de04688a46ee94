#!/usr/bin/env bash
# Streams an answer of the daemon to stdout, with curl and bash alone.
#
#     export EDGE_RUNTIME_SOCKET=/run/edge-runtime/api.sock
#     examples/complete.sh "The licence says" 32        # the prompt, and the most tokens of the answer
#
# What it shows: the OpenAI protocol over a Unix socket, and how to read server-sent events line by line. The daemon writes
# one event a line, and in its JSON escapes what JSON must (\n, \", \\, \u001f) and nothing else.
set -euo pipefail

(($# >= 1)) && [[ $1 ]] || { echo "error: usage: complete.sh PROMPT [MAX_TOKENS]" >&2; exit 2; }
prompt=$1 most=${2:-64}
socket=${EDGE_RUNTIME_SOCKET:-/run/edge-runtime/api.sock}
[[ -S $socket ]] || { echo "error: no daemon at $socket" >&2; exit 2; }
[[ $most =~ ^[0-9]+$ ]] || { echo "error: MAX_TOKENS is a number, not '$most'" >&2; exit 2; }

# A string of JSON: its backslashes, quotes and control characters escaped.
escaped=${prompt//\\/\\\\} escaped=${escaped//\"/\\\"}
for code in {1..31} 127; do
  printf -v hex '%02x' "$code"
  printf -v character "\\x$hex"
  escaped=${escaped//"$character"/\\u00$hex}
done
body="{\"prompt\": \"$escaped\", \"max_tokens\": $most, \"temperature\": 0, \"stream\": true,
       \"stream_options\": {\"include_usage\": true}}"

refused() {  # its message alone, where the daemon says one
  [[ $1 =~ \"message\":\"(([^\"\\]|\\.)*)\" ]] && echo "error: ${BASH_REMATCH[1]}" >&2 || echo "error: $1" >&2
  exit 1
}

ended=
# Closed on return, so that Ctrl-C and `| head` end curl, and with it the answer.
while IFS= read -r line; do
  case $line in
    "data: [DONE]") ended=yes ;;
    'data: {"error":'*) refused "${line#data: }" ;;
    "data: "*)
      if [[ $line =~ \"text\":\"(([^\"\\]|\\.)*)\" ]]; then
        printf '%b' "${BASH_REMATCH[1]//\\\"/\"}"  # %b knows all of these but the quote
      elif [[ $line =~ \"completion_tokens\":([0-9]+) ]]; then
        printf '\n[%s tokens]\n' "${BASH_REMATCH[1]}" >&2
      fi ;;
    "") ;;
    *) refused "$line" ;;  # no stream, but a refusal
  esac
done < <(curl --silent --show-error --no-buffer --unix-socket "$socket" http://localhost/v1/completions \
           --header 'content-type: application/json' --data-binary @- <<< "$body" 2>&1; echo)
[[ $ended ]] || { echo "error: the answer broke off" >&2; exit 1; }
