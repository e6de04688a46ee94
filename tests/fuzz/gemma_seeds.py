"""Tiny Gemmas as files, made without any package: what fuzzers start from. Knows the names of published checkpoints."""

from __future__ import annotations

import json
import struct
from typing import Any

from .gguf_bytes import ARRAY, PLAIN, STRING, Meta, Parts, Tensor, Text, numbers, scalar, strings

HIDDEN, FFN, HEADS, DIM, VOCAB = 32, 32, 2, 16, 12
_FIRST = ["<pad>", "<eos>", "<bos>", "<unk>", "<start_of_turn>", "<end_of_turn>", "\u2581", "a", "b", "ab"]
PIECES = [*_FIRST, "<0x0A>", "c"]
ALL_PIECES = [*_FIRST, *(f"<0x{byte:02X}>" for byte in range(256)), "c"]
"""With all that sentencepiece wants for a fallback to bytes: what it loads."""
_LAYER = {
    "attn_norm": ("attn_norm", "input_layernorm", (HIDDEN,)),
    "q": ("attn_q", "self_attn.q_proj", (HEADS * DIM, HIDDEN)),
    "k": ("attn_k", "self_attn.k_proj", (DIM, HIDDEN)),
    "v": ("attn_v", "self_attn.v_proj", (DIM, HIDDEN)),
    "o": ("attn_output", "self_attn.o_proj", (HIDDEN, HEADS * DIM)),
    "q_norm": ("attn_q_norm", "self_attn.q_norm", (DIM,)),
    "k_norm": ("attn_k_norm", "self_attn.k_norm", (DIM,)),
    "post_attn_norm": ("post_attention_norm", "post_attention_layernorm", (HIDDEN,)),
    "ffn_norm": ("ffn_norm", "pre_feedforward_layernorm", (HIDDEN,)),
    "gate": ("ffn_gate", "mlp.gate_proj", (FFN, HIDDEN)),
    "up": ("ffn_up", "mlp.up_proj", (FFN, HIDDEN)),
    "down": ("ffn_down", "mlp.down_proj", (HIDDEN, FFN)),
    "post_ffn_norm": ("post_ffw_norm", "post_feedforward_layernorm", (HIDDEN,)),
}
CONFIG: dict[str, Any] = {
    "architectures": ["Gemma3ForCausalLM"], "model_type": "gemma3_text", "vocab_size": VOCAB, "hidden_size": HIDDEN,
    "intermediate_size": FFN, "num_hidden_layers": 1, "num_attention_heads": HEADS, "num_key_value_heads": 1,
    "head_dim": DIM, "query_pre_attn_scalar": DIM, "sliding_window": 8, "max_position_embeddings": 64,
    "eos_token_id": [1, 5], "tie_word_embeddings": True,
}  # fmt: skip


