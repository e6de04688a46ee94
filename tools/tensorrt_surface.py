"""What the Python bindings of several TensorRT releases offer, and stubs for mypy. Needs neither TensorRT nor a GPU.

    python tools/tensorrt_surface.py DIR...

Each DIR holds one release's bindings, as ``pip install --no-deps --target DIR tensorrt-cu12-bindings==VERSION`` puts
them there; they load by stand-ins for the nine C functions that they miss (gcc needed). Writes
``tests/tensorrt_surface.json`` (classes of ``KEPT``: member -> signature, or its kind, with the releases that have it
so) and, of the first DIR, which is the oldest release that is supported, ``typings/tensorrt/__init__.pyi``.
"""

from __future__ import annotations

import ctypes
import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
SURFACE = ROOT / "tests" / "tensorrt_surface.json"
STUBS = ROOT / "typings" / "tensorrt" / "__init__.pyi"

KEPT = (
    "AllocatorFlag", "Builder", "BuilderFlag", "DataType", "Dims", "ErrorCode", "ExecutionContextAllocationStrategy",
    "IBuilderConfig", "ICudaEngine", "IExecutionContext", "IGpuAllocator", "IHostMemory", "ILogger",
    "INetworkDefinition", "IOptimizationProfile", "IProgressMonitor", "ITensor", "ITimingCache", "Logger",
    "MemoryPoolType", "NetworkDefinitionCreationFlag", "OnnxParser", "ParserError", "ProfilingVerbosity", "Runtime",
    "TensorIOMode", "TensorLocation",
)  # fmt: skip
"""What an engine of ours could need. Layers are not among them: networks come from ONNX."""
_LIBRARIES = ("libnvinfer", "libnvinfer_plugin", "libnvonnxparser")
_MISSING = (
    "createInferBuilder_INTERNAL", "createInferRefitter_INTERNAL", "createInferRuntime_INTERNAL",
    "createNvOnnxParserRefitter_INTERNAL", "createNvOnnxParser_INTERNAL", "getBuilderPluginRegistry",
    "getNvOnnxParserVersion", "getPluginRegistry", "initLibNvInferPlugins",
)  # fmt: skip
_DUNDERS = ("__init__", "__len__", "__getitem__", "__iter__")
_PROFILES = "add_optimization_profile"
"""The one of many ``add_`` that is kept."""
_SIGNATURE = re.compile(r"^(?:\d+\. )?(?P<name>\w+)?\((?P<of>.*)\) -> (?P<gives>.*)$")
_DEFAULT = re.compile(r" = (?:<[^>]*>|[^,]*)")
_TYPES = {
    "buffer": "_Buffer", "capsule": "int", "nvonnxparser::IParserError": "ParserError", "numpy.ndarray": "object",
    "Callable": "object", "None": "None",
}  # fmt: skip
_TOLD = {("Runtime", "gpu_allocator"): "IGpuAllocator", ("Builder", "gpu_allocator"): "IGpuAllocator"}
"""Types that the bindings do not tell."""
_SPELT = {
    "typing.SupportsInt": "int", "typing.SupportsFloat": "float", "typing_extensions.Buffer": "buffer",
    "typing_extensions.CapsuleType": "capsule", "collections.abc.Sequence[": "list[", "List[": "list[",
    "Tuple[": "tuple[",
}  # fmt: skip
_PLAIN = {"int", "float", "str", "bool", "bytes", "object", "list", "tuple", "dict", "slice"}
_BARE = {"list": "list[int]", "tuple": "tuple[int, ...]"}


def main(directories: list[str]) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        dumps = [_dumped(Path(directory).resolve(), Path(scratch)) for directory in directories]
    versions = [dump["version"] for dump in dumps]
    SURFACE.write_text(_json(versions, dumps), encoding="utf-8")
    STUBS.parent.mkdir(parents=True, exist_ok=True)
    STUBS.write_text(_stubs(dumps[0]), encoding="utf-8")
    print(f"{', '.join(versions)} -> {SURFACE.relative_to(ROOT)}, {STUBS.relative_to(ROOT)} of {versions[0]}")


