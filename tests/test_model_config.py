"""Model configuration from both dialects, and what it refuses by name."""

from __future__ import annotations

import pytest

from edge_runtime.errors import CheckpointError
from export.model_config import GemmaConfig, LayerConfig, LayerShape

TINY: dict[str, object] = {
    "architectures": ["Gemma3ForCausalLM"],
    "model_type": "gemma3_text",
    "vocab_size": 48,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 16,
    "query_pre_attn_scalar": 16,
    "sliding_window": 8,
    "max_position_embeddings": 64,
    "eos_token_id": [1, 106],
}


def test_old_gemma3_config_with_a_text_config() -> None:
    """The published gemma-3-4b-it config leaves most keys to their defaults."""
    config = GemmaConfig.from_hf(
        {
            "architectures": ["Gemma3ForConditionalGeneration"],
            "model_type": "gemma3",
            "eos_token_id": [1, 106],
            "text_config": {
                "hidden_size": 2560,
                "intermediate_size": 10240,
                "model_type": "gemma3_text",
                "num_hidden_layers": 34,
                "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
                "sliding_window": 1024,
            },
        },
        name="4b",
    )
    assert (config.vocab_size, config.num_heads, config.num_kv_heads, config.head_dim) == (262_208, 8, 4, 256)
    assert config.layers[0] == LayerConfig(1024, 10_000.0, 1.0)
    assert config.layers[5] == LayerConfig(None, 1_000_000.0, 8.0)
    assert sum(layer.window is None for layer in config.layers) == 5
    assert config.query_scale == 1 / 16
    assert config.eos_ids == (1, 106)
    assert config.qk_norm


def test_new_style_keys_say_the_same() -> None:
    keys = {"rope_theta": 5e5, "rope_local_base_freq": 2e4, "sliding_window_pattern": 2}
    old = GemmaConfig.from_hf(TINY | keys)
    new = GemmaConfig.from_hf(
        TINY
        | {
            "layer_types": ["sliding_attention", "full_attention"],
            "rope_parameters": {
                "sliding_attention": {"rope_type": "default", "rope_theta": 2e4},
                "full_attention": {"rope_type": "default", "rope_theta": 5e5},
            },
        }
    )
    assert old == new
    assert new.layers == (LayerConfig(8, 2e4), LayerConfig(None, 5e5))


def test_gemma2_defaults() -> None:
    config = GemmaConfig.from_hf(
        {"architectures": ["Gemma2ForCausalLM"], "model_type": "gemma2"}, {"eos_token_id": [1, 107]}
    )
    assert (config.attn_softcap, config.final_softcap, config.qk_norm) == (50.0, 30.0, False)
    assert config.layers[:2] == (LayerConfig(4096, 10_000.0), LayerConfig(None, 10_000.0))
    assert config.eos_ids == (1, 107)


