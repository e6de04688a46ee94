"""``edge-runtime serve``: the daemon. Knows where its configuration comes from."""

from __future__ import annotations

from pathlib import Path

import click

from ..config import Overrides, read_config
from ..parameters import Place
from .interrupt import ends_at_once


@click.command()
@click.option("--config", required=True, metavar="FILE", type=Place(),
              help="Configuration; configs/ has some to start from.")  # fmt: skip
@click.option("--bundle", metavar="DIR", type=Place(), help="Instead of the file's bundle.")
@click.option("--socket", metavar="PATH", type=Place(), help="Instead of the file's server.socket.")
def serve(config: Path, bundle: Path | None, socket: Path | None) -> int:
    """Serve a bundle to local programs, over HTTP on a Unix socket.

    SIGHUP reads the configuration again, SIGTERM ends when running answers are done.
    """
    overrides = Overrides(bundle, socket)
    with ends_at_once():
        from ..resident import share_arena

        share_arena()
        from ..server.daemon import run_daemon
    return run_daemon(lambda: read_config(config, overrides))
