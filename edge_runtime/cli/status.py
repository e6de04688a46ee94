"""``edge-runtime status``: what the daemon says of itself, once."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import click

from ..client import Client
from ..console import plain_console
from ..schema import plain
from .options import socket_option


@click.command()
@socket_option
@click.option("--json", "as_json", is_flag=True, help="All of it, as a JSON object.")
def status(socket: Path | None, as_json: bool) -> None:
    """Show what the daemon does now."""
    with Client(socket, patience_s=0.0, timeout_s=10.0) as client:
        told = client.status()
    if as_json:
        click.echo(json.dumps(plain(told), indent=2))
        return
    from .view import lines

    console = plain_console(shutil.get_terminal_size().columns)
    for line in lines(told, console.width):
        # As one line, however long: a log without the end of a reason is a log without the cause.
        console.print(line, soft_wrap=True)
