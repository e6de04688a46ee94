"""A real uvicorn on a real Unix socket in a thread, over fakes: what the tests of the server talk to.

``Puppet`` stands where the scheduler does and sends what a test tells it to; ``tiny_model`` has a tokenizer of 512
pieces, one character each.
"""

from __future__ import annotations

import dataclasses
import json
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import uvicorn
from tiny_bundle import tiny_tokenizer

from edge_runtime.config import Config, ServerConfig
from edge_runtime.decoder import Decoder
from edge_runtime.drafters.length import FixedLength
from edge_runtime.drafters.prompt_lookup import PromptLookup
from edge_runtime.errors import Cancelled, EdgeError
from edge_runtime.generation import GenerationResult, Piece
from edge_runtime.scheduler.request import Event, Failed, Finished, Request, Sink, Started, Ticket
from edge_runtime.scheduler.served import Served
from edge_runtime.scheduler.snapshot import Snapshot
from edge_runtime.server.app import create_app
from edge_runtime.server.connection import uvicorn_config
from edge_runtime.server.service import Model, Service, Standing, Turns
from edge_runtime.status import RequestStatus, SlotStatus, SpeculationStatus, SpeedStatus
from edge_runtime.testing import FakeEngine, FakeModel
from edge_runtime.text.chat import ChatTemplate
from edge_runtime.text.llguidance_grammar import GrammarCompiler
from edge_runtime.text.tokenizer import Tokenizer

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
WAIT_S = 60.0
"""For what should be there at once, on a loaded machine."""
EOS, END_OF_TURN = 1, 6
VOCAB = 512
TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}<start_of_turn>"
    "{{ 'model' if message['role'] == 'assistant' else 'user' }}\n{{ message['content'] | trim }}<end_of_turn>\n"
    "{% endfor %}{% if add_generation_prompt %}<start_of_turn>model\n{% endif %}"
)


def tiny_model(place: Path, *, slots: int = 4, capacity: int = 512, name: str = "tiny") -> Model:
    file = place / "tokenizer.model"
    file.write_bytes(tiny_tokenizer())
    tokenizer = Tokenizer(file)
    fake = FakeModel(vocab_size=VOCAB, order=2)
    engine = FakeEngine(fake, capacity=capacity, slots=slots, max_rows=64, candidates=32)
    decoder = Decoder(engine, PromptLookup(max_k=4), FixedLength(2), max_head_rows=5)
    served = Served(name, decoder, tokenizer.piece_bytes, (EOS, END_OF_TURN), engine.close)
    return Model(
        served=served,
        tokenizer=tokenizer,
        template=ChatTemplate(TEMPLATE),
        grammars=GrammarCompiler(tokenizer, served.eos_ids, VOCAB),
        family="fake",
        directory=place,
        bundle_bytes=1,
        context=capacity,
        vocab_size=VOCAB,
        drafter="lookup",
        load_s=0.0,
        created_s=1_700_000_000,
    )


@dataclass(eq=False)
class Puppet:
    """Implements ``service.Turns``. Nothing happens but what a test does with ``asked``."""

    asked: list[tuple[Request, Sink]] = field(default_factory=list)
    cancelled: dict[int, str] = field(default_factory=dict)
    """Ticket -> reason."""
    refusal: EdgeError | None = None
    """Raised by the next ``submit``."""
    answer: Callable[[Request, Sink], None] | None = None
    """Called on submission, from another thread."""

    def __post_init__(self) -> None:
        self._changed = threading.Condition()

    def submit(self, served: Served, asked: Sequence[tuple[Request, Sink]]) -> list[Ticket]:
        if self.refusal is not None:
            raise self.refusal
        with self._changed:
            first = len(self.asked)
            self.asked += asked
            self._changed.notify_all()
        if self.answer is not None:
            for request, sink in asked:
                threading.Thread(target=self.answer, args=(request, sink), daemon=True).start()
        return [Ticket(first + index) for index in range(len(asked))]

    def cancel(self, ticket: Ticket, reason: str = "cancelled") -> None:
        with self._changed:
            if ticket.number in self.cancelled:
                return
            self.cancelled[ticket.number] = reason
            self._changed.notify_all()
        self.asked[ticket.number][1](Failed(Cancelled(reason)))

    def wait(self, count: int) -> None:
        """Until so many requests came in."""
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.asked) >= count, WAIT_S), "no request came"

    def wait_cancelled(self, count: int) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.cancelled) >= count, WAIT_S), "nothing was cancelled"

    def snapshot(self) -> Snapshot:
        return Snapshot(
            model="tiny",
            refusal="",
            requests=RequestStatus(1, 2, 64, 10, 5, 1, 1, 1),
            running=(),
            slots=(SlotStatus(0, True, 10, None), SlotStatus(1, False, 7, 3.0)),
            speculation=SpeculationStatus(True, "pays", 2.0, 5, 10, 7, 0.7, 2.4, (0.8, 0.6)),
            speed=SpeedStatus(0.0, None, None, None, None, 20, 30, 10),
            steps=9,
            tried_by_position=(5, 5),
            accepted_by_position=(4, 3),
            beat_s=0.0,
            idle=False,
        )


def result(text: str = "", reason: str | None = "stop", **changes: Any) -> GenerationResult:
    zero: dict[str, Any] = {}
    for one in dataclasses.fields(GenerationResult):
        if one.default is not dataclasses.MISSING:
            continue
        kind = str(one.type)
        zero[one.name] = () if kind.startswith("tuple") else "" if kind == "str" else 0
    return GenerationResult(**{**zero, "text": text, "finish_reason": reason, **changes})


