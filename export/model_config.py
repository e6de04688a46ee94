"""What a Gemma text graph needs to know; Gemma 4's is read by ``gemma4_config``. Knows no tensors and opens no files.

Two dialects say the same: the ``config.json`` of a Hugging Face checkpoint (old keys, and the ``layer_types``
and ``rope_parameters`` keys of transformers 5) and the metadata of a GGUF file. Whatever this graph could not
reproduce is refused here, by name, before a tensor is read.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from edge_runtime.errors import CheckpointError
from export.config_reader import Reader, token_ids

_LOCAL_ROPE_THETA = 10_000.0
_GLOBAL_ROPE_THETA = 1_000_000.0
_GEMMA3_PATTERN = 6
_GEMMA2_PATTERN = 2
_LAYER_TYPES = {"sliding_attention", "full_attention"}

# Defaults of transformers' Gemma2Config and Gemma3TextConfig: published configs leave such keys out.
_HF_DEFAULTS: dict[str, dict[str, object]] = {
    "gemma2": {
        "vocab_size": 256_000,
        "hidden_size": 2304,
        "intermediate_size": 9216,
        "num_hidden_layers": 26,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "max_position_embeddings": 8192,
        "rms_norm_eps": 1e-6,
        "query_pre_attn_scalar": 256,
        "sliding_window": 4096,
        "attn_logit_softcapping": 50.0,
        "final_logit_softcapping": 30.0,
        "bos_token_id": 2,
        "eos_token_id": 1,
        "tie_word_embeddings": True,
    },
}
_HF_DEFAULTS["gemma3"] = _HF_DEFAULTS["gemma2"] | {
    "vocab_size": 262_208,
    "max_position_embeddings": 131_072,
    "attn_logit_softcapping": None,
    "final_logit_softcapping": None,
}
_HF_FAMILY = {"gemma2": "gemma2", "gemma3_text": "gemma3", "gemma3": "gemma3"}
_HF_FAMILY |= dict.fromkeys(("gemma4", "gemma4_text", "gemma4_unified", "gemma4_unified_text"), "gemma4")
_HF_ARCHITECTURES = {
    "Gemma2ForCausalLM": "gemma2",
    "Gemma3ForCausalLM": "gemma3",
    "Gemma3ForConditionalGeneration": "gemma3",
    "Gemma4ForCausalLM": "gemma4",
    "Gemma4ForConditionalGeneration": "gemma4",
    "Gemma4UnifiedForCausalLM": "gemma4",
    "Gemma4UnifiedForConditionalGeneration": "gemma4",
}
ASSISTANTS = frozenset({"gemma4_assistant", "gemma4_unified_assistant"})
"""Model types of Gemma 4's drafters, which are no model by themselves."""
# llama.cpp tells the 27B models by their depth; only they scale queries by hidden_size / num_heads.
_GGUF_27B_LAYERS = {"gemma2": 46, "gemma3": 62}


@dataclass(frozen=True, slots=True)
class LayerShape:
    """What a layer of Gemma 4 has to itself."""

    head_dim: int
    kv_heads: int
    ffn_size: int
    rotated: int
    """Pairs of a head's dimensions that turn with the position, of head_dim / 2; the others stand still."""
    values_from_keys: bool = False
    """The values are the keys ahead of their norm."""
    donor: int | None = None
    """The layer whose keys and values it attends to; ``None``: its own."""


@dataclass(frozen=True, slots=True)
class LayerConfig:
    """Attention of one layer."""

    window: int | None
    """Keys that a query sees, its own included; ``None`` for a global layer."""
    rope_theta: float
    rope_scale: float = 1.0
    """Linear factor: positions are divided by it before the rotation."""
    shape: LayerShape | None = None
    """``None`` where all layers are as the model says."""


