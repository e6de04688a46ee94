"""How both command lines fail: one clear line on stderr and the exit code of the error. Knows no command."""

from __future__ import annotations

import os
import sys
from typing import Any, NoReturn

import click

from .errors import EdgeError


class OneLineErrors(click.Group):
    """A click group whose errors, its own included, are one line; ``EdgeError.exit_code``, or 2 for a wrong option."""

    def main(self, *args: Any, **extra: Any) -> NoReturn:
        extra["standalone_mode"] = False
        try:
            result = super().main(*args, **extra)
        except click.exceptions.NoArgsIsHelpError as problem:
            click.echo(problem.ctx.get_help() if problem.ctx else "")
            sys.exit(2)
        except click.ClickException as problem:
            _fail(problem.format_message(), problem.exit_code)
        except EdgeError as problem:
            _fail(str(problem), problem.exit_code)
        except (click.Abort, KeyboardInterrupt):
            _fail("interrupted", 130)
        except BrokenPipeError:
            # The reader went away (a pager, head): its business. Nothing may be flushed into the pipe at exit.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            sys.exit(141)
        sys.exit(result if isinstance(result, int) else 0)


def _fail(message: str, code: int) -> NoReturn:
    click.echo(f"error: {' '.join(message.split())}", err=True)
    sys.exit(code)