def say(sink: Callable[[Event], None], text: str, *, reason: str | None = "stop", cached: int = 0) -> None:
    """A whole answer: one piece a character, as many tokens."""
    sink(Started(0.001, 5, cached))
    for character in text:
        sink(piece(character))
    sink(piece("", tokens=(END_OF_TURN,), reason=reason))
    sink(Finished(result(text, reason)))


def piece(text: str, *, tokens: tuple[int, ...] | None = None, reason: str | None = None, **more: Any) -> Piece:
    made = (300,) * len(text) if tokens is None else tokens
    return Piece(text=text, tokens=made, logprobs=(-0.5,) * len(made), finish_reason=reason, **more)  # type: ignore[arg-type]


@dataclass(eq=False)
class Running:
    """A server, and how to reach it."""

    path: str
    service: Service

    def connect(self) -> socket.socket:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connection.settimeout(WAIT_S)
        connection.connect(self.path)
        return connection

    def ask(self, method: str, path: str, body: Any = None, **headers: str) -> tuple[int, dict[str, str], Any]:
        """(status, headers, JSON or text)."""
        data = b"" if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
        with self.connect() as connection:
            connection.sendall(request(method, path, data, connection="close", **headers))
            return parsed(read_all(connection))


def request(method: str, path: str, body: bytes = b"", **headers: str) -> bytes:
    lines = [f"{method} {path} HTTP/1.1"]
    given = {"host": "localhost", **{name.replace("_", "-"): value for name, value in headers.items()}}
    if body:
        given = {"content-type": "application/json", "content-length": str(len(body)), **given}
    lines += [f"{name}: {value}" for name, value in given.items()]
    return "\r\n".join([*lines, "", ""]).encode() + body


def post(path: str, body: Any, **headers: str) -> bytes:
    return request("POST", path, json.dumps(body).encode(), **headers)


def chat(text: str = "hi", **fields: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}], **fields}


def read_all(connection: socket.socket) -> bytes:
    data = b""
    while part := connection.recv(65536):
        data += part
    return data


def read_until(connection: socket.socket, end: bytes) -> bytes:
    data = b""
    while end not in data:
        part = connection.recv(65536)
        assert part, f"closed after {data!r}"
        data += part
    return data


def parsed(response: bytes) -> tuple[int, dict[str, str], Any]:
    head, _, body = response.partition(b"\r\n\r\n")
    first, *lines = head.decode().split("\r\n")
    headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
    if headers.get("transfer-encoding") == "chunked":
        body = unchunked(body)
    is_json = headers.get("content-type", "").startswith("application/json")
    return int(first.split()[1]), headers, json.loads(body) if is_json else body.decode()


def unchunked(body: bytes) -> bytes:
    whole = b""
    while body:
        size, _, rest = body.partition(b"\r\n")
        count = int(size, 16)
        whole, body = whole + rest[:count], rest[count + 2 :]
        if count == 0:
            break
    return whole


def events(body: str) -> list[Any]:
    """Of a stream: the JSON of each event, ``[DONE]`` as a string."""
    assert body.endswith("\n\n")
    lines = body.removesuffix("\n\n").split("\n\n")
    assert all(line.startswith("data: ") and "\n" not in line for line in lines)
    return [line[6:] if line == "data: [DONE]" else json.loads(line[6:]) for line in lines]


@contextmanager
def running(
    model: Model, turns: Turns, place: Path, server: ServerConfig | None = None, **settings: Any
) -> Iterator[Running]:
    """``settings`` of uvicorn."""
    path = str(place / "api.sock")
    config = Config(bundle=str(place), server=server or ServerConfig(socket=path))
    service = Service(config, Standing("ready", "", model, turns))
    with listening(service, path, **settings) as running:
        yield running


@contextmanager
def listening(service: Service, path: str, tcp: socket.socket | None = None, **settings: Any) -> Iterator[Running]:
    """``tcp``: a bound socket to listen on as well."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(path)
    listeners = [listener] if tcp is None else [listener, tcp]
    for one in listeners:
        one.listen(1024)
    settings = {"timeout_graceful_shutdown": 1, **settings}
    server = uvicorn.Server(uvicorn_config(create_app(service), service.config.server, **settings))
    thread = threading.Thread(target=server.run, args=(listeners,))
    thread.start()
    try:
        # Who connects before the server runs waits in the backlog.
        yield Running(path, service)
    finally:
        server.should_exit = True
        thread.join(WAIT_S)
        assert not thread.is_alive()


def ask(run: Running, path: str, **fields: Any) -> Any:
    """The JSON of an answer, or the events of a stream."""
    body = {"messages": chat()["messages"], **fields} if path == CHAT else {"prompt": "x", **fields}
    status, headers, answer = run.ask("POST", path, body)
    assert status == 200, answer
    if not fields.get("stream"):
        return answer
    assert headers["content-type"] == "text/event-stream; charset=utf-8"
    return events(answer)


def refused(run: Running, path: str, status: int, **fields: Any) -> dict[str, Any]:
    body = {"messages": chat()["messages"], **fields} if path == CHAT else {"prompt": "x", **fields}
    found, _, answer = run.ask("POST", path, body)
    assert found == status, answer
    error: dict[str, Any] = answer["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert "\n" not in error["message"]
    return error