@dataclass(frozen=True, slots=True)
class GemmaConfig:
    """One text model. Head and embedding are always tied."""

    name: str
    family: str
    """``"gemma2"``, ``"gemma3"`` or ``"gemma4"``"""
    vocab_size: int
    """Rows of the embedding; may exceed the tokenizer's ids (padding)."""
    hidden_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    ffn_size: int
    rms_eps: float
    query_scale: float
    """Multiplied onto q.k."""
    attn_softcap: float | None
    final_softcap: float | None
    qk_norm: bool
    layers: tuple[LayerConfig, ...]
    embed_scale: float
    """sqrt(hidden_size), unrounded (transformers rounds it to bf16 when the weights are bf16)."""
    max_position: int
    """Tokens of context."""
    bos_id: int | None
    eos_ids: tuple[int, ...]
    per_layer_size: int = 0
    """Width of what a token says to every single layer, from a table of its own; 0: nothing."""

    def __post_init__(self) -> None:
        if not self.layers:
            raise CheckpointError(f"{self.name}: the model has no layers")
        if self.num_heads % self.num_kv_heads:
            uneven = f"{self.num_heads} heads do not share {self.num_kv_heads} KV heads evenly"
            raise CheckpointError(f"{self.name}: {uneven}")

    @property
    def num_layers(self) -> int:
        return len(self.layers)

    @property
    def num_caches(self) -> int:
        """Layers with keys and values of their own."""
        return sum(layer.shape is None or layer.shape.donor is None for layer in self.layers)

    @classmethod
    def from_hf(
        cls, config: Mapping[str, object], generation: Mapping[str, object] | None = None, name: str = "gemma"
    ) -> GemmaConfig:
        """Read ``config.json`` (and the stop ids of ``generation_config.json``, where they differ).

        Raises:
            CheckpointError: another family, a feature that the graph lacks, or a malformed value.
        """
        return _from_hf(config, generation or {}, name)

    @classmethod
    def from_gguf(cls, meta: Mapping[str, object], name: str = "gemma") -> GemmaConfig:
        """Read GGUF metadata; what the format leaves out are constants of the family (as in llama.cpp).

        Raises:
            CheckpointError: another family, a feature that the graph lacks, or a malformed value.
        """
        return _from_gguf(meta, name)


def _from_hf(config: Mapping[str, object], generation: Mapping[str, object], name: str) -> GemmaConfig:
    family = _hf_family(config, name)
    if family == "gemma4":
        from export.gemma4_config import read_gemma4  # which is made of what this module defines

        return read_gemma4(config, generation, name)
    nested = config.get("text_config")
    given = nested if isinstance(nested, Mapping) else config
    read = Reader(_HF_DEFAULTS[family] | dict(given), name)
    refuse_hf_features(config, read)
    layers = read.depth("num_hidden_layers")
    hidden = read.size("hidden_size")
    return GemmaConfig(
        name=name,
        family=family,
        vocab_size=read.size("vocab_size"),
        hidden_size=hidden,
        num_heads=read.size("num_attention_heads"),
        num_kv_heads=read.size("num_key_value_heads"),
        head_dim=read.size("head_dim"),
        ffn_size=read.size("intermediate_size"),
        rms_eps=read.number("rms_norm_eps"),
        query_scale=read.number("query_pre_attn_scalar") ** -0.5,
        attn_softcap=read.optional_number("attn_logit_softcapping"),
        final_softcap=read.optional_number("final_logit_softcapping"),
        qk_norm=family == "gemma3",
        layers=_hf_layers(read, family, layers),
        embed_scale=math.sqrt(hidden),
        max_position=read.size("max_position_embeddings"),
        bos_id=next(iter(token_ids(read.get("bos_token_id"))), None),
        eos_ids=stop_ids(config, generation, read),
    )


def stop_ids(config: Mapping[str, object], generation: Mapping[str, object], read: Reader) -> tuple[int, ...]:
    eos = token_ids(generation.get("eos_token_id"))
    # A multimodal config keeps its stop ids outside text_config; the text default there is not the last word.
    eos += token_ids(config["eos_token_id"] if "eos_token_id" in config else read.get("eos_token_id"))
    return tuple(dict.fromkeys(eos))