def test_gguf_27b_scales_queries_by_hidden_over_heads() -> None:
    meta = {
        "general.architecture": "gemma3",
        "gemma3.embedding_length": 5376,
        "gemma3.block_count": 62,
        "gemma3.attention.head_count": 32,
        "gemma3.attention.head_count_kv": 16,
        "gemma3.attention.key_length": 128,
        "gemma3.feed_forward_length": 21504,
        "gemma3.attention.layer_norm_rms_epsilon": 1e-6,
        "gemma3.attention.sliding_window": 1024,
        "gemma3.context_length": 131072,
        "gemma3.rope.scaling.type": "linear",
        "gemma3.rope.scaling.factor": 8.0,
        "gemma3.vocab_size": 262208,
    }
    config = GemmaConfig.from_gguf(meta)
    assert config.query_scale == 168**-0.5
    assert config.layers[5] == LayerConfig(None, 1_000_000.0, 8.0)
    assert config.layers[0].rope_scale == 1.0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"architectures": ["Gemma3nForCausalLM"]}, "Gemma3nForCausalLM"),
        ({"architectures": ["LlamaForCausalLM"]}, "LlamaForCausalLM"),
        ({"architectures": None, "model_type": "gemma3n"}, "gemma3n"),
        ({"architectures": None, "model_type": "gemma4_assistant"}, "name it as mtp in the recipe of its target"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, "yarn"),
        ({"rope_scaling": {"rope_type": "linear"}}, "rope factor"),
        ({"layer_types": ["sliding_attention", "chunked_attention"]}, "chunked_attention"),
        ({"layer_types": ["full_attention"]}, "list of 2"),
        ({"hidden_activation": "relu"}, "relu"),
        ({"use_bidirectional_attention": True}, "bidirectional"),
        ({"quantization_config": {"quant_method": "bitsandbytes"}}, "bitsandbytes"),
        ({"hidden_size": "32"}, "hidden_size"),
        ({"num_key_value_heads": 3}, "evenly"),
        ({"num_hidden_layers": 2**30}, "num_hidden_layers"),
    ],
)
def test_unsupported_configs_are_named(change: dict[str, object], message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        GemmaConfig.from_hf(TINY | change)


E2B: dict[str, object] = {
    "architectures": ["Gemma4ForConditionalGeneration"],
    "model_type": "gemma4",
    "eos_token_id": [1, 106],
    "text_config": {
        "model_type": "gemma4_text",
        "hidden_size": 1536,
        "intermediate_size": 6144,
        "num_hidden_layers": 35,
        "num_attention_heads": 8,
        "num_key_value_heads": 1,
        "head_dim": 256,
        "global_head_dim": 512,
        "layer_types": (["sliding_attention"] * 4 + ["full_attention"]) * 7,
        "num_kv_shared_layers": 20,
        "use_double_wide_mlp": True,
        "final_logit_softcapping": 30.0,
    },
}
M12B: dict[str, object] = {
    "model_type": "gemma4_unified",
    "text_config": {
        "model_type": "gemma4_unified_text",
        "hidden_size": 3840,
        "intermediate_size": 15360,
        "num_hidden_layers": 48,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "num_global_key_value_heads": 1,
        "attention_k_eq_v": True,
        "use_bidirectional_attention": "vision",
    },
}


def test_gemma4_with_shared_keys_and_per_layer_tables() -> None:
    config = GemmaConfig.from_hf(E2B, name="e2b")
    assert (config.family, config.num_layers, config.num_caches, config.per_layer_size) == ("gemma4", 35, 15, 256)
    assert (config.query_scale, config.final_softcap, config.eos_ids) == (1.0, 30.0, (1, 106))
    assert config.layers[13] == LayerConfig(512, 10_000.0, 1.0, LayerShape(256, 1, 6144, rotated=128))
    assert config.layers[14] == LayerConfig(None, 1_000_000.0, 1.0, LayerShape(512, 1, 6144, rotated=64))
    assert config.layers[15].shape == LayerShape(256, 1, 12288, rotated=128, donor=13)
    assert config.layers[34].shape == LayerShape(512, 1, 12288, rotated=64, donor=14)


def test_dense_gemma4_whose_values_are_its_keys() -> None:
    config = GemmaConfig.from_hf(M12B)
    assert (config.num_caches, config.per_layer_size) == (48, 0)
    assert config.layers[0].window == 1024
    assert config.layers[4].shape == LayerShape(256, 8, 15360, rotated=128)
    assert config.layers[5].shape == LayerShape(512, 1, 15360, rotated=64, values_from_keys=True)


def test_gemma4_sizes_by_layer_say_the_same_as_by_kind() -> None:
    """As transformers writes them, zeros in front of the numbers included."""
    text = dict(M12B["text_config"])  # type: ignore[call-overload]
    del text["num_global_key_value_heads"]
    text["per_layer_config"] = {f"{i:02}": {"head_dim": 512, "num_key_value_heads": 1} for i in range(5, 48, 6)}
    assert GemmaConfig.from_hf(M12B | {"text_config": text}) == GemmaConfig.from_hf(M12B)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"enable_moe_block": True}, "mixture of experts"),
        ({"use_bidirectional_attention": "all"}, "bidirectional"),
        ({"num_kv_shared_layers": 35}, "none has keys of its own"),
        ({"num_kv_shared_layers": 31}, "no full_attention layer has any"),
        ({"vocab_size_per_layer_input": 1000}, "1000 rows for 262144 tokens"),
        ({"rope_parameters": {"full_attention": {"rope_type": "yarn"}}}, "yarn"),
        ({"per_layer_config": {"4": {"skip": ["mlp"]}}}, "per_layer_config of layer 4"),
        ({"num_key_value_heads": 3}, "evenly"),
    ],
)
def test_gemma4_variants_that_are_refused(change: dict[str, object], message: str) -> None:
    text = E2B["text_config"] | change  # type: ignore[operator]
    with pytest.raises(CheckpointError, match=message):
        GemmaConfig.from_hf(E2B | {"text_config": text})


@pytest.mark.parametrize("arch", ["gemma", "gemma3n", "gemma4", "llama", None])
def test_unsupported_gguf_architectures(arch: str | None) -> None:
    with pytest.raises(CheckpointError, match=f"architecture {arch}"):
        GemmaConfig.from_gguf({"general.architecture": arch})
