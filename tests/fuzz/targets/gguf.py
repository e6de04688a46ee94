"""A GGUF: its header, every tensor in it, and the Gemma that these are."""

from __future__ import annotations

from pathlib import Path
from random import Random

from edge_runtime.errors import CheckpointError
from export.checkpoint import Checkpoint, MappedTensor, StoredTensor, effective_norm, gguf_checkpoint
from export.gguf_blocks import carry
from export.gguf_file import GgufFile, open_gguf

from ..gemma_seeds import gguf_gemma, gguf_of
from ..gguf_bytes import BLOCKS, spoilt
from ..judge import Judge

REFUSAL = CheckpointError
NAME = "input.gguf"
_SMALL = [(0, 1, 30), (2, 3), (6, 7, 8), (10, 11), (12, 13), (14,)]


def seeds() -> list[bytes]:
    """Small files with a tensor of each type, and whole Gemmas in those of them that a row of 32 fills."""
    small = [gguf_of([(kind, 2 * values) for kind in kinds for values in (BLOCKS[kind][0],)]) for kinds in _SMALL]
    return [one.packed() for one in (*small, *small, gguf_gemma(), gguf_gemma(8), gguf_gemma(2, rich=True))]


def mutate(data: bytes, rng: Random) -> bytes:
    return spoilt(data, rng)


def read(judge: Judge, path: Path) -> None:
    file = judge.attempt(open_gguf, path)
    if file is None:
        return
    for name in file.tensors:
        tensor = judge.attempt(_mapped, file, name)
        if tensor is not None:
            judge.attempt(read_tensor, tensor)
    checkpoint = judge.attempt(gguf_checkpoint, file) if "token_embd.weight" in file.tensors else None
    if checkpoint is not None:
        read_checkpoint(judge, checkpoint)


def _mapped(file: GgufFile, name: str) -> MappedTensor:
    return StoredTensor(name, file.path, file.tensors[name], file.mapping).mapped(name)


def read_tensor(tensor: MappedTensor) -> None:
    rows = tensor.shape[0]
    found = tensor.rows(0, rows)
    assert found.shape == tensor.shape
    blocks = tensor.raw_blocks(0, rows)
    if blocks is not None:
        carry(tensor.kind, blocks, tensor.shape[1])


def read_checkpoint(judge: Judge, checkpoint: Checkpoint) -> None:
    for name in checkpoint.names():
        judge.attempt(read_tensor, checkpoint.tensor(name))
    judge.attempt(effective_norm, checkpoint, "final_norm")