# In a process of its own, since one process can import one release


def _dumped(directory: Path, scratch: Path) -> dict[str, Any]:
    source = scratch / "missing.c"
    source.write_text("".join(f"void *{name}(void) {{ return 0; }}\n" for name in _MISSING), encoding="ascii")
    libraries = []
    for major in ("10", "11"):
        for name in _LIBRARIES:
            libraries.append(str(scratch / f"{name}.so.{major}"))
            subprocess.run(
                ["gcc", "-shared", "-fPIC", f"-Wl,-soname,{name}.so.{major}", "-o", libraries[-1], str(source)],
                check=True,
            )
    done = subprocess.run(
        [sys.executable, __file__, "--dump", str(directory), *libraries], check=True, capture_output=True, text=True
    )
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def _dump(directory: str, libraries: list[str]) -> None:
    for library in libraries:
        ctypes.CDLL(library, ctypes.RTLD_GLOBAL)
    sys.path.insert(0, directory)
    import tensorrt_bindings as tensorrt

    classes = {name: _members(getattr(tensorrt, name)) for name in KEPT if hasattr(tensorrt, name)}
    print(json.dumps({"version": tensorrt.__version__, "classes": classes}))


def _members(kind: type) -> dict[str, list[str]]:
    """Name -> signatures of a method; "property" or "settable" and its type; "value" of an enumeration."""
    found = {}
    for name in dir(kind):
        if (name.startswith("_") and name not in _DUNDERS) or (name.startswith("add_") and name != _PROFILES):
            continue
        value = getattr(kind, name)
        if isinstance(value, property):
            gives = [
                match["gives"] for line in (value.fget.__doc__ or "").splitlines() if (match := _SIGNATURE.match(line))
            ]
            found[name] = ["property" if value.fset is None else "settable", *(gives[:1] or ["object"])]
        elif isinstance(value, kind) or (isinstance(value, int) and hasattr(kind, "__members__")):
            found[name] = ["value"]
        elif isinstance(value, type):
            found[name] = ["class"]
        elif callable(value):
            matches = [_SIGNATURE.match(line) for line in (value.__doc__ or "").splitlines()]
            named = [match for match in matches if match and match["name"] == name]
            signatures = [f"({match['of']}) -> {match['gives']}" for match in named]
            if signatures or not name.startswith("__"):
                found[name] = signatures or ["(*args, **kwargs) -> object"]
        elif hasattr(kind, "__members__") or type(value).__name__ == "Severity":
            found[name] = ["value"]
    return {name: [_short(line) for line in lines] for name, lines in found.items()}


def _short(line: str) -> str:
    """Alike in all releases: later ones spell the same parameters in another way."""
    line = re.sub(r"\btensorrt_bindings\.tensorrt\.", "", line)
    for old, new in _SPELT.items():
        line = line.replace(old, new)
    return line


def _json(versions: list[str], dumps: list[dict[str, Any]]) -> str:
    """One line for each member: {signature: releases that have it so}."""
    lines = [f'{{"versions": {json.dumps(versions)}, "classes": {{']
    for name in KEPT:
        there = [index for index, dump in enumerate(dumps) if name in dump["classes"]]
        members = sorted({member for index in there for member in dumps[index]["classes"][name]})
        rows = []
        for member in members:
            ways: dict[str, list[str]] = {}
            for index in there:
                if member in dumps[index]["classes"][name]:
                    way = "; ".join(dumps[index]["classes"][name][member])
                    ways.setdefault(way, []).append(versions[index])
            told = {way: "all" if len(where) == len(versions) else where for way, where in ways.items()}
            rows.append(f"  {json.dumps(member)}: {json.dumps(told)}")
        lines.append(f'{json.dumps(name)}: {{\n' + ",\n".join(rows) + ("\n}" if name == KEPT[-1] else "\n},"))
    return "\n".join([*lines, "}}"]) + "\n"