def _hf_family(config: Mapping[str, object], name: str) -> str:
    if str(config.get("model_type")) in ASSISTANTS:
        raise CheckpointError(f"{name}: a Gemma 4 assistant is a drafter: name it as mtp in the recipe of its target")
    architectures = config.get("architectures")
    if isinstance(architectures, Sequence) and not isinstance(architectures, str) and architectures:
        found = str(architectures[0])
        if found not in _HF_ARCHITECTURES:
            raise CheckpointError(f"{name}: architecture {found} is not supported (Gemma 2, 3 and 4 are)")
        return _HF_ARCHITECTURES[found]
    model_type = str(config.get("model_type"))
    if model_type not in _HF_FAMILY:
        raise CheckpointError(f"{name}: model_type {model_type} is not supported (Gemma 2, 3 and 4 are)")
    return _HF_FAMILY[model_type]


def refuse_hf_features(config: Mapping[str, object], read: Reader) -> None:
    quantization = config.get("quantization_config") or read.get("quantization_config")
    if quantization:
        method = quantization.get("quant_method") if isinstance(quantization, Mapping) else quantization
        raise CheckpointError(f"{read.name}: already quantised ({method}); export needs floats or GGUF")
    activation = read.get("hidden_activation") or read.get("hidden_act") or "gelu_pytorch_tanh"
    if activation != "gelu_pytorch_tanh":
        raise CheckpointError(f"{read.name}: activation {activation} is not supported (gelu_pytorch_tanh is)")
    for feature in ("use_bidirectional_attention", "attention_bias"):
        if read.get(feature):
            raise CheckpointError(f"{read.name}: {feature} is not supported")


def _hf_layers(read: Reader, family: str, count: int) -> tuple[LayerConfig, ...]:
    types = layer_types(read, count, _GEMMA2_PATTERN if family == "gemma2" else _GEMMA3_PATTERN)
    sliding, full = _hf_rope(read, family)
    window = read.size("sliding_window") if "sliding_attention" in types else None
    return tuple(
        LayerConfig(window, *sliding) if kind == "sliding_attention" else LayerConfig(None, *full) for kind in types
    )


def layer_types(read: Reader, count: int, every: int) -> list[str]:
    """The kind of each layer; where none is named, every ``every``-th is a global one."""
    types = read.get("layer_types")
    if types is None:
        given = read.get("sliding_window_pattern")
        pattern = read.as_size("sliding_window_pattern", every if given is None else given)
        return ["sliding_attention" if (i + 1) % pattern else "full_attention" for i in range(count)]
    if not isinstance(types, list) or len(types) != count:
        raise CheckpointError(f"{read.name}: layer_types must be a list of {count} entries")
    unknown = set(map(str, types)) - _LAYER_TYPES
    if unknown:
        raise CheckpointError(f"{read.name}: layer type {min(unknown)} is not supported")
    return [str(kind) for kind in types]


def _hf_rope(read: Reader, family: str) -> tuple[tuple[float, float], tuple[float, float]]:
    """((theta, linear factor) of sliding layers, the same of full layers)."""
    parameters = read.get("rope_parameters")
    if isinstance(parameters, Mapping) and not parameters.keys().isdisjoint(_LAYER_TYPES):
        return (
            _rope(read, parameters.get("sliding_attention"), _LOCAL_ROPE_THETA),
            _rope(read, parameters.get("full_attention"), _GLOBAL_ROPE_THETA),
        )
    scaling = parameters if isinstance(parameters, Mapping) else read.get("rope_scaling")
    theta = read.get("rope_theta")
    default = _LOCAL_ROPE_THETA if family == "gemma2" else _GLOBAL_ROPE_THETA
    full = _rope(read, scaling, read.as_number("rope_theta", default if theta is None else theta))
    if family == "gemma2":
        return full, full
    local = read.get("rope_local_base_freq")
    # Scaling never touches Gemma 3's sliding layers.
    return (read.as_number("rope_local_base_freq", _LOCAL_ROPE_THETA if local is None else local), 1.0), full


def _rope(read: Reader, given: object, theta: float) -> tuple[float, float]:
    if given is None:
        return theta, 1.0
    if not isinstance(given, Mapping):
        raise CheckpointError(f"{read.name}: rope parameters must be a mapping, found {given!r}")
    kind = given.get("rope_type", given.get("type", "default"))
    if kind not in ("default", "linear"):
        raise CheckpointError(f"{read.name}: rope type {kind} is not supported (default and linear are)")
    base = read.as_number("rope_theta", given.get("rope_theta", theta))
    return base, read.as_number("rope factor", given.get("factor")) if kind == "linear" else 1.0


