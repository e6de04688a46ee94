"""A Gemma of transformers over NF4 weights: one file becomes a body and a head. Knows no slots and no requests.

The recipe is the first source article's: nf4 in blocks of 64, float16 products, no double quantisation, bytes as
storage. transformers says in which order things happen; products, caches and attention are in its place:

- A product is bitsandbytes', its input cast to the compute dtype and its output back to float32. So the residual stream
  and the norms are float32, and the residual of a Gemma 3, which passes float16's 65504, overflows nothing.
- Keys and values go into caches that the caller owns, at the positions that he says, and a row sees what he says.

On a CPU the compute dtype is float32: float16 products are slow there, and bitsandbytes has no kernel for them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from ..errors import BundleError, ConfigError, first_line

Device = Literal["cpu", "cuda"]
BLOCK = 64
FORMAT = "edge-runtime nf4 1"
"""What the file's metadata says under ``format``."""
_ATTENTION = "edge_runtime"
_FAMILIES = {"gemma2": ("Gemma2Config", "Gemma2Model"), "gemma3_text": ("Gemma3TextConfig", "Gemma3TextModel")}
_SIZES = ("hidden_size", "intermediate_size", "head_dim",
          "num_hidden_layers", "num_attention_heads", "num_key_value_heads")  # fmt: skip
_CAST_ROWS = 16384
_UNBOUNDED = ("o_proj", "down_proj")
"""Products whose input no norm has bounded: in float16 it is scaled by its largest value first."""


@dataclass(slots=True)
class Sight:
    """What the rows of one forward see of the layers with one window."""

    first: int
    """Entries before it are seen by no row."""
    hidden: NDArray[np.bool_] | None
    """[rows, entries from ``first`` on] what a row does not see; ``None``: each row sees all."""


@dataclass(slots=True)
class Step:
    """Where a forward stands; the attention of each layer reads it."""

    position: int = 0
    caches: Sequence[tuple[Any, Any]] = ()
    """[layers] keys and values [kv_heads, capacity, head_dim] of the slot, tensors."""
    first: Mapping[int | None, int] = field(default_factory=dict)
    hidden: Mapping[int | None, Any] = field(default_factory=dict)
    """By window, as in ``Sight``, on the device."""


