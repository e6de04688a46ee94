"""How both command lines fail: one clear line on stderr and the exit code of the error; and what they print with. Knows
no command.
"""

from __future__ import annotations

import codecs
import errno
import io
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import TYPE_CHECKING, Any, NoReturn

import click

from .errors import EdgeError, did_you_mean, one_line
from .quiet import keep_to_ourselves

if TYPE_CHECKING:
    from rich.console import Console

LINE_EVERY_S = 20.0
"""Between two lines of long work."""
_INTERRUPTED = 128 + 2
_ENDINGS = (signal.SIGTERM, signal.SIGHUP)
_READER_LEFT = 128 + 13


# A terminal obeys control characters, and a text is not to command it: they show as pictures of themselves.
PICTURES = {code: 0x2400 + code for code in range(0x20) if chr(code) not in "\n\t"}
PICTURES |= {0x7F: 0x2421} | dict.fromkeys(range(0x80, 0xA0), 0xFFFD)

_ALIKE = dict(zip("█▉▊▋▌▍▎▏▇▆▅▄▃▂▁…±×–—", "####=---#*+=-_.~~x--", strict=True)) | {"°": ""}
"""What stands for the pictures of our own output where the locale has no such characters."""

_EXTRAS = {
    "onnx": "export",
    "ml_dtypes": "export",
    "google": "export",
    "torch": "reference",
    "transformers": "reference",
    "matplotlib": "plot",
}
"""Which extra brings a package that a command may lack."""


def shown(text: str) -> str:
    """One line that a terminal shows and does not obey."""
    return one_line(text)


def counted(number: float, what: str) -> str:
    """``1 minute``, ``2.5 minutes``: ``what`` is one of them."""
    return f"{number:g} {what}" + ("" if number == 1 else "s")


def plain_console(width: int | None = None, *, stderr: bool = False) -> Console:
    """Prints what it is given: names and paths come from outside, and ``[/b]`` in one of them is no markup."""
    from rich.console import Console

    return Console(width=width, stderr=stderr, markup=False, emoji=False, highlight=False)


