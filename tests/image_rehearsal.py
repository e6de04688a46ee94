"""The steps of a Dockerfile without a container engine: done in this machine's own file system, under an overlay in
memory that is thrown away. What the image would start is started, read-only and as its user, and asked for an answer.

By hand, as root, with a Python of the image's version, pip's downloads included:

    python tests/image_rehearsal.py docker/jetpack-6.Dockerfile --python ~/.pyenv/versions/3.10.13/bin

``--offline`` leaves the downloads out: the packages of the Python that runs this take their place. Steps that need
packages of the base image are left out, and named. It re-executes itself in namespaces of its own.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatch
from pathlib import Path

import dockerfile

ROOT = Path(__file__).resolve().parent.parent
INSIDE = "EDGE_RUNTIME_REHEARSAL"
WEIGHTS = (".safetensors", ".gguf", ".onnx", ".weights", ".bin", ".pt", ".engine")
PATIENCE_S = 120.0
_PRIVATE = ("unshare", "--mount", "--propagation", "private", "--pid", "--fork", "--kill-child")
_SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_LEFT_OUT = {"apt-get": "packages of the base image's archive", "dpkg-query": "packages of the base image"}
"""Word of a step -> what it needs and this machine does not have."""
_CONFIG = """bundle: /var/lib/edge-runtime/bundle
engine: {sessions: 1, context: 256, threads: 1, drafter: none}
server: {group: edge-runtime}
budget: {telemetry: none}
"""


@dataclass(frozen=True, slots=True)
class Stage:
    name: str
    base: str
    commands: tuple[dockerfile.Command, ...]


def stages_of(path: Path) -> tuple[Stage, ...]:
    """With the ARGs ahead of the first FROM in place."""
    given: dict[str, str] = {}
    found: list[Stage] = []
    for command in dockerfile.parse_file(str(path)):
        if command.cmd.upper() == "FROM":
            base, *named = command.value
            found.append(Stage(named[1] if named else str(len(found)), expanded(base, given), ()))
        elif not found:
            given.update(part.split("=", 1) for part in command.value)
        else:
            found[-1] = Stage(found[-1].name, found[-1].base, (*found[-1].commands, command))
    return tuple(found)


def expanded(text: str, variables: Mapping[str, str]) -> str:
    return re.sub(r"\$\{(\w+)\}|\$(\w+)", lambda found: variables.get(found[1] or found[2], ""), text)


def ignored(path: str, patterns: Sequence[str]) -> bool:
    """As .dockerignore has it: the last pattern that fits a path, or what it lies in, decides."""
    names = path.split("/")
    above = ["/".join(names[: end + 1]) for end in range(len(names))]
    out = False
    for pattern in patterns:
        wanted = pattern.removeprefix("!")
        tails = [one.rsplit("/", 1)[-1] for one in above] if wanted.startswith("**/") else above
        if any(fnmatch(one, wanted.removeprefix("**/")) and (wanted != "*" or "/" not in one) for one in tails):
            out = not pattern.startswith("!")
    return out


def context_files(root: Path) -> Iterator[str]:
    """What an image can be made of, links as links. Folders that nothing is let in from are not looked into."""
    lines = (root / ".dockerignore").read_text(encoding="utf-8").splitlines()
    patterns = [line for line in lines if line and not line.startswith("#")]
    tops = {pattern[1:].split("/")[0] for pattern in patterns if pattern.startswith("!")}
    for top in sorted(tops):
        if not (root / top).is_dir():
            yield top
            continue
        for folder, folders, names in os.walk(root / top):
            links = [name for name in folders if (Path(folder) / name).is_symlink()]
            for name in [*names, *links]:
                path = (Path(folder) / name).relative_to(root).as_posix()
                if not ignored(path, patterns):
                    yield path


@dataclass
class Image:
    """A stage under way, and then as it is."""

    place: Path
    """Its file system."""
    uppers: list[str]
    environment: dict[str, str]
    shell: tuple[str, ...] = ("/bin/sh", "-c")
    folder: str = "/"
    user: str = "0:0"
    entrypoint: tuple[str, ...] = ()
    command: tuple[str, ...] = ()
    health: tuple[str, ...] = ()
    arguments: dict[str, str] = field(default_factory=dict)

    def argv(self, *arguments: str) -> list[str]:
        variables = {**self.arguments, **self.environment}
        given = [f"{name}={value}" for name, value in variables.items()]
        return ["chroot", f"--userspec={self.user}", str(self.place), "/usr/bin/env", "-i", "-C", self.folder, *given,
                *arguments]  # fmt: skip


class Rehearsal:
    def __init__(self, folder: Path, python: Path, *, offline: bool) -> None:
        self._folder, self._python, self._offline = folder, python, offline
        self._images: dict[str, Image] = {}
        run("mount", "-t", "tmpfs", "rehearsal", str(folder))

    def build(self, path: Path) -> Image:
        """The image of the last stage. Raises ``CalledProcessError`` where a step fails."""
        for stage in stages_of(path):
            print(f"== {stage.name}, from {stage.base}", flush=True)
            image = self._begin(stage)
            for command in stage.commands:
                self._do(image, command)
        return image

    def _begin(self, stage: Stage) -> Image:
        base = self._images.get(stage.base)
        here = self._folder / stage.name
        for name in ("upper", "work", "place"):
            (here / name).mkdir(parents=True)
        below = base.uppers if base is not None else []
        layers = f"lowerdir={':'.join([*below, '/'])},upperdir={here}/upper,workdir={here}/work"
        run("mount", "-t", "overlay", "rehearsal", "-o", layers, str(here / "place"))
        image = Image(here / "place", [str(here / "upper"), *below], {"PATH": f"{self._python}:{_SYSTEM_PATH}"})
        for name in ("dev", "sys"):
            run("mount", "--rbind", f"/{name}", str(image.place / name))
        run("mount", "-t", "proc", "proc", str(image.place / "proc"))
        self._show(image, self._needed())
        self._images[stage.name] = image
        return image

    def _needed(self) -> tuple[Path, ...]:
        """What of this machine stands in for the base image: the Python, and what a venv of it leads to."""
        real = (self._python / "python3").resolve().parent.parent
        site = Path(sysconfig.get_path("purelib")) if self._offline else real
        return tuple(dict.fromkeys((self._python.parent, real, site)))

    @staticmethod
    def _show(image: Image, places: Sequence[Path]) -> None:
        """For every user, and where they lie on file systems of their own too."""
        for place in places:
            above = [place, *place.parents]
            mounted = next(one for one in above if one.is_mount())
            inside = image.place / str(place).lstrip("/")
            if mounted != Path("/") or not inside.is_dir():
                inside.mkdir(parents=True, exist_ok=True)
                run("mount", "--bind", str(place), str(inside))
            for one in above[1:-1]:
                outer = image.place / str(one).lstrip("/")
                outer.chmod(outer.stat().st_mode | 0o055)

    def _do(self, image: Image, command: dockerfile.Command) -> None:
        kind, value = command.cmd.upper(), tuple(command.value)
        variables = {**image.arguments, **image.environment}
        if kind == "RUN":
            self._run(image, command)
        elif kind == "COPY":
            self._copy(image, command)
        elif kind == "ARG":
            image.arguments.update(part.split("=", 1) for part in value)
        elif kind == "ENV":
            named = zip(value[0::2], value[1::2], strict=True)
            image.environment.update({name: expanded(text.strip('"'), variables) for name, text in named})
        elif kind == "WORKDIR":
            image.folder = value[0]
            (image.place / value[0].lstrip("/")).mkdir(parents=True, exist_ok=True)
        elif kind == "SHELL":
            image.shell = value
        elif kind == "USER":
            image.user = expanded(value[0], variables)
        elif kind == "ENTRYPOINT":
            image.entrypoint = value
        elif kind == "CMD":
            image.command = value
        elif kind == "HEALTHCHECK":
            image.health = value[1:]
        else:
            assert kind == "LABEL", kind

    def _run(self, image: Image, command: dockerfile.Command) -> None:
        (text,) = command.value
        shown = " ".join(text.split())[:100]
        for word, need in _LEFT_OUT.items():
            if word in text:
                print(f"left out ({need}): {shown}", flush=True)
                return
        if self._offline and "--require-hashes" in text:
            print(f"left out (downloads): {shown}", flush=True)
            return
        if self._offline and " -m venv " in text:
            # pip and the packages are those of the Python that runs this: by a line in a file of paths.
            text = text.replace(" -m venv ", " -m venv --without-pip ")
        print(f"RUN {shown}", flush=True)
        start_s = time.monotonic()
        argv = image.argv(*image.shell, text)
        done = subprocess.run(argv, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        if done.returncode:
            sys.exit(f"{shown}: exit code {done.returncode}\n{done.stderr}")
        if self._offline and " -m venv " in text:
            (site,) = (image.place / "opt/edge-runtime/lib").glob("python3*/site-packages")
            (site / "rehearsal.pth").write_text(sysconfig.get_path("purelib") + "\n", encoding="utf-8")
        print(f"  {time.monotonic() - start_s:.1f} s", flush=True)

    def _copy(self, image: Image, command: dockerfile.Command) -> None:
        *sources, target = command.value
        where = image.place / os.path.join(image.folder, target).lstrip("/")
        giver = next((flag.split("=", 1)[1] for flag in command.flags if flag.startswith("--from=")), None)
        if giver is not None:
            for source in sources:
                place = self._images[giver].place / source.lstrip("/")
                shutil.copytree(place, where, symlinks=True, dirs_exist_ok=True)
            return
        known = list(context_files(ROOT))
        for source in sources:
            taken = [path for path in known if path == source or path.startswith(f"{source}/")]
            assert taken, f"COPY {source}: not in the context"
            for path in taken:
                inner = path.removeprefix(source).lstrip("/")
                place = where / inner if inner else (where / Path(path).name if target.endswith("/") else where)
                place.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / path, place, follow_symlinks=False)


def start(image: Image, bundle: Path, folder: Path) -> None:
    """What the image starts: read-only, as its user, asked for an answer and told to end."""
    uid, gid = map(int, image.user.split(":"))
    assert uid != 0 and gid != 0, "the image runs as root"
    state, configuration = image.place / "var/lib/edge-runtime", image.place / "etc/edge-runtime"
    for place in (state, configuration):
        place.mkdir(parents=True, exist_ok=True)
    shutil.copytree(bundle, state / "bundle")
    run("chmod", "-R", "a+rX", str(state), str(configuration))
    (configuration / "config.yaml").write_text(_CONFIG, encoding="utf-8")
    check_installed(image)
    sockets = folder / "sockets"
    sockets.mkdir(mode=0o750)
    os.chown(sockets, uid, gid)
    run("mount", "-o", "remount,ro", str(image.place))
    run("mount", "--bind", str(sockets), str(image.place / "run/edge-runtime"))
    daemon = subprocess.Popen(image.argv(*image.entrypoint, *image.command))
    try:
        end_s = time.monotonic() + PATIENCE_S
        while subprocess.run(image.argv(*image.health), stderr=subprocess.DEVNULL).returncode:
            assert daemon.poll() is None and time.monotonic() < end_s, "the daemon is not ready"
            time.sleep(0.1)
        asked = image.argv(*image.entrypoint, "complete", "--prompt", "Hi", "--max-tokens", "4")
        print("answer:", subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip(), flush=True)
        daemon.send_signal(signal.SIGTERM)
        assert daemon.wait(PATIENCE_S) == 0
        assert subprocess.run(image.argv(*image.health), stderr=subprocess.DEVNULL).returncode == 1
    finally:
        daemon.kill()
    print("started, healthy, answered, ended with 0", flush=True)


def check_installed(image: Image) -> None:
    """What came by the wheel: units and configurations that make a service of it, and no weights."""
    (package,) = (image.place / "opt/edge-runtime/lib").glob("python3*/site-packages/edge_runtime")
    for name in ("systemd", "configs"):
        for path in (ROOT / name).iterdir():
            if path.suffix != ".md":
                assert (package / name / path.name).read_bytes() == path.read_bytes(), f"{path} is not in the wheel"
    assert not (package.parent / "export").exists()
    assert not [path for path in package.rglob("*") if path.suffix in WEIGHTS]
    tree = image.place / "srv/tree"
    (tree / "opt/edge-runtime/bin").mkdir(parents=True)
    (tree / "opt/edge-runtime/bin/edge-runtime").touch()
    command = [*image.entrypoint, "install-service", "--root", "/srv/tree", "--config", "/etc/edge-runtime/config.yaml"]
    run(*replace(image, user="0:0").argv(*command, "--prefix", "/opt/edge-runtime"))


def run(*argv: str) -> None:
    subprocess.run(argv, check=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("path", type=Path)
    parser.add_argument("--python", type=Path, default=Path(sys.executable).parent)
    parser.add_argument("--offline", action="store_true")
    parser.add_argument("--bundle", type=Path)
    parser.add_argument("--folder", type=Path, default=Path("/mnt"))
    given = parser.parse_args()
    if INSIDE not in os.environ:
        os.environ[INSIDE] = "yes"
        os.execvp(_PRIVATE[0], [*_PRIVATE, sys.executable, *sys.argv])
    image = Rehearsal(given.folder, given.python.absolute(), offline=given.offline).build(given.path)
    if given.bundle is None:
        subprocess.run(image.argv(*image.entrypoint, "--help"), check=True, stdout=subprocess.DEVNULL)
        print("its command answers --help", flush=True)
    else:
        start(image, given.bundle, given.folder)


if __name__ == "__main__":
    main()