class Nf4Model:
    """One model on one device."""

    def __init__(self, path: Path, device: Device, windows: Sequence[int | None], vocab_size: int) -> None:
        """``windows``: of each layer. Raises ``BundleError`` (the file) and ``ConfigError`` (this machine)."""
        torch, transformers = require_packages()
        self._torch = torch
        refuse_missing_device(torch, device)
        self.device = device
        self.compute: Any = torch.float16 if device == "cuda" else torch.float32
        self._step = Step()
        settings, tensors = _read(path, device)
        config_name, model_name = _FAMILIES[settings.pop("model_type")]
        if settings.get("num_hidden_layers") != len(windows):
            found = f"{settings.get('num_hidden_layers')} layers"
            raise BundleError(f"{path}: {found:.80}, and the manifest says {len(windows)}")
        try:
            config = getattr(transformers, config_name)(**settings)
            self._final_softcap = config.final_logit_softcapping
            self._embed_scale = float(config.hidden_size) ** 0.5
            self._model = self._empty(transformers, getattr(transformers, model_name), config)
            self._table = tensors.pop("embed_tokens.weight")
            # The embedding is the head as well, but for one of fewer rows.
            self._head = tensors.pop("head.weight", self._table)
            self._fill(tensors)
        except Exception as problem:  # whatever transformers and torch make of settings that no model has
            raise BundleError(f"{path} does not load: {first_line(problem)}") from problem
        if self._head.shape != (vocab_size, config.hidden_size):
            raise BundleError(f"{path}: a head of {tuple(self._head.shape)}, not what the manifest says")
        for index, (layer, window) in enumerate(zip(self._model.layers, windows, strict=True)):
            layer.self_attn.edge_attention = _Attention(torch, self._step, index, window, self.compute)

    @property
    def tokens(self) -> int:
        """Ids that can be fed: rows of the embedding."""
        return int(self._table.shape[0])

    def body(
        self, ids: NDArray[np.int64], places: NDArray[np.int64], position: int,
        caches: Sequence[tuple[Any, Any]], sight: Mapping[int | None, Sight],
    ) -> Any:  # fmt: skip
        """[T] -> [T, hidden_size] float32 after the final norm, a tensor. Entries are written from ``position`` on.

        ``places`` [T]: where each token stands in the text, as its rotation sees it.
        """
        torch, step = self._torch, self._step
        step.position, step.caches = position, caches
        step.first = {window: one.first for window, one in sight.items()}
        step.hidden = {
            window: None if one.hidden is None else torch.from_numpy(one.hidden).to(self.device)
            for window, one in sight.items()
        }
        rows = self._table[torch.from_numpy(ids).to(self.device)].float() * self._embed_scale
        output = self._model(
            inputs_embeds=rows[None],
            position_ids=torch.from_numpy(places)[None].to(self.device),
            # Ours knows what is seen; without a mapping the model would make masks of its own.
            attention_mask={"full_attention": None, "sliding_attention": None},
            use_cache=False,
        )
        return output.last_hidden_state[0]

    def logits(self, hidden: Any) -> Any:
        """[R, hidden_size] -> [R, vocab_size] float32 after the final softcap, tensors."""
        # On a CPU in float32, a few thousand rows at a time: all of them would be a copy twice as large as the table.
        linear, rows = self._torch.nn.functional.linear, hidden.to(self.compute)
        step = len(self._head) if self.compute == self._head.dtype else _CAST_ROWS
        parts = [linear(rows, part.to(self.compute)).float() for part in self._head.split(step)]
        logits = parts[0] if len(parts) == 1 else self._torch.cat(parts, dim=1)
        cap = self._final_softcap
        return logits if cap is None else self._torch.tanh(logits / cap) * cap

    def _empty(self, transformers: Any, kind: Any, config: Any) -> Any:
        """The modules without their weights, which would be four times what there will be."""
        torch = self._torch
        transformers.AttentionInterface.register(_ATTENTION, _attend)
        config._attn_implementation = _ATTENTION
        with torch.device("meta"):
            model = kind(config).eval()
        # Its buffers are computed, not stored.
        model.rotary_emb = type(model.rotary_emb)(config=config).to(self.device)
        model.embed_tokens = torch.nn.Identity()
        return model

    def _fill(self, tensors: dict[str, Any]) -> None:
        torch = self._torch
        for name in [name for name in tensors if name.endswith(".packed")]:
            path = name.removesuffix(".packed")
            owner, _, attribute = path.rpartition(".")
            parent = self._model.get_submodule(owner)
            shape = (getattr(parent, attribute).out_features, getattr(parent, attribute).in_features)
            packed, scales = tensors.pop(name), tensors.pop(f"{path}.scales")
            if packed.shape != (shape[0], shape[1] // 2) or scales.shape != (shape[0], shape[1] // BLOCK):
                raise ValueError(f"{path} is not {shape[0]} rows of {shape[1]}")
            # A plain attribute: a module would want parameters, which bytes are not.
            delattr(parent, attribute)
            guarded = attribute in _UNBOUNDED and self.compute == torch.float16
            setattr(parent, attribute, _Product(packed, scales, shape, self.compute, guarded))
        for name in list(tensors):
            owner, _, attribute = name.rpartition(".")
            norm = torch.nn.Parameter(tensors.pop(name).float(), requires_grad=False)
            if getattr(self._model.get_submodule(owner), attribute).shape != norm.shape:
                raise ValueError(f"{name} has {tuple(norm.shape)} values")
            setattr(self._model.get_submodule(owner), attribute, norm)
        for name, tensor in [*self._model.named_parameters(), *self._model.named_buffers()]:
            if tensor.is_meta:
                raise ValueError(f"{name} is missing")


class _Product:
    """x [..., K] -> x @ W^T [..., N], W in NF4."""

    def __init__(self, packed: Any, scales: Any, shape: tuple[int, int], compute: Any, guarded: bool) -> None:
        import bitsandbytes
        import torch

        functional = bitsandbytes.functional
        self._functional, self._compute, self._guarded = functional, compute, guarded
        self._multiply: Any = bitsandbytes.matmul_4bit
        self._linear: Any = torch.nn.functional.linear
        self._packed = packed.reshape(-1, 1)
        self._state = functional.QuantState(
            absmax=scales.reshape(-1),
            shape=torch.Size(shape),
            code=functional.get_4bit_type("nf4", device=packed.device),
            blocksize=BLOCK,
            quant_type="nf4",
            dtype=compute,
        )

    def __call__(self, x: Any) -> Any:
        factor = None
        if self._guarded:
            factor = x.abs().amax(dim=-1, keepdim=True).clamp(min=1.0)
            x = x / factor
        x = x.to(self._compute)
        if x.is_cuda:
            product = self._multiply(x, self._packed.t(), quant_state=self._state)
        else:
            # bitsandbytes' own way on a CPU is bfloat16 where the processor has it: other numbers on another machine.
            product = self._linear(x, self._functional.dequantize_4bit(self._packed, self._state))
        product = product.float()
        return product if factor is None else product * factor


class _Attention:
    """Of one layer, over the cache that the step names."""

    def __init__(self, torch: Any, step: Step, layer: int, window: int | None, compute: Any) -> None:
        self._torch, self._step, self._layer, self._window, self._compute = torch, step, layer, window, compute

    def __call__(self, query: Any, key: Any, value: Any, scale: float, softcap: float | None) -> Any:
        """[1, heads, T, head_dim] and [1, kv_heads, T, head_dim] -> [1, T, heads, head_dim]"""
        torch, step = self._torch, self._step
        keys, values = step.caches[self._layer]
        heads, rows, dim = query.shape[1:]
        kv_heads, stop = keys.shape[0], step.position + query.shape[2]
        keys[:, step.position : stop] = key[0]
        values[:, step.position : stop] = value[0]
        first = step.first[self._window]
        seen_keys = keys[:, first:stop].to(self._compute)
        asked = (query[0] * scale).to(self._compute).reshape(kv_heads, -1, dim)
        scores = torch.matmul(asked, seen_keys.transpose(1, 2)).float()
        if softcap is not None:
            scores = torch.tanh(scores / softcap) * softcap
        hidden = step.hidden[self._window]
        if hidden is not None:
            scores = scores.view(heads, rows, -1).masked_fill(hidden, float("-inf")).view(scores.shape)
        weights = torch.softmax(scores, dim=-1).to(self._compute)
        mixed = torch.matmul(weights, values[:, first:stop].to(self._compute))
        return mixed.view(heads, rows, dim).transpose(0, 1)[None].to(query.dtype)


def _attend(
    module: Any, query: Any, key: Any, value: Any, attention_mask: Any, *,
    scaling: float, softcap: float | None = None, **_: Any,
) -> tuple[Any, None]:  # fmt: skip
    """What transformers calls in each layer."""
    return module.edge_attention(query, key, value, scaling, softcap), None


def require_packages() -> tuple[Any, Any]:
    """torch and transformers, imported. Raises ``ConfigError``."""
    try:
        import bitsandbytes  # noqa: F401  (what the products need)
        import torch
        import transformers
    except ImportError as problem:
        wanted = "pip install 'edge-runtime[nf4]'"
        raise ConfigError(f"an nf4 bundle needs torch, transformers and bitsandbytes ({wanted}): {problem}") from None
    return torch, transformers


def refuse_missing_device(torch: Any, device: Device) -> None:
    if device == "cuda" and not torch.cuda.is_available():
        # Never fall back in silence: a model that was meant for the GPU must not crawl on the CPU.
        raise ConfigError("device 'cuda': this torch has no CUDA device")


def try_product(device: Device) -> None:
    """One small 4-bit product: some wheels import well and have no kernel for the GPU. Raises ``ConfigError``."""
    torch, _ = require_packages()
    refuse_missing_device(torch, device)
    compute = torch.float16 if device == "cuda" else torch.float32
    try:
        packed = torch.full((BLOCK, BLOCK // 2), 0xFF, dtype=torch.uint8, device=device)
        scales = torch.ones((BLOCK, 1), dtype=torch.float32, device=device)
        product = _Product(packed, scales, (BLOCK, BLOCK), compute, False)
        found = product(torch.ones((1, BLOCK), device=device)).cpu()
    except Exception as problem:  # whatever a foreign binary may raise
        first = first_line(problem)
        raise ConfigError(f"bitsandbytes runs no 4-bit product on {device}: {first}") from problem
    if not bool((found == BLOCK).all()):
        raise ConfigError(f"bitsandbytes computes 4-bit products wrongly on {device}")


def _read(path: Path, device: Device) -> tuple[dict[str, Any], dict[str, Any]]:
    """Settings of transformers' config, and tensors by name."""
    import safetensors

    try:
        with safetensors.safe_open(str(path), framework="pt", device=device) as file:
            metadata = file.metadata() or {}
            if metadata.get("format") != FORMAT:
                raise BundleError(f"{path}: not {FORMAT!r} but {metadata.get('format')!r}; export the bundle again")
            settings = json.loads(metadata["config"])
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  (not a mapping)
    except (OSError, KeyError, ValueError, RuntimeError, safetensors.SafetensorError) as problem:
        raise BundleError(f"{path} does not load: {first_line(problem)}") from problem
    if not isinstance(settings, dict) or settings.get("model_type") not in tuple(_FAMILIES):
        raise BundleError(f"{path}: neither a Gemma 2 nor a Gemma 3")
    wrong = next((key for key in _SIZES if type(settings.get(key)) is not int or settings[key] < 1), None)
    if wrong is not None:
        raise BundleError(f"{path}: {wrong} is no size: {settings.get(wrong)!r:.80}")
    return settings, tensors