# Stubs


def _stubs(dump: dict[str, Any]) -> str:
    head = (
        f'"""TensorRT {dump["version"]}, the oldest release that is supported; made by tools/tensorrt_surface.py."""\n'
        "import mmap\nfrom collections.abc import Sequence\nfrom typing import ClassVar, overload\n\n__version__: str\n"
    )
    tail = (
        "\n_Buffer = bytes | bytearray | memoryview | mmap.mmap | IHostMemory\n_Shape = Dims | Sequence[int]\n"
    )
    known = set(dump["classes"])
    return head + "".join(_stub(name, dump["classes"][name], known) for name in KEPT) + tail


def _stub(name: str, members: dict[str, list[str]], known: set[str]) -> str:
    above = {"Logger": "ILogger", "IHostMemory": None}.get(name)
    lines = [f"\nclass {name}{f'({above})' if above else ''}:"]
    enumeration = "value" in members and any(what == ["value"] for what in members.values())
    severity = name == "ILogger"
    if severity:
        lines += ["    class Severity:", "        value: int", "        name: str"]
        lines += ["        def __int__(self) -> int: ..."]
    for member, what in members.items():
        if what == ["value"]:
            kind = "ILogger.Severity" if name in ("ILogger", "Logger") else name
            lines.append(f"    {member}: ClassVar[{kind}]")
            if severity:
                lines.insert(5, f"        {member}: ClassVar[ILogger.Severity]")
        elif what[0] in ("property", "settable"):
            kind = _type(what[1], known)
            kind = _TOLD.get((name, member), kind)
            settable = [f"    {member}: {kind}"]
            lines += settable if what[0] == "settable" else ["    @property", f"    def {member}(self) -> {kind}: ..."]
        elif what != ["class"]:
            lines += _methods(name, member, what, known)
    if enumeration:
        lines.append("    def __int__(self) -> int: ...")
    if name == "IHostMemory":
        lines.append("    def __buffer__(self, flags: int, /) -> memoryview: ...")
    return "\n".join(lines) + ("\n" if len(lines) > 1 else " ...\n")


def _methods(name: str, member: str, signatures: list[str], known: set[str]) -> list[str]:
    lines = []
    for signature in signatures:
        match = re.match(r"^\((?P<of>.*)\) -> (?P<gives>.*)$", signature)
        assert match is not None, (name, member, signature)
        if len(signatures) > 1:
            lines.append("    @overload")
        gives = "Iterator[int]" if member == "__iter__" else _type(match["gives"], known)
        lines.append(f"    def {member}({_parameters(match['of'], known)}) -> {gives}: ...")
    return lines


def _parameters(text: str, known: set[str]) -> str:
    if text == "*args, **kwargs":
        return "self, *args: object, **kwargs: object"
    found = ["self"]
    for one in re.split(r", (?=\w+(?::|=))", _DEFAULT.sub("=...", text))[1:]:
        name, _, kind = one.partition(": ")
        kind, default = kind.removesuffix("=..."), " = ..." if kind.endswith("=...") else ""
        found.append(f"{name}: {_type(kind, known, taken=True)}{default}")
    return ", ".join(found)


def _type(text: str, known: set[str], taken: bool = False) -> str:
    """``taken``: of a parameter, where pybind11 converts sequences to shapes."""

    def one(match: re.Match[str]) -> str:
        word = match[0]
        if taken and word == "Dims":
            return "_Shape"
        if word in known or word in _PLAIN:
            return word
        return _TYPES.get(word, "ILogger.Severity" if word == "ILogger.Severity" else "object")

    text = re.sub(r"[\w.:]*[\w]", one, text.strip())
    return re.sub(r"\b(list|tuple)\b(?!\[)", lambda match: _BARE[match[0]], text)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--dump"]:
        _dump(sys.argv[2], sys.argv[3:])
    else:
        main(sys.argv[1:])
