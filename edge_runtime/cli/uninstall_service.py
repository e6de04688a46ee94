"""``edge-runtime uninstall-service``: takes away what ``install-service`` made."""

from __future__ import annotations

from pathlib import Path

import click

from ..service.machine import Machine
from ..service.steps import uninstall
from .install_service import allow_changes, carry_out, tree_options


@click.command()
@tree_options
def uninstall_service(root: Path, dry_run: bool) -> None:
    """Stop the service and remove the files that `edge-runtime install-service` wrote, and nothing else.

    What was edited since stays, and is named; so do the user, the program and the bundle.
    """
    machine, live = Machine(root), root.samefile("/")
    record = machine.record()
    if record is None:
        click.echo("nothing to remove: no service was installed from here")
        return
    allow_changes(live=live, dry_run=dry_run)
    carry_out(machine, uninstall(machine.read, record), live=live, dry_run=dry_run)
