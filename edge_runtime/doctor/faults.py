"""A probe that did not come to its end, as one finding with its fix. Pure; knows the words of drivers and loaders."""

from __future__ import annotations

import re
from dataclasses import dataclass

from .finding import Check
from .outcome import Outcome

TITLES = {
    "host": "memory of the processor",
    "ort-cpu": "onnxruntime on the processor",
    "ort-cuda": "onnxruntime on CUDA",
    "ort-cuda-fpa": "onnxruntime on CUDA, weight-only kernels",
    "tensorrt": "TensorRT",
    "torch": "torch",
    "nf4": "bitsandbytes 4-bit",
    "host-again": "memory of the processor, again",
}
COMPACT = "sync; echo 3 | sudo tee /proc/sys/vm/drop_caches; echo 1 | sudo tee /proc/sys/vm/compact_memory"
_JETSON = "from NVIDIA's Jetson index: public aarch64 wheels hold no code for its accelerator"
_ORT_CUDA = f"pip uninstall -y onnxruntime onnxruntime-gpu; on a Jetson pip install onnxruntime-gpu {_JETSON}"
WEIGHT_ONLY = "ORT_FPA_INTB_GEMM"
"""Set to 1, onnxruntime multiplies several rows by 4-bit weights without unpacking them all first."""
_REINSTALL = {
    "ort-cpu": "pip install --force-reinstall onnxruntime",
    "ort-cuda": _ORT_CUDA,
    "ort-cuda-fpa": f"leave {WEIGHT_ONLY} unset, or: {_ORT_CUDA}",
    "tensorrt": "sudo apt-get install --reinstall tensorrt python3-libnvinfer",
    "torch": f"pip uninstall -y torch; on a Jetson pip install torch {_JETSON}",
    "nf4": "build it here: cmake -DCOMPUTE_BACKEND=cuda -DCOMPUTE_CAPABILITY={compute} ., make, pip install . in its "
    "sources",
}
_ORIN = "87"
_LONGEST = 240
"""Characters of a library's own words."""


@dataclass(frozen=True, slots=True)
class _Known:
    words: str
    text: str
    fix: str
    """Empty: another build of the package."""


_KNOWN = (
    _Known(
        r"no kernel image|named symbol not found|invalid device function|compute capability.*not supported|"
        r"not compatible with the current",
        "its build holds no code for this accelerator", "",
    ),
    _Known(
        r"NvRmMemInitNvmap|nvmap.*denied|ermission denied.*(?:/dev/nv|nvidia)",
        "the accelerator refuses this user", "sudo usermod -aG video,render $USER, then log in again",
    ),
    _Known(
        r"libcuda\.so|\bcuInit\b|no CUDA-capable device|driver version is insufficient|NVIDIA driver|NO_DEVICE",
        "no driver of the accelerator is to be seen",
        "in a container: docker run --runtime nvidia ...; outside of one: sudo apt-get install nvidia-l4t-cuda, sudo "
        "reboot",
    ),
    _Known(
        r"lib(?:cudart|cublas|cudnn|cufft|curand|cusparse|cusolver|nvrtc|nvinfer|nvonnxparser|nvJitLink)\S*",
        "a library that it needs is missing or of another version",
        "sudo apt-get install nvidia-jetpack; sudo ldconfig  (wheels and JetPack must be of one CUDA version)",
    ),
    _Known(
        r"out of memory|NvMapMemAlloc|bad_alloc|annot allocate|OutOfMemory|ALLOC_FAILED|MemoryError|memoryAllocation",
        "memory ran out", f"{COMPACT}; close other programs",
    ),
    _Known(
        r"compiled using NumPy 1|_ARRAY_API|numpy\.core\.multiarray",
        "it was built for numpy 1", "pip install 'numpy<2'",
    ),
    _Known(r"GLIBC(?:XX)?_\d", "it was built for a newer system", "an older wheel of it, or a newer JetPack"),
    _Known(
        r"fallback to CPU EP has been explicitly disabled",
        "a product would run on the processor and not on the accelerator", "",
    ),
    _Known(
        r"illegal (?:memory access|instruction)|misaligned address|launch fail|device-side assert|CUBLAS_STATUS|"
        r"CUDNN_STATUS",
        "a kernel went wrong on this accelerator", "",
    ),
)  # fmt: skip


def fault(outcome: Outcome) -> Check:
    """Of a probe that ended otherwise than finished or absent."""
    name, where = TITLES[outcome.probe], f"in: {outcome.stage}"
    said = f" ({_short(outcome.said)})" if outcome.said else ""
    told = outcome.told.accelerator
    compute = _ORIN if told is None else told.compute.replace(".", "")
    again = _REINSTALL.get(outcome.probe, "reinstall numpy").replace("{compute}", compute)
    if outcome.ended == "stuck":
        text = f"does not end, {where}: not even SIGKILL frees it from the driver"
        return Check(name, "problem", text, "sudo dmesg | tail -50; then sudo reboot")
    if outcome.ended == "hung":
        text = f"no end after {outcome.seconds:.0f} s, {where}{said}"
        fix = "sudo dmesg | tail -50; a busy board: close other programs and try again; else sudo reboot"
        return Check(name, "problem", text, fix)
    if outcome.ended == "memory":
        text = f"took more memory than there is to try with, {where}"
        return Check(name, "problem", text, f"close other programs; {COMPACT}")
    known = next((one for one in _KNOWN if re.search(one.words, outcome.said, re.IGNORECASE)), None)
    if known is not None:
        return Check(name, "problem", f"{known.text}, {where}{said}", known.fix or again)
    if outcome.ended == "crashed":
        return _crash(outcome, name, f"{where}{said}", again)
    return Check(name, "problem", f"failed, {where}{said}", again)


def _crash(outcome: Outcome, name: str, where: str, again: str) -> Check:
    if outcome.signal == "SIGILL":
        text = f"used an instruction that this processor lacks (SIGILL), {where}: it was built for another one"
        return Check(name, "problem", text, again)
    how = f"crashed ({outcome.signal})" if outcome.signal else "ended without a result"
    return Check(name, "problem", f"{how}, {where}", again)


def _short(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= _LONGEST else text[: _LONGEST - 3] + "..."
