"""What cuda-python offers of what engines/cuda.py calls, in several releases. Needs no GPU.

    python tools/cuda_surface.py DIR...

Each DIR holds one release (``pip install --target DIR cuda-bindings==VERSION``, or cuda-python before 12.8). Writes
``tests/cuda_surface.json``: name -> parameters or value, with the releases that have it so. Compiled as they are, the
bindings have no annotations: a call's parameters come from the first line of its docstring.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
SURFACE = ROOT / "tests" / "cuda_surface.json"

KEPT = (
    "cudaDeviceGetAttribute", "cudaDriverGetVersion", "cudaEventCreateWithFlags", "cudaEventDestroy",
    "cudaEventElapsedTime", "cudaEventRecord", "cudaEventSynchronize", "cudaFree", "cudaFreeHost", "cudaGetDeviceCount",
    "cudaGetDeviceProperties", "cudaGetErrorName", "cudaGetErrorString", "cudaGraphDestroy", "cudaGraphExecDestroy",
    "cudaGraphInstantiate", "cudaGraphLaunch", "cudaHostAlloc", "cudaMalloc", "cudaMemGetInfo", "cudaMemcpy2DAsync",
    "cudaMemcpyAsync", "cudaMemsetAsync", "cudaRuntimeGetVersion", "cudaSetDevice", "cudaStreamBeginCapture",
    "cudaStreamCreateWithFlags", "cudaStreamDestroy", "cudaStreamEndCapture", "cudaStreamSynchronize",
)  # fmt: skip
ENUMERATIONS = {
    "cudaError_t": ("cudaSuccess", "cudaErrorMemoryAllocation", "cudaErrorNoDevice", "cudaErrorInsufficientDriver",
                    "cudaErrorInvalidValue", "cudaErrorIllegalAddress", "cudaErrorLaunchFailure",
                    "cudaErrorStreamCaptureUnsupported", "cudaErrorStreamCaptureInvalidated", "cudaErrorUnknown"),
    "cudaDeviceAttr": ("cudaDevAttrComputeCapabilityMajor", "cudaDevAttrComputeCapabilityMinor",
                       "cudaDevAttrIntegrated",
                       "cudaDevAttrMultiProcessorCount"),
    "cudaMemcpyKind": ("cudaMemcpyHostToDevice", "cudaMemcpyDeviceToHost", "cudaMemcpyDeviceToDevice"),
    "cudaStreamCaptureMode": ("cudaStreamCaptureModeThreadLocal", "cudaStreamCaptureModeRelaxed",
                              "cudaStreamCaptureModeGlobal"),
}  # fmt: skip
CONSTANTS = ("cudaEventDisableTiming", "cudaHostAllocDefault", "cudaStreamNonBlocking")
_PARAMETERS = {"size_t": "int", "unsigned int": "int", "unsigned long long": "int", "int": "int"}


def main(directories: list[str]) -> None:
    dumps = []
    for directory in directories:
        done = subprocess.run(
            # -S: of a release that is installed here, nothing must be taken for that of the directory.
            [sys.executable, "-S", __file__, "--dump", directory], check=True, capture_output=True, text=True
        )
        dumps.append(json.loads(done.stdout))
    versions = [dump["version"] for dump in dumps]
    rows = []
    for name in sorted({name for dump in dumps for name in dump["names"]}):
        ways: dict[str, list[str]] = {}
        for dump in dumps:
            if name in dump["names"]:
                ways.setdefault(dump["names"][name], []).append(dump["version"])
        told = {way: "all" if len(where) == len(versions) else where for way, where in ways.items()}
        rows.append(f"  {json.dumps(name)}: {json.dumps(told)}")
    head = f'{{"versions": {json.dumps(versions)}, "names": {{\n'
    SURFACE.write_text(head + ",\n".join(rows) + "\n}}\n", encoding="utf-8")
    print(f"{', '.join(versions)} -> {SURFACE.relative_to(ROOT)}")


def _dump(directory: str) -> None:
    sys.path.insert(0, directory)
    import cuda.bindings
    from cuda.bindings import runtime

    names: dict[str, str] = {name: _signature(getattr(runtime, name)) for name in KEPT if hasattr(runtime, name)}
    for kind, members in ENUMERATIONS.items():
        there = {str(one.name): int(one.value) for one in getattr(runtime, kind)}
        names |= {f"{kind}.{member}": str(there[member]) for member in members if member in there}
    names |= {name: str(int(getattr(runtime, name))) for name in CONSTANTS if hasattr(runtime, name)}
    print(json.dumps({"version": cuda.bindings.__version__, "names": names}))


def _signature(call: Any) -> str:
    """Its parameters. What it gives is a tuple: the status, and values behind it."""
    text = call.__doc__ or ""
    inside = text.splitlines()[0].partition("(")[2].rpartition(")")[0]
    parameters = [_parameter(one) for one in inside.split(", ") if one]
    return f"({', '.join(parameters)})"


def _parameter(text: str) -> str:
    kind, _, name = text.rpartition(" ")
    if ":" in text:
        name, _, kind = (part.strip() for part in text.partition(":"))
        return f"{name}: {kind}"
    return f"{name}: {_PARAMETERS.get(kind, 'object')}"


if __name__ == "__main__":
    if sys.argv[1:2] == ["--dump"]:
        _dump(sys.argv[2])
    else:
        main(sys.argv[1:])