class SlowLines:
    """Long work where no person watches: a line on stderr now and then, and none of what is done before that."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._told_s = clock()

    def tell(self, line: str, *, now: bool = False) -> None:
        """``now``: whatever the time is."""
        at_s = self._clock()
        if now or at_s - self._told_s >= LINE_EVERY_S:
            self._told_s = at_s
            click.echo(shown(line), err=True)


class OneLineErrors(click.Group):
    """A click group whose errors, its own included, are one line; ``EdgeError.exit_code``, or 2 for a wrong option."""

    def main(self, *args: Any, **extra: Any) -> NoReturn:
        extra["standalone_mode"] = False
        keep_to_ourselves()
        unwritable = _open_streams()
        if isinstance(sys.stdout, io.TextIOWrapper):
            # A locale that lacks a character is no reason to lose the rest.
            codecs.register_error("edge-runtime", _likeness)
            sys.stdout.reconfigure(errors="edge-runtime")
        try:
            result = super().main(*args, **extra)
        except click.ClickException as problem:
            _fail(problem.format_message(), problem.exit_code)
        except EdgeError as problem:
            _fail(str(problem), problem.exit_code)
        except ModuleNotFoundError as problem:
            extra_name = _EXTRAS.get((problem.name or "").split(".")[0])
            if extra_name is None:
                raise
            where = f"in the directory of edge-runtime's sources: pip install '.[{extra_name}]'"
            _fail(f"{problem.name} is not installed; it comes with the extra {extra_name!r}, {where}", 2)
        except (click.Abort, KeyboardInterrupt):
            _fail("interrupted", _INTERRUPTED)
        except MemoryError:
            _fail("not enough memory", EdgeError.exit_code)
        except OSError as problem:
            # A full disk behind stdout, a file that may not be read: nobody's bug.
            _leave_stdout()
            if unwritable and problem.errno == errno.EBADF:
                _fail("stdout is closed", EdgeError.exit_code)
            where = "" if problem.filename is None else f"{problem.filename}: "
            _fail(f"{where}{problem.strerror or problem}", EdgeError.exit_code)
        sys.exit(result if isinstance(result, int) else 0)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if not args and not ctx.resilient_parsing:
            click.echo(ctx.get_help(), err=True)
            ctx.exit(2)
        return super().parse_args(ctx, args)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if self.get_command(ctx, name) is None and not ctx.resilient_parsing:
            ctx.fail(f"no command {name!r}{did_you_mean(name, self.list_commands(ctx))}")
        return super().resolve_command(ctx, args)

    def make_context(self, *args: Any, **extra: Any) -> click.Context:
        with _reader_may_leave():
            return super().make_context(*args, **extra)

    def invoke(self, ctx: click.Context) -> Any:
        # Here and not in main: click would answer both in its own way before that.
        try:
            with _reader_may_leave():
                return super().invoke(ctx)
        except KeyboardInterrupt:
            if sys.stderr.isatty():
                click.echo(err=True)  # nothing shall stand behind ^C
            _fail("interrupted", _INTERRUPTED)


@contextmanager
def ends_tidily() -> Iterator[None]:
    """Inside, SIGTERM and SIGHUP end the process as Ctrl-C does, by an exception: what was begun is undone, folders and
    processes of our own with it. A second one ends it at once. Where they are ignored, as under nohup, they stay so.
    """

    def leave(number: int, frame: FrameType | None) -> None:
        signal.signal(number, signal.SIG_DFL)
        raise SystemExit(128 + number)

    # Python lets the main thread alone say what a signal does.
    here = threading.current_thread() is threading.main_thread()
    numbers = [number for number in _ENDINGS if here and signal.getsignal(number) is signal.SIG_DFL]
    for number in numbers:
        signal.signal(number, leave)
    try:
        yield
    finally:
        for number in numbers:
            signal.signal(number, signal.SIG_DFL)


@contextmanager
def _reader_may_leave() -> Iterator[None]:
    """Whoever reads stdout goes away (a pager, head): its business, and one exit code whoever wrote. rich makes an exit
    of its own of it."""
    try:
        yield
    except (BrokenPipeError, SystemExit) as problem:
        if not isinstance(problem, BrokenPipeError) and not isinstance(problem.__context__, BrokenPipeError):
            raise
        _leave_stdout()
        sys.exit(_READER_LEFT)


def _open_streams() -> bool:
    """Standard streams that whoever started this had closed: Python has ``None`` for them, and the next file or socket
    would get their number, and what a library prints. Input is at its end, messages go nowhere, and what a command
    writes fails. Whether stdout is such a one.
    """
    if sys.stdin is None:
        sys.stdin = os.fdopen(_null(os.O_RDONLY), "r")
    unwritable = sys.stdout is None
    if unwritable:
        sys.stdout = os.fdopen(_null(os.O_RDONLY), "w", encoding="utf-8")
    if sys.stderr is None:
        sys.stderr = os.fdopen(_null(os.O_WRONLY), "w", encoding="utf-8", errors="backslashreplace")
    return unwritable


def _likeness(problem: UnicodeError) -> tuple[str, int]:
    """What cannot be encoded, as what looks like it or as a question mark."""
    assert isinstance(problem, UnicodeEncodeError)
    lost = problem.object[problem.start : problem.end]
    return "".join(_ALIKE.get(character, "?") for character in lost), problem.end


def _null(flags: int) -> int:
    descriptor = os.open(os.devnull, flags)
    os.set_inheritable(descriptor, True)
    return descriptor


def _leave_stdout() -> None:
    """What stdout does not take goes nowhere, or Python would fail once more at exit."""
    with suppress(OSError, ValueError):  # figures of an hour, where it is another file that found no room
        sys.stdout.flush()
    with suppress(io.UnsupportedOperation):  # no descriptor, as of who runs this in a process of his own
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _fail(message: str, code: int) -> NoReturn:
    # Names in it come from outside: of files, of bundles, of checkpoints. Where stderr takes nothing, the code says it.
    with suppress(OSError):
        click.echo(f"error: {one_line(' '.join(message.split()))}", err=True)
    sys.exit(code)
