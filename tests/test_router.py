"""examples/router/litellm.yaml with the real LiteLLM proxy, daemons over fake engines, and what happens when they stop.

LiteLLM is heavy and pins much, so it is in no other extra than ``router``: without it there is nothing to run.
"""

from __future__ import annotations

import os
import secrets
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from server_runs import Puppet, listening, say, tiny_model

from edge_runtime.config import Config, ServerConfig
from edge_runtime.errors import QueueFull
from edge_runtime.server.service import Service, Standing

EXAMPLE = Path(__file__).parent.parent / "examples/router/litellm.yaml"
START_S = 600.0
KEY = f"sk-{secrets.token_hex(16)}"
VARIABLES = ("EDGE_BOARD_1", "EDGE_BOARD_2", "LARGER")
SAID = {"model": "edge", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 32}


def test_the_file_names_what_it_needs() -> None:
    """Without the proxy, too."""
    config = yaml.safe_load(EXAMPLE.read_text(encoding="utf-8"))
    bases = [one["litellm_params"]["api_base"] for one in config["model_list"]]
    assert bases == [f"os.environ/{name}" for name in VARIABLES]
    assert config["router_settings"]["fallbacks"] == [{"edge": ["larger"]}]
    assert all(name in EXAMPLE.read_text(encoding="utf-8").split("model_list:")[0] for name in VARIABLES)


class Daemon:
    """One that says its name, on TCP as well as on its socket."""

    def __init__(self, name: str, place: Path) -> None:
        place.mkdir()
        self.puppet = Puppet()
        self.puppet.answer = lambda request, sink: say(sink, name)
        self._place, self._stack = place, ExitStack()
        # The name that the file asks for.
        self._model = tiny_model(place, name="gemma-3-270m")
        tcp = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{tcp.getsockname()[1]}/v1"
        path = str(place / "api.sock")
        service = Service(
            Config(bundle=str(place), server=ServerConfig(socket=path)), Standing("ready", "", self._model, self.puppet)
        )
        self._stack.enter_context(listening(service, path, tcp))

    def stop(self) -> None:
        self._stack.close()


@contextmanager
def proxy(urls: list[str], log: Path) -> Iterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    told = dict(zip(VARIABLES, urls, strict=True))
    # And it asks no one on the network for prices.
    environment = {**os.environ, **told, "LITELLM_MASTER_KEY": KEY, "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
    program = Path(sys.executable).with_name("litellm")
    command = [program, "--config", EXAMPLE, "--host", "127.0.0.1", "--port", str(port)]
    with log.open("wb") as written:
        process = subprocess.Popen(command, env=environment, stdout=written, stderr=written, stdin=subprocess.DEVNULL)
    try:
        end_s = time.monotonic() + START_S
        while True:
            assert process.poll() is None and time.monotonic() < end_s, log.read_text(encoding="utf-8")[-3000:]
            try:
                if httpx.get(f"http://127.0.0.1:{port}/health/liveliness", timeout=30.0).is_success:
                    break
            except httpx.TransportError:
                time.sleep(0.2)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait()


def ask(url: str, **more: Any) -> httpx.Response:
    key = {"authorization": f"Bearer {KEY}"}
    answer = httpx.post(f"{url}/v1/chat/completions", json={**SAID, **more}, headers=key, timeout=START_S)
    assert answer.is_success, answer.text
    return answer


def who(url: str, **more: Any) -> str:
    return str(ask(url, **more).json()["choices"][0]["message"]["content"])


@pytest.mark.skipif(find_spec("litellm") is None, reason="the extra `router` is not installed: no proxy to run")
def test_a_board_that_is_full_or_gone_costs_a_client_nothing(tmp_path: Path) -> None:
    one, two, larger = (Daemon(name, tmp_path / name) for name in ("one", "two", "larger"))
    try:
        with proxy([one.url, two.url, larger.url], tmp_path / "proxy.log") as url:
            assert {who(url) for _ in range(3)} <= {"one", "two"}
            # A daemon's own fields go through.
            who(url, extra_body={"priority": 2, "timeout_ms": 60_000})
            assert {r.priority for d in (one, two) for r, _ in d.puppet.asked} == {0, 2}
            one.puppet.refusal = QueueFull("the queue is full")
            assert {who(url) for _ in range(3)} == {"two"}
            two.stop()
            assert {who(url) for _ in range(3)} == {"larger"}
            stream = ask(url, stream=True)
            assert stream.text.rstrip().endswith("data: [DONE]") and '"content":"l' in stream.text
            one.puppet.refusal = None
            time.sleep(11)  # cooldown_time
            assert "one" in {who(url) for _ in range(3)}
            print({d.url: len(d.puppet.asked) for d in (one, two, larger)})
    finally:
        for daemon in (one, two, larger):
            daemon.stop()
