"""Model configuration from both dialects, and what it refuses by name."""

from __future__ import annotations

import pytest

from edge_runtime.errors import CheckpointError
from export.model_config import GemmaConfig, LayerConfig

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
        ({"architectures": None, "model_type": "gemma4"}, "gemma4"),
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


@pytest.mark.parametrize("arch", ["gemma", "gemma3n", "gemma4", "llama", None])
def test_unsupported_gguf_architectures(arch: str | None) -> None:
    with pytest.raises(CheckpointError, match=f"architecture {arch}"):
        GemmaConfig.from_gguf({"general.architecture": arch})
