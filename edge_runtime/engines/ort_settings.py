"""What an ONNX Runtime engine is asked for. Knows no bundle and no session."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class OrtSettings:
    capacity: int = 2048
    """Tokens per slot, at most the bundle's ``max_context``."""
    slots: int = 1
    cache: Literal["as-used", "at-load"] = "as-used"
    """When the memory of the caches is paid for: as they fill, or at once, so that nothing grows afterwards."""
    max_rows: int = 64
    """Rows of a prefill chunk."""
    max_head_rows: int = 16
    """Rows that the logits buffer holds: num_draft_tokens + 1 at most."""
    threads: int = 0
    """Intra-op threads, 0 = one per physical core as onnxruntime counts them."""
    deterministic: bool = False
    """Run rows such that results do not depend on how many of them run together (``even_rows``, ARCHITECTURE.md)."""
    head: Literal["screened", "full"] = "screened"
    """Screened: the coarse table first, where the bundle has one (see ``bundle.Screen``)."""
    lanes: bool = False
    """Run the body with lanes in place of the plain one: ``LanesEngine``, on the CPU."""
    device: Literal["cpu", "cuda"] = "cpu"
    gpu_memory_bytes: int | None = None
    """Most that the CUDA arena of a session may hold: activations, since weights and caches lie outside it."""
    cpu_fallback: bool = False
    """Whether what has no CUDA kernel may run on the processor; else it is an error at load."""
    cuda_graph: bool = False
    """Replay bodies and heads of few rows as CUDA graphs, one for each shape."""
    gpu_stream: int | None = None
    """Address of a ``cudaStream_t`` for all sessions; ``None``: each has its own."""
    keeps_hidden: bool = False
    """Keep the hidden row behind each cache entry, for a drafter that reads them: hidden_size floats a token."""
