"""``edge-runtime``: the device's command line. Knows which commands there are; each has a file of its own."""

from __future__ import annotations

import importlib
from typing import Any

import click

from .. import __version__
from ..console import OneLineErrors
from .interrupt import ends_at_once

_COMMANDS = {
    "generate": "Continue a prompt, streaming.",
    "chat": "Talk with the model, by the daemon or by itself.",
    "serve": "Serve a bundle to local programs: the daemon.",
    "complete": "Continue a prompt by the daemon, streaming.",
    "status": "What the daemon does now.",
    "top": "The daemon, live: speed, acceptance, queue, slots, memory.",
    "telemetry": "What the board says of itself: power, temperatures, clocks, memory.",
    "plan": "What a bundle needs in memory, before anything is loaded.",
    "build": "Build the TensorRT engines of a bundle, on the board that runs them.",
    "doctor": "Whether this machine is set up for it, and what to mend.",
    "install-service": "Make the daemon a service of systemd.",
    "uninstall-service": "Remove what install-service made.",
    "simulate": "The governor on a simulated board, or on many random ones, faster than real time.",
    "demo": "What make demo shows: a daemon, a text, plain against speculative decoding.",
    "bench": "Measure whole answers, plain against drafted, or beside other programs.",
    "compare": "Compare every drafter and policy with plain decoding, by kind of text.",
    "load": "Put a running daemon under load and count what is lost.",
}


class _LazyCommands(OneLineErrors):
    """Loads a command's module when it is asked for: ``--help`` must not wait for onnxruntime."""

    def list_commands(self, context: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, context: click.Context, name: str) -> click.Command | None:
        if name not in _COMMANDS:
            return None
        with ends_at_once():
            module = name.replace("-", "_")
            command: Any = getattr(importlib.import_module(f".{module}", __name__), module)
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(_COMMANDS.items()))


@click.group(cls=_LazyCommands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="edge-runtime")
def main() -> None:
    """Gemma on a small board, within its limits."""
