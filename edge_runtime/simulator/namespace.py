"""A place in which this machine looks like a board: private mounts over its ``/sys``, ``/proc``, ``/run`` and some of
``/etc``, ``/usr/bin`` and ``/var/lib``, and processes of its own that end with it. Knows trees; nothing of what runs
there but the real jtop service, which it can start.

It needs root, util-linux and a C compiler, and changes nothing outside: every mount is private, and what is written to
the machine's own folders goes to memory. ``forbidden`` and ``lacking`` say where it
is not possible, and why.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

from ..errors import EdgeError
from .tree import BoardTree

_PRIVATE = ("--mount", "--propagation", "private", "--pid", "--fork", "--kill-child")
_PACKAGES = {"unshare": "util-linux", "nsenter": "util-linux", "mount": "mount", "cc": "gcc libc6-dev"}
"""Program -> what brings it, as Debian calls it."""
_PROBE = """set -e
mount -t tmpfs simulated /mnt
mkdir /mnt/upper /mnt/work
mount -t overlay simulated -o lowerdir=/etc,upperdir=/mnt/upper,workdir=/mnt/work /etc
"""
_MOST_TOLD = 500
"""Characters of what a service said that does not come up."""
_PATIENCE_S = 60.0
"""For a service to come up; it takes a second where nothing else runs."""

# $1: the tree, $2: where the Python of the service is installed, below which jtop keeps its settings.
# The shell that runs it becomes process 1 of the place: when its input ends, so does all that runs there.
_ENTER = r"""
set -eu
root=$1 prefix=$2
read -r pid rest </proc/self/stat
mkdir -p "$root/upper" "$root/realproc" "$root/run"
mount -t tmpfs simulated "$root/upper"
over() {
  at="$root/upper/$(echo "$1" | tr / _)"
  mkdir -p "$at" "$at.work"
  [ -z "${2-}" ] || cp -a "$2/." "$at/"
  mount -t overlay simulated -o "lowerdir=$1,upperdir=$at,workdir=$at.work" "$1"
}
grep -vE '^(root|video|render|jtop):' /etc/group >"$root/upper/group" || true
if [ -d "$prefix/local" ]; then over "$prefix/local"; else over "$prefix"; fi
over /usr/bin "$root/bin"
over /etc "$root/etc"
cat "$root/upper/group" >>/etc/group
over /var/lib
mkdir -p /var/lib/nvpmodel
mount --bind "$root/var/lib/nvpmodel" /var/lib/nvpmodel
mount --bind "$root/run" /run
mount --bind "$root/sys" /sys
mount -t proc proc "$root/realproc"
mount --bind "$root/proc" /proc
echo "$pid"
exec cat >/dev/null
"""


class NamespaceUnavailable(EdgeError):
    """This machine or this user cannot have one."""


def forbidden() -> str | None:
    """Why this machine or this user may not have such a place; ``None`` where they may, as far as can be tried."""
    if sys.platform != "linux":
        return "namespaces are Linux's"
    if os.geteuid() != 0:
        return "private mounts need root: run it with sudo"
    if shutil.which("unshare") is None:
        return None
    probe = ["unshare", *_PRIVATE, "sh", "-c", _PROBE]
    done = subprocess.run(probe, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    return f"private mounts are not allowed here: {' '.join(done.stderr.split())}" if done.returncode else None


def lacking() -> str | None:
    """Which program has to be installed for it, and how."""
    missing = [name for name in _PACKAGES if shutil.which(name) is None]
    if not missing:
        return None
    packages = " ".join(sorted({_PACKAGES[name] for name in missing}))
    return f"{', '.join(missing)} not found: sudo apt-get install {packages}"


class BoardNamespace:
    def __init__(self, tree: BoardTree, python: str = sys.executable) -> None:
        """``python``: by which jtop's service and clients will run there. Raises ``NamespaceUnavailable``."""
        if (reason := forbidden() or lacking()) is not None:
            raise NamespaceUnavailable(reason)
        self.tree = tree
        self.python = python
        self._shim = _build_shim(tree.root)
        self._holder = subprocess.Popen(
            ["unshare", *_PRIVATE, "sh", "-c", _ENTER, "sh", str(tree.root), _prefix(python)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        assert self._holder.stdout is not None and self._holder.stderr is not None
        self._pid = self._holder.stdout.readline().strip()
        if not self._pid:
            said = " ".join(self._holder.stderr.read().split())
            self.close()
            raise NamespaceUnavailable(f"the board's files cannot be mounted: {said}")

    def command(self, *arguments: str, **environment: str) -> list[str]:
        """A command line that runs ``arguments`` there. What it starts ends with the place, if not before."""
        variables = {"LD_PRELOAD": str(self._shim), "SIMULATED_KERNEL": self.tree.release.kernel, **environment}
        told = [f"{name}={value}" for name, value in variables.items()]
        return ["nsenter", "--mount", "--pid", "--target", self._pid, "env", *told, *arguments]

    def close(self) -> None:
        """Ends all that runs there. Once or more often."""
        for stream in (self._holder.stdin, self._holder.stdout, self._holder.stderr):
            assert stream is not None
            stream.close()
        self._holder.wait()

    def __enter__(self) -> BoardNamespace:
        return self

    def __exit__(self, *unused: object) -> None:
        self.close()


class JtopService:
    """The real one, as it was installed."""

    def __init__(self, namespace: BoardNamespace, **environment: str) -> None:
        """Started, and its socket is there. Raises ``NamespaceUnavailable`` where it is not installed or ends early."""
        if namespace.python == sys.executable and find_spec("jtop") is None:
            raise NamespaceUnavailable("jetson-stats is not installed: pip install 'jetson-stats>=7.2'")
        self.socket = namespace.tree.root / "run/jtop.sock"
        self.log = namespace.tree.root / "jtop.log"
        self.socket.unlink(missing_ok=True)
        command = namespace.command(namespace.python, "-m", "jtop", "--force", JTOP_SERVICE="True", **environment)
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
            )
        deadline_s = time.monotonic() + _PATIENCE_S
        while not self.socket.exists():
            if self._process.poll() is not None or time.monotonic() > deadline_s:
                self.kill()
                said = [line for line in self.log.read_text(errors="replace").splitlines() if line.strip()]
                told = said[-1][:_MOST_TOLD] if said else "it says nothing"
                raise NamespaceUnavailable(f"jtop's service does not come up: {told}")
            time.sleep(0.02)

    @property
    def ended(self) -> int | None:
        """Its exit code; ``None`` while it runs."""
        return self._process.poll()

    def freeze(self) -> None:
        """As where a driver hangs: connections stay, nothing moves."""
        self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self._signal(signal.SIGCONT)

    def kill(self) -> None:
        """As the kernel does when memory runs out: the socket stays behind, and nobody listens."""
        self._signal(signal.SIGKILL)
        self._process.wait()

    def _signal(self, number: signal.Signals) -> None:
        if self._process.poll() is None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, number)


def _build_shim(folder: Path) -> Path:
    """What answers uname(2) as a Jetson: jtop's service asks for nothing else that a file could not tell."""
    shim, source = folder / "uname.so", Path(__file__).with_name("uname.c")
    done = subprocess.run(
        ["cc", "-shared", "-fPIC", "-o", str(shim), str(source)], capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        raise NamespaceUnavailable(f"cc cannot build the answer to uname: {' '.join(done.stderr.split())}")
    return shim


def _prefix(python: str) -> str:
    told = subprocess.run(
        [python, "-c", "import sys; print(sys.base_prefix)"], capture_output=True, text=True, check=True
    )
    return told.stdout.strip()
