"""``edge-runtime top``: the daemon's status, live. Knows the terminal; ``view`` knows the picture."""

from __future__ import annotations

import os
import select
import sys
import termios
import time
import tty
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import click
from rich.console import Group
from rich.live import Live
from rich.text import Text

from ..client import Client, EdgeRuntimeError
from ..console import plain_console
from ..parameters import Finite, refuse_useless
from ..status import Status
from .options import socket_option
from .view import lines

_KEYS = Text("q leaves", "dim")


@click.command()
@socket_option
@click.option("--once", is_flag=True, help="Print one frame and leave, as it does where stdout is no terminal.")
@click.option("--interval", type=Finite(0.1, 60.0, "seconds"), default=1.0, metavar="S", show_default=True,
              help="Seconds between frames.")  # fmt: skip
@click.pass_context
def top(said: click.Context, /, socket: Path | None, once: bool, interval: float) -> None:
    """Watch the daemon: speed, acceptance, queue, slots, memory, temperature. q or Ctrl-C leaves."""
    if once:
        refuse_useless(said, "--once prints one frame", ("interval",))
    console = plain_console()
    with Client(socket, patience_s=0.0, timeout_s=10.0) as client:
        told = client.status()
        if once or not console.is_terminal:
            for line in lines(told, console.width):
                console.print(line, soft_wrap=True)
            return
        with _keys() as pressed, Live(console=console, screen=True, auto_refresh=False) as live:
            try:
                _watch(client, told, live, lambda: pressed(interval))
            except KeyboardInterrupt:
                return


def _watch(client: Client, told: Status, live: Live, pressed: Callable[[], str]) -> None:
    """Until q. A daemon that goes away may come back: what it said last stays."""
    notice = ""
    while True:
        size = live.console.size
        frame = lines(told, size.width, size.height - 1, notice)
        live.update(Group(*frame, _KEYS), refresh=True)
        if pressed() in ("q", "Q", "\x1b", "\x03", "\x04"):
            return
        try:
            told, notice = client.status(), ""
        except EdgeRuntimeError as problem:
            notice = str(problem)


@contextmanager
def _keys() -> Iterator[Callable[[float], str]]:
    """``pressed(seconds)``: the first key within that time, or an empty string after it."""
    if not sys.stdin.isatty():

        def wait(seconds: float) -> str:
            time.sleep(seconds)
            return ""

        yield wait
        return
    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)

    def pressed(seconds: float) -> str:
        ready, _, _ = select.select([descriptor], [], [], seconds)
        # An empty read is the end of the terminal: as good as a q.
        return (os.read(descriptor, 1).decode("latin-1") or "q") if ready else ""

    try:
        tty.setcbreak(descriptor)
        yield pressed
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)