def _from_gguf(meta: Mapping[str, object], name: str) -> GemmaConfig:
    family = str(meta.get("general.architecture"))
    if family not in _GGUF_27B_LAYERS:
        raise CheckpointError(f"{name}: GGUF architecture {family} is not supported (gemma2 and gemma3 are)")
    read = Reader({key.removeprefix(f"{family}."): value for key, value in meta.items()}, name)
    title = meta.get("general.name")
    hidden, heads = read.size("embedding_length"), read.size("attention.head_count")
    layers, head_dim = read.depth("block_count"), read.size("attention.key_length")
    scalar = hidden / heads if layers == _GGUF_27B_LAYERS[family] else head_dim
    tokens = meta.get("tokenizer.ggml.tokens")
    vocab = read.get("vocab_size") or (len(tokens) if isinstance(tokens, list) else None)
    softcap = family == "gemma2"
    return GemmaConfig(
        name=str(title) if title else name,
        family=family,
        vocab_size=read.as_size("vocab_size", vocab),
        hidden_size=hidden,
        num_heads=heads,
        num_kv_heads=_uniform(read, "attention.head_count_kv"),
        head_dim=head_dim,
        ffn_size=_uniform(read, "feed_forward_length"),
        rms_eps=read.number("attention.layer_norm_rms_epsilon"),
        query_scale=scalar**-0.5,
        attn_softcap=read.optional_number("attn_logit_softcapping", 50.0 if softcap else None),
        final_softcap=read.optional_number("final_logit_softcapping", 30.0 if softcap else None),
        qk_norm=family == "gemma3",
        layers=_gguf_layers(read, family, layers),
        embed_scale=math.sqrt(hidden),
        max_position=read.size("context_length"),
        bos_id=next(iter(token_ids(meta.get("tokenizer.ggml.bos_token_id"))), None),
        eos_ids=_gguf_eos(meta, tokens),
    )


def _gguf_layers(read: Reader, family: str, count: int) -> tuple[LayerConfig, ...]:
    kind = read.get("rope.scaling.type") or "none"
    if kind not in ("none", "linear"):
        raise CheckpointError(f"{read.name}: rope scaling {kind} is not supported (linear is)")
    factor = read.optional_number("rope.scaling.factor") or read.optional_number("rope.scale_linear") or 1.0
    default = _LOCAL_ROPE_THETA if family == "gemma2" else _GLOBAL_ROPE_THETA
    full = LayerConfig(None, read.optional_number("rope.freq_base", default) or default, factor)
    window = read.size("attention.sliding_window")
    if family == "gemma2":
        sliding = LayerConfig(window, full.rope_theta, factor)
    else:
        local = read.optional_number("rope.freq_base_swa") or _LOCAL_ROPE_THETA
        sliding = LayerConfig(window, local, 1.0)
    pattern = read.get("attention.sliding_window_pattern")
    if isinstance(pattern, np.ndarray):
        if pattern.shape != (count,):
            raise CheckpointError(f"{read.name}: sliding_window_pattern must have {count} entries")
        return tuple(sliding if slides else full for slides in pattern)
    every = _GEMMA2_PATTERN if family == "gemma2" else _GEMMA3_PATTERN
    every = read.as_size("sliding_window_pattern", every if pattern is None else pattern)
    return tuple(sliding if (i + 1) % every else full for i in range(count))


def _gguf_eos(meta: Mapping[str, object], tokens: object) -> tuple[int, ...]:
    eos = token_ids(meta.get("tokenizer.ggml.eos_token_id")) + token_ids(meta.get("tokenizer.ggml.eot_token_id"))
    # The metadata names one stop id only; like llama.cpp, end of turn is found by its text.
    if isinstance(tokens, list) and "<end_of_turn>" in tokens:
        eos.append(tokens.index("<end_of_turn>"))
    return tuple(dict.fromkeys(eos))


def _uniform(read: Reader, key: str) -> int:
    value = read.get(key)
    if isinstance(value, np.ndarray):
        found = np.unique(value)
        if found.size != 1:
            raise CheckpointError(f"{read.name}: {key} differs between layers, which is not supported")
        value = found[0].item()
    return read.as_size(key, value)
