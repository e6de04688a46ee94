"""Checkpoints: configuration from both dialects, canonical tensors, and files that lie."""

from __future__ import annotations

import contextlib
import json
import struct
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from edge_runtime.errors import CheckpointError
from export.checkpoint import effective_norm, expected_shapes, open_checkpoint
from export.gguf_blocks import carry
from export.model_config import GemmaConfig, LayerConfig

gguf = pytest.importorskip("gguf")

HF_CONFIG: dict[str, object] = {
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
HF_NAMES = {
    "attn_norm": "input_layernorm",
    "q": "self_attn.q_proj",
    "k": "self_attn.k_proj",
    "v": "self_attn.v_proj",
    "o": "self_attn.o_proj",
    "q_norm": "self_attn.q_norm",
    "k_norm": "self_attn.k_norm",
    "post_attn_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "gate": "mlp.gate_proj",
    "up": "mlp.up_proj",
    "down": "mlp.down_proj",
    "post_ffn_norm": "post_feedforward_layernorm",
}
GGUF_NAMES = {
    "attn_norm": "attn_norm",
    "q": "attn_q",
    "k": "attn_k",
    "v": "attn_v",
    "o": "attn_output",
    "q_norm": "attn_q_norm",
    "k_norm": "attn_k_norm",
    "post_attn_norm": "post_attention_norm",
    "ffn_norm": "ffn_norm",
    "gate": "ffn_gate",
    "up": "ffn_up",
    "down": "ffn_down",
    "post_ffn_norm": "post_ffw_norm",
}


def stored_name(name: str, names: dict[str, str], embed: str, norm: str, layer: str) -> str:
    if name in ("embed", "final_norm"):
        return embed if name == "embed" else norm
    _, index, part = name.split(".")
    return f"{layer}.{index}.{names[part]}.weight"


def weights(config: GemmaConfig) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(7)
    shapes = expected_shapes(config)
    return {name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}


def hf_tensors(prefix: str = "model.") -> dict[str, np.ndarray]:
    embed, norm, layers = f"{prefix}embed_tokens.weight", f"{prefix}norm.weight", f"{prefix}layers"
    return {
        stored_name(name, HF_NAMES, embed, norm, layers): value
        for name, value in weights(GemmaConfig.from_hf(HF_CONFIG)).items()
    }


def write_safetensors(path: Path, tensors: dict[str, np.ndarray]) -> None:
    """float32 as it is; uint16 stands for bf16."""
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    data = b""
    for name, value in tensors.items():
        begin, data = len(data), data + value.tobytes()
        dtype = {"float32": "F32", "float16": "F16", "uint16": "BF16", "int8": "I8"}[value.dtype.name]
        header[name] = {"dtype": dtype, "shape": list(value.shape), "data_offsets": [begin, len(data)]}
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def hf_dir(tmp_path: Path, tensors: dict[str, np.ndarray], **changes: object) -> Path:
    directory = tmp_path / "tiny-gemma"
    directory.mkdir()
    (directory / "config.json").write_text(json.dumps(HF_CONFIG | changes))
    write_safetensors(directory / "model.safetensors", tensors)
    return directory


def write_gguf(
    path: Path, edit: Callable[[dict[str, np.ndarray]], object] | None = None, arch: str = "gemma3"
) -> dict[str, np.ndarray]:
    writer = gguf.GGUFWriter(path, arch)
    writer.add_name("tiny")
    writer.add_context_length(64)
    writer.add_embedding_length(32)
    writer.add_block_count(2)
    writer.add_feed_forward_length(64)
    writer.add_head_count(2)
    writer.add_head_count_kv(1)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_key_length(16)
    writer.add_sliding_window(8)
    writer.add_token_list([f"t{i}" for i in range(40)] + ["<end_of_turn>"])
    writer.add_token_scores([0.0] * 41)
    writer.add_bos_token_id(2)
    writer.add_eos_token_id(1)
    values = weights(GemmaConfig.from_hf(HF_CONFIG))
    stored = {
        stored_name(name, GGUF_NAMES, "token_embd.weight", "output_norm.weight", "blk"): value
        for name, value in values.items()
    }
    if edit:
        edit(stored)
    for name, value in stored.items():
        if value.ndim == 2 and "attn_q" in name:
            blocks = gguf.quants.quantize(value, gguf.GGMLQuantizationType.Q8_0)
            writer.add_tensor(name, blocks, raw_dtype=gguf.GGMLQuantizationType.Q8_0)
        else:
            writer.add_tensor(name, value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return values


# --- Hugging Face directories ---------------------------------------------------------------------


@pytest.mark.parametrize("prefix", ["model.", "language_model.model.", "model.language_model.", ""])
def test_safetensors_under_every_prefix(tmp_path: Path, prefix: str) -> None:
    vision = {"model.vision_tower.encoder.layers.0.weight": np.zeros(3, np.int8)}
    checkpoint = open_checkpoint(hf_dir(tmp_path, hf_tensors(prefix) | vision))
    expected = weights(checkpoint.config)
    assert set(checkpoint.names()) == set(expected)
    for name in ("embed", "layers.1.down", "layers.0.q"):
        source = checkpoint.tensor(name)
        assert source.shape == expected[name].shape
        assert np.array_equal(source.rows(3, 9), expected[name][3:9])
        assert source.raw_blocks(0, 1) is None
    assert np.array_equal(effective_norm(checkpoint, "layers.1.k_norm"), 1 + expected["layers.1.k_norm"])
    assert np.array_equal(checkpoint.tensor("final_norm").rows(4, 8), expected["final_norm"][4:8])
    checkpoint.release()
    assert np.array_equal(checkpoint.tensor("embed").rows(0, 48), expected["embed"])
    assert checkpoint.config.name == "tiny-gemma"


def test_bf16_shards_with_an_index(tmp_path: Path) -> None:
    tensors = {name: (value.view(np.uint32) >> 16).astype(np.uint16) for name, value in hf_tensors().items()}
    directory = hf_dir(tmp_path, {})
    (directory / "model.safetensors").unlink()
    names = list(tensors)
    weight_map = {name: f"model-0000{1 + i % 2}-of-00002.safetensors" for i, name in enumerate(names)}
    for shard in set(weight_map.values()):
        held = {name: tensors[name] for name in names if weight_map[name] == shard}
        write_safetensors(directory / shard, held)
    index = directory / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": weight_map}))
    checkpoint = open_checkpoint(directory)
    expected = weights(checkpoint.config)["layers.0.up"]
    assert checkpoint.tensor("layers.0.up").kind == "BF16"
    assert np.allclose(checkpoint.tensor("layers.0.up").rows(0, 64), expected, rtol=2**-7, atol=0)

    index.write_text(json.dumps({"weight_map": weight_map | {"x": "../../etc/passwd"}}))
    with pytest.raises(CheckpointError, match="file beside it"):
        open_checkpoint(directory)
    index.write_text(json.dumps({"weight_map": weight_map | {"x": "model-00003-of-00003.safetensors"}}))
    with pytest.raises(CheckpointError, match="00003"):
        open_checkpoint(directory)


def test_head_must_repeat_the_embedding(tmp_path: Path) -> None:
    tensors = hf_tensors()
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].copy()
    directory = hf_dir(tmp_path, tensors)
    assert open_checkpoint(directory).tensor("embed").shape == (48, 32)
    tensors["lm_head.weight"][47, 31] += 1
    write_safetensors(directory / "model.safetensors", tensors)
    with pytest.raises(CheckpointError, match=r"lm_head\.weight differs"):
        open_checkpoint(directory)


def without(name: str) -> Callable[[dict[str, np.ndarray]], object]:
    return lambda tensors: tensors.pop(name)


def with_tensor(name: str, value: np.ndarray) -> Callable[[dict[str, np.ndarray]], object]:
    return lambda tensors: tensors.update({name: value})


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (without("model.layers.1.mlp.up_proj.weight"), r"layers\.1\.up is missing"),
        (with_tensor("model.norm.weight", np.zeros(31, np.float32)), r"has shape \[31\], not \[32\]"),
        (with_tensor("model.norm.weight", np.zeros(32, np.int8)), "unsupported type I8"),
        (with_tensor("model.layers.0.self_attn.q_proj.bias", np.zeros(32, np.float32)), "bias is unknown"),
        (
            with_tensor("model.layers.2.mlp.up_proj.weight", np.zeros((64, 32), np.float32)),
            "part of a 2-layer",
        ),
    ],
)
def test_wrong_tensors_are_named(tmp_path: Path, edit: Callable[[dict[str, np.ndarray]], object], message: str) -> None:
    tensors = hf_tensors()
    edit(tensors)
    with pytest.raises(CheckpointError, match=message):
        open_checkpoint(hf_dir(tmp_path, tensors))


