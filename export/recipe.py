"""What to export and how: the keys of a recipe. Knows neither checkpoints nor graphs.

A recipe is a YAML mapping; ``edge-export recipe --explain`` prints the text beside each key below.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from edge_runtime.bundle import MOST_LANES
from edge_runtime.errors import ConfigError
from edge_runtime.plain_yaml import read_yaml
from edge_runtime.schema import structure

Precision = Literal["exact", "fp32", "fp16", "int8", "int4"]
EngineName = Literal["onnxruntime", "tensorrt", "nf4"]
TENSORRT: EngineName = "tensorrt"
NF4: EngineName = "nf4"
_OF_TENSORRT = ("fp32", "fp16", "int4")
_BLOCK, _BLOCK_OF_TENSORRT = 32, 64
_MOST_CANDIDATES_OF_TENSORRT = 3840


def _key(default: Any, text: str) -> Any:
    return field(default=default, metadata={"help": text})


def _required(text: str) -> Any:
    return field(metadata={"help": text})


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftRecipe:
    source: str | None = _key(None, "checkpoint of the draft; the target's own when left out, pruned by the keys below")
    layers: int | None = _key(None, "keep the first N layers of the checkpoint")
    vocab_rows: int | None = _key(None, "keep the R most frequent rows of the head (rounded up to a multiple of 64)")
    precision: Precision | None = _key(None, "as for the target, whose precision is the default")
    head_precision: Precision | None = _key(None, "as for the target")
    frequency_corpus: str | None = _key(
        None, "text file whose tokens rank the rows of a reduced head; by id alone when left out"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class SelfDraftRecipe:
    layers: int = _required("the target's first N layers draft; what they read is stored already")
    vocab_rows: int | None = _key(
        None, "keep the R most frequent rows of the head (rounded up to a multiple of 64); the target's own if left out"
    )
    frequency_corpus: str | None = _key(None, "text file whose tokens rank those rows; by id alone when left out")


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportRecipe:
    source: str = _required("checkpoint of the target: a .gguf file, or a directory with config.json and *.safetensors")
    output: str = _required("directory of the bundle; it must not exist unless an overwrite is asked for")
    engine: EngineName = _key(
        "onnxruntime",
        "what runs the bundle; tensorrt: graphs for TensorRT 10.3 and later, in fp32, fp16 or symmetric int4, of "
        "Gemma 2 and 3 (docs/tensorrt.md); nf4: torch and bitsandbytes, 4-bit weights of theirs and a float16 table "
        "(docs/gpu.md)",
    )
    name: str | None = _key(None, "name in the manifest; the output's own name when left out")
    precision: Precision = _key(
        "exact",
        "exact: the blocks of a GGUF carried over unchanged; fp32; fp16 (weights, activations and cache; for GPUs); "
        "int8, int4: block weights with a scale, made here from any checkpoint",
    )
    head_precision: Precision | None = _key(
        None,
        "of the table that embedding and head share; when precision is int4: int8, for tensorrt fp16; otherwise the "
        "precision",
    )
    accuracy_level: Literal[1, 4] = _key(
        4,
        "of products with block weights: 4 rounds activations to 8 bits per block (fast), 1 keeps them in float32 "
        "(2.4 to 87 times slower on a CPU, for reference)",
    )
    block_size: Literal[32, 64, 128] | None = _key(
        None, "weights that share a scale, for int8 and int4; 32 when left out, 64 for tensorrt (which takes 64 or 128)"
    )
    screen_head: bool = _key(
        True, "beside an 8-bit head, a 4-bit copy that finds the best rows, which the 8-bit one then scores exactly"
    )
    symmetric: bool = _key(False, "int4 without zero points, which TensorRT and the fast CUDA path need")
    half: bool = _key(False, "float16 activations and cache around int8 or int4 weights (for GPUs; implied by fp16)")
    calibration: str = _key(
        "builtin",
        "text file for int4, whose activations weigh the rounding errors (GPTQ); builtin: a mixed text that comes with "
        "edge-export; none: round every weight by itself",
    )
    trees: bool = _key(
        False, "a target that verifies alternatives side by side; on a CPU, and not with half (attention takes a mask)"
    )
    lanes: int | None = _key(
        None,
        "a second body for steps of so many sessions at once, over the same weights (docs/batch.md); Gemma 2 and 3 for "
        "onnxruntime, without trees",
    )
    max_context: int = _key(4096, "longest context the bundle can serve; its rotary tables grow with it")
    candidates: int = _key(64, "C: ids that the engine returns per row with their logits")
    draft: DraftRecipe | None = _key(None, "a second, small model that drafts for the first")
    self_draft: SelfDraftRecipe | None = _key(None, "the target's first layers draft, by early exit")
    mtp: str | None = _key(
        None, "directory of a multi-token drafter for this target: one that was trained here, or a Gemma 4 assistant"
    )
    mtp_vocab_rows: int = _key(
        32768, "rows that the dense head of an assistant keeps, the most frequent ones; an ordered head keeps them all"
    )
    mtp_frequency_corpus: str | None = _key(None, "text file whose tokens rank those rows; by id alone when left out")
    heads: str | None = _key(None, "directory of parallel heads that were fitted to this target")
    drafter_precision: Literal["int8", "fp32", "fp16"] | None = _key(
        None, "of mtp and heads; int8 unless the target is in fp32 or fp16; for tensorrt fp16 unless it is in fp32"
    )

    def __post_init__(self) -> None:
        if self.max_context < 1:
            raise ConfigError(f"max_context: {self.max_context} is not a length")
        if self.trees and (self.half or self.precision == "fp16"):
            raise ConfigError("trees: not with half or fp16")
        if self.lanes is not None and not 2 <= self.lanes <= MOST_LANES:
            raise ConfigError(f"lanes: from 2 to {MOST_LANES}, not {self.lanes}")
        if self.lanes is not None and (self.engine != "onnxruntime" or self.trees):
            raise ConfigError("lanes: only for engine onnxruntime, and not with trees; leave it out")
        if self.engine == NF4:
            _refuse_for_nf4(self)
        if self.mtp_vocab_rows < 1:
            raise ConfigError(f"mtp_vocab_rows: {self.mtp_vocab_rows} is not a count")
        if self.candidates < 1:
            raise ConfigError(f"candidates: {self.candidates} is not a count")
        if self.engine == TENSORRT:
            for problem in self._unfit_for_tensorrt():
                raise ConfigError(f"engine: tensorrt: {problem}")

    def _unfit_for_tensorrt(self) -> Iterator[str]:
        of_draft = self.draft or DraftRecipe()
        given: dict[str, str | None] = {"precision": self.precision, "head_precision": self.head_precision}
        given |= {"draft.precision": of_draft.precision, "draft.head_precision": of_draft.head_precision}
        given |= {"drafter_precision": self.drafter_precision}
        for key, precision in given.items():
            if precision is not None and precision not in _OF_TENSORRT:
                yield f"{key} must be {', '.join(_OF_TENSORRT[:-1])} or {_OF_TENSORRT[-1]}, not {precision}"
            elif precision is not None and (precision == "fp32") != (self.precision == "fp32"):
                yield f"{key}: {precision} does not go with precision: {self.precision} (all is fp32, or nothing)"
        if self.scale_block not in (64, 128):
            yield f"block_size must be 64 or 128, not {self.scale_block}"
        if self.candidates > _MOST_CANDIDATES_OF_TENSORRT:
            yield f"candidates: {self.candidates}, but its TopK gives {_MOST_CANDIDATES_OF_TENSORRT} at most"
        for key, asked in (("trees", self.trees), ("heads", self.heads)):
            if asked:
                yield f"{key} is not there for it yet; leave it out"

    @property
    def scale_block(self) -> int:
        """Weights that share a scale."""
        return self.block_size or (_BLOCK_OF_TENSORRT if self.engine == TENSORRT else _BLOCK)

    @property
    def without_zero_points(self) -> bool:
        return self.symmetric or self.engine == TENSORRT

    @property
    def in_half(self) -> bool:
        """Whether activations and cache are float16."""
        return self.half or self.precision == "fp16" or (self.engine == TENSORRT and self.precision != "fp32")

    def head_default(self, precision: Precision) -> Precision:
        """Of a table beside products of ``precision``: a third of a small model and the most sensitive matrix of it, so
        that 4 bits cost quality there first."""
        if precision != "int4":
            return precision
        return "fp16" if self.engine == TENSORRT else "int8"

    @property
    def trained_precision(self) -> Precision:
        """Of drafters that were trained: small beside their target, and 4 bits cost acceptance first."""
        if self.drafter_precision is not None:
            return self.drafter_precision
        if self.precision in ("fp32", "fp16"):
            return self.precision
        return "fp16" if self.engine == TENSORRT else "int8"


def _refuse_for_nf4(recipe: ExportRecipe) -> None:
    """What that engine has no use for is not ignored in silence."""
    drafts = (recipe.self_draft, recipe.mtp, recipe.heads)
    if any(one is not None for one in drafts):
        raise ConfigError("engine: nf4 runs whole models alone: no self_draft, mtp or heads (draft is one)")
    of_draft = recipe.draft or DraftRecipe()
    own: tuple[object, ...] = (recipe.head_precision, of_draft.precision, of_draft.head_precision)
    own += (recipe.half, recipe.trees, recipe.block_size, recipe.symmetric, recipe.drafter_precision)
    if recipe.precision != "exact" or recipe.calibration != "builtin" or any(own):
        raise ConfigError(
            "engine: nf4 has precisions of its own: leave precision, head_precision, block_size, symmetric, half, "
            "calibration and trees out"
        )


def read_recipe(path: Path, overrides: Mapping[str, Any] | None = None) -> ExportRecipe:
    """The recipe in a YAML file. Raises ``ConfigError`` with one line that names the key."""
    data = read_yaml(path)
    if not isinstance(data, dict):
        raise ConfigError(f"{path}: a recipe is a mapping of keys")
    wanted = dict(overrides or {})
    if isinstance(data.get("draft"), dict) and isinstance(wanted.get("draft"), dict):
        wanted["draft"] = data["draft"] | wanted["draft"]
    return structure(ExportRecipe, data | wanted, ConfigError, str(path))


def explain() -> Iterator[tuple[str, str, str]]:
    """(key, default, what it does) of every key."""
    yield from _explain(ExportRecipe, "")
    yield from _explain(DraftRecipe, "draft.")
    yield from _explain(SelfDraftRecipe, "self_draft.")


def _explain(cls: type[Any], prefix: str) -> Iterator[tuple[str, str, str]]:
    for key in dataclasses.fields(cls):
        default = "required" if key.default is dataclasses.MISSING else str(key.default)
        yield prefix + key.name, default, key.metadata["help"]