def gguf_gemma(kind: int = 0, pieces: list[str] = PIECES, *, rich: bool = False) -> Parts:
    """One layer; matrices in the type ``kind`` where a row of 32 fills whole blocks of it. ``rich``: with a head, and
    with keys that not every file has."""
    rarer = _rarer_metas() if rich else []
    known = {one.key.data for one in rarer}
    parts = Parts(metas=[*(one for one in _metas(pieces) if one.key.data not in known), *rarer])
    names = [("token_embd.weight", (len(pieces), HIDDEN)), ("output_norm.weight", (HIDDEN,))]
    names += [("output.weight", (len(pieces), HIDDEN))] if rich else []
    names += [(f"blk.0.{gguf}.weight", shape) for gguf, _, shape in _LAYER.values()]
    for name, shape in names:
        tensor = Tensor(Text(name.encode()), list(reversed(shape)), kind if len(shape) == 2 else 0, len(parts.tail))
        parts.tensors.append(tensor)
        data = bytes(range(1, 128)) * (tensor.nbytes() // 127 + 1)
        parts.tail += data[: tensor.nbytes()] + b"\0" * (-tensor.nbytes() % 32)
    return parts


def gguf_of(kinds: list[tuple[int, int]]) -> Parts:
    """Few keys and a matrix of two rows for each (type, values of a row); or a vector, of a second one that has no
    blocks."""
    parts = Parts(metas=[_metas(PIECES)[i] for i in (0, 1, 10, 13, 14)])
    for index, (kind, values) in enumerate(kinds):
        tensor = Tensor(
            Text(f"t{index}".encode()), [values] if index == 1 and kind in PLAIN else [values, 2], kind, len(parts.tail)
        )
        parts.tensors.append(tensor)
        parts.tail += bytes(range(1, 121)) * (tensor.nbytes() // 120 + 1)
        parts.tail = parts.tail[: tensor.offset + tensor.nbytes()]
        parts.tail += b"\0" * (-len(parts.tail) % 32)
    return parts


def _metas(pieces: list[str]) -> list[Meta]:
    def meta(key: str, kind: int, body: bytes) -> Meta:
        return Meta(Text(key.encode()), kind, body)

    sizes = {"context_length": 64, "embedding_length": HIDDEN, "block_count": 1, "feed_forward_length": FFN,
             "attention.head_count": HEADS, "attention.head_count_kv": 1, "attention.key_length": DIM,
             "attention.sliding_window": 8}  # fmt: skip
    metas = [meta("general.architecture", STRING, Text(b"gemma3").packed())]
    metas += [meta("general.name", STRING, Text(b"tiny").packed())]
    metas += [meta(f"gemma3.{key}", 4, scalar(4, size)) for key, size in sizes.items()]
    metas.append(meta("gemma3.attention.layer_norm_rms_epsilon", 6, scalar(6, 1e-6)))
    metas.append(meta("gemma3.rope.freq_base", 6, scalar(6, 1e6)))
    metas.append(meta("tokenizer.ggml.model", STRING, Text(b"llama").packed()))
    metas.append(meta("tokenizer.ggml.tokens", ARRAY, strings([piece.encode() for piece in pieces])))
    metas.append(meta("tokenizer.ggml.scores", ARRAY, numbers(6, [-float(i) for i in range(len(pieces))])))
    metas.append(
        meta("tokenizer.ggml.token_type", ARRAY, numbers(5, [float(_kind(i, piece)) for i, piece in enumerate(pieces)]))
    )
    metas += [meta(f"tokenizer.ggml.{name}_token_id", 4, scalar(4, i))
              for name, i in (("bos", 2), ("eos", 1), ("unknown", 3), ("padding", 0))]  # fmt: skip
    metas.append(meta("tokenizer.ggml.add_space_prefix", 7, b"\0"))
    metas.append(
        meta("tokenizer.chat_template", STRING, Text(b"{{ bos_token }}{% for m in messages %}{% endfor %}").packed())
    )
    return metas


def _rarer_metas() -> list[Meta]:
    given = {"rope.scaling.type": (STRING, Text(b"linear").packed()), "rope.scaling.factor": (6, scalar(6, 8.0)),
             "rope.freq_base_swa": (6, scalar(6, 1e4)), "feed_forward_length": (ARRAY, numbers(4, [float(FFN)])),
             "attention.sliding_window_pattern": (ARRAY, numbers(7, [1.0]))}  # fmt: skip
    return [Meta(Text(f"gemma3.{key}".encode()), kind, body) for key, (kind, body) in given.items()]


def _kind(index: int, piece: str) -> int:
    """Unknown, control, byte or normal."""
    return 2 if index == 3 else 3 if index < 6 else 6 if piece.startswith("<0x") else 1


def hf_shapes(prefix: str = "model.") -> dict[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {
        f"{prefix}embed_tokens.weight": (VOCAB, HIDDEN),
        f"{prefix}norm.weight": (HIDDEN,),
    }
    return shapes | {f"{prefix}layers.0.{name}.weight": shape for _, name, shape in _LAYER.values()}


def safetensors_header(shapes: dict[str, tuple[int, ...]], kind: str = "F32") -> tuple[dict[str, Any], int]:
    """The header of such a file and the bytes of its data."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    at, size = 0, {"F32": 4, "F16": 2, "BF16": 2, "I64": 8, "I8": 1}[kind]
    for name, shape in shapes.items():
        nbytes = size
        for length in shape:
            nbytes *= length
        header[name] = {"dtype": kind, "shape": list(shape), "data_offsets": [at, at + nbytes]}
        at += nbytes
    return header, at


def safetensors_file(header: bytes, data: bytes, claimed: int | None = None) -> bytes:
    return struct.pack("<Q", (len(header) if claimed is None else claimed) % (1 << 64)) + header + data


def safetensors_gemma(kind: str = "F32", prefix: str = "model.", *, head: bool = False) -> bytes:
    """``head``: with one of its own, which is its embedding."""
    header, nbytes = safetensors_header(hf_shapes(prefix), kind)
    data = (bytes(range(1, 127)) * (nbytes // 126 + 1))[:nbytes]
    if head:
        embed = header[f"{prefix}embed_tokens.weight"]
        begin, end = embed["data_offsets"]
        header["lm_head.weight"] = embed | {"data_offsets": [nbytes, nbytes + end - begin]}
        data += data[begin:end]
    return safetensors_file(json.dumps(header).encode(), data)


def tokenizer_json() -> dict[str, Any]:
    """Of the same pieces."""
    vocab = {piece: i for i, piece in enumerate(ALL_PIECES)}
    special = [{"id": i, "content": ALL_PIECES[i], "special": True} for i in range(6)]
    normalizer = {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"}
    model = {"type": "BPE", "byte_fallback": True, "unk_token": "<unk>", "vocab": vocab, "merges": [["a", "b"]]}
    return {"model": model, "added_tokens": special, "normalizer": normalizer, "pre_tokenizer": None}