def test_truncated_safetensors(tmp_path: Path) -> None:
    directory = hf_dir(tmp_path, hf_tensors())
    file = directory / "model.safetensors"
    whole = file.read_bytes()
    for size in (0, 4, 100, len(whole) // 2, len(whole) - 1):
        file.write_bytes(whole[:size])
        with pytest.raises(CheckpointError, match=r"model\.safetensors"):
            open_checkpoint(directory)
    file.write_bytes(struct.pack("<Q", 2) + b"[]" + whole)
    with pytest.raises(CheckpointError, match="JSON object"):
        open_checkpoint(directory)


def test_missing_paths(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="no such checkpoint"):
        open_checkpoint(tmp_path / "absent")
    with pytest.raises(CheckpointError, match=r"config\.json"):
        open_checkpoint(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"")
    with pytest.raises(CheckpointError, match="directory that holds it"):
        open_checkpoint(tmp_path / "model.safetensors")


# --- GGUF -----------------------------------------------------------------------------------------


def test_gguf_round_trip(tmp_path: Path) -> None:
    path = tmp_path / "tiny.gguf"
    expected = write_gguf(path)
    checkpoint = open_checkpoint(path)
    assert checkpoint.kind == "gguf"
    assert checkpoint.config.vocab_size == 48  # the embedding's rows, not the 41 tokens
    assert checkpoint.config.eos_ids == (1, 40)
    assert checkpoint.config.layers == (LayerConfig(8, 10_000.0), LayerConfig(8, 10_000.0))
    tokens = checkpoint.metadata["tokenizer.ggml.tokens"]
    assert isinstance(tokens, list)
    assert tokens[3] == "t3"
    assert np.array_equal(checkpoint.tensor("layers.1.down").rows(5, 9), expected["layers.1.down"][5:9])
    assert np.array_equal(effective_norm(checkpoint, "final_norm"), expected["final_norm"])
    query = checkpoint.tensor("layers.0.q")
    raw = query.raw_blocks(2, 6)
    assert raw is not None
    assert not raw.flags.owndata
    assert np.array_equal(carry(query.kind, raw, 32).dequantise(), query.rows(2, 6))
    with pytest.raises(CheckpointError, match="did you mean"):
        checkpoint.tensor("layers.0.qq")
    with pytest.raises(IndexError):
        query.rows(0, 1000)


def test_gguf_with_other_tensors(tmp_path: Path) -> None:
    path = tmp_path / "tiny.gguf"
    write_gguf(path, without("blk.0.ffn_down.weight"))
    with pytest.raises(CheckpointError, match=r"layers\.0\.down is missing"):
        open_checkpoint(path)
    write_gguf(path, with_tensor("rope_freqs.weight", np.zeros(8, np.float32)))
    with pytest.raises(CheckpointError, match=r"rope_freqs\.weight is unknown"):
        open_checkpoint(path)
    write_gguf(path, with_tensor("output.weight", np.zeros((48, 32), np.float32)))
    with pytest.raises(CheckpointError, match="untied heads"):
        open_checkpoint(path)


def test_gguf_truncated_anywhere_is_a_checkpoint_error(tmp_path: Path) -> None:
    path = tmp_path / "tiny.gguf"
    write_gguf(path)
    whole = path.read_bytes()
    cuts = list(range(0, 4000, 13)) + list(range(4000, len(whole), 997)) + [len(whole) - 1]
    cut_path = tmp_path / "cut.gguf"
    for size in cuts:
        cut_path.write_bytes(whole[:size])
        with pytest.raises(CheckpointError):
            open_checkpoint(cut_path)


def test_gguf_with_flipped_header_bytes_never_crashes(tmp_path: Path) -> None:
    path = tmp_path / "tiny.gguf"
    write_gguf(path)
    whole = path.read_bytes()
    rng = np.random.default_rng(8)
    bad_path = tmp_path / "bad.gguf"
    for at in rng.integers(0, 4000, 300):
        bad = bytearray(whole)
        bad[at] = int(rng.choice([0, 255, bad[at] ^ 128]))
        bad_path.write_bytes(bad)
        with contextlib.suppress(CheckpointError):
            open_checkpoint(bad_path)


@pytest.mark.parametrize(
    ("head", "message"),
    [
        (b"GGML" + bytes(60), "bad magic"),
        (b"GGUF" + struct.pack("<IQQ", 1, 0, 0), "version 1"),
        (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "big-endian"),
        (b"GGUF" + struct.pack("<IQQ", 3, 2**62, 0), "tensor count"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 2**40), "metadata count"),
        (b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 2**60) + bytes(64), "length of a metadata key"),
        (b"GGUF" + struct.pack("<IQQQ1sIIQ", 3, 0, 1, 1, b"k", 9, 5, 2**61) + bytes(64), "length of k"),
        (b"GGUF" + struct.pack("<IQQQ1sIIQ", 3, 0, 1, 1, b"k", 9, 8, 2**61) + bytes(64), "length of k"),
    ],
)
def test_hostile_gguf_headers(tmp_path: Path, head: bytes, message: str) -> None:
    path = tmp_path / "bad.gguf"
    path.write_bytes(head)
    with pytest.raises(CheckpointError, match=message):
        open_checkpoint(path)


# --- a real model


def test_real_gguf_carries(demo_gguf: Path) -> None:
    started = time.perf_counter()
    checkpoint = open_checkpoint(demo_gguf)
    assert time.perf_counter() - started < 5
    for name in checkpoint.names():
        source = checkpoint.tensor(name)
        stop = min(source.shape[0], 256)
        raw = source.raw_blocks(0, stop)
        if raw is None:
            continue
        original = source.rows(0, stop)
        carried = carry(source.kind, raw, source.shape[1])
        error = carried.dequantise() - original
        rms = float(np.sqrt((original**2).mean()))
        if carried.zero_points is None:
            assert np.array_equal(carried.dequantise().view(np.uint32), original.view(np.uint32)), name
        assert float(np.sqrt((error**2).mean())) < 0.005 * rms, name
        assert carried.max_error < 0.1 * rms, name
    checkpoint.release()
