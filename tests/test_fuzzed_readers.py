"""Readers of files that others wrote: each kind of fault that fuzzing found, and some thousands of spoilt files of the
same seed every time. ``make fuzz`` looks for more (tests/fuzz)."""

from __future__ import annotations

import json
import math
import struct
import tracemalloc
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from fuzz.bench import Bench
from fuzz.gemma_seeds import CONFIG, gguf_gemma, gguf_of, safetensors_file, safetensors_gemma, tokenizer_json
from fuzz.gguf_bytes import ARRAY, STRING, Meta, Parts, Tensor, Text, numbers, scalar, strings
from fuzz.hostile import edit_bytes
from fuzz.judge import WEIGHED_EVERY, Judge
from fuzz.targets import bench_record, manifest, names, target, tokenizer_model
from fuzz.targets.checkpoint_config import DRAFTER, HEADS

from edge_runtime.bundle import read_manifest
from edge_runtime.doctor.probes.graphs import Constant, Edge, Node, model
from edge_runtime.doctor.probes.layers import shapes_of
from edge_runtime.engines.token_ids import read_token_ids
from edge_runtime.errors import BundleError, ConfigError, InputError, one_line
from edge_runtime.files import read_at_most
from edge_runtime.text.sandbox import MAX_SOURCE
from export.training.arrays import read_array, read_arrays
from export.training.features import read_part

INPUTS = {"config": 30, "recipe": 40, "bench_record": 300, "tokenizer_gguf": 250, "manifest": 400}
"""Of a reader; 600 where nothing else is said. YAML is read slowly."""


@pytest.fixture
def bench(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Bench]:
    found = Bench(target(request.param), tmp_path)
    yield found
    found.close()


@pytest.mark.parametrize("bench", names(), indirect=True)
def test_spoilt_files_are_read_or_refused_in_one_line(bench: Bench, request: pytest.FixtureRequest) -> None:
    name = request.node.callspec.params["bench"]
    inputs = INPUTS.get(name, 600)
    judge = bench.loop(inputs, seed=20)
    assert {kind: told for kind, (told, _) in judge.findings.items()} == {}
    assert judge.counts["refused"] > 10  # the spoilt ones are
    assert judge.counts["read"] > inputs // 60  # and what lies behind the first look is reached


def test_what_is_slow_because_it_is_weighed_is_no_finding() -> None:
    """tracemalloc walks the whole stack at each allocation: a reader that nests takes forty times as long."""

    def nested(depth: int) -> None:
        if depth:
            nested(depth - 1)
        else:
            for _ in range(1_000_000):
                list(range(2))

    judge = Judge(judged=WEIGHED_EVERY - 1)
    assert judge.judge(lambda _, data: nested(700), b"x")
    assert judge.findings == {}
    judge = Judge(judged=WEIGHED_EVERY - 1)
    assert not judge.judge(lambda _, data: bytearray(8 << 20), b"x")
    assert list(judge.findings) == ["memory"]


def test_seeds_of_records_are_read_and_shown(tmp_path: Path) -> None:
    """Spoilt ones would else be refused for what was wrong with all of them."""
    for data, (reader, show) in zip(bench_record.seeds(), bench_record.READ, strict=False):
        (tmp_path / "record").write_bytes(data)
        show(reader(tmp_path / "record"))


def _gguf(edit: Callable[[Parts], object], kind: int = 8) -> bytes:
    parts = gguf_gemma(kind)
    edit(parts)
    return parts.packed()


def _with_meta(key: str, kind: int, body: bytes) -> bytes:
    def edit(parts: Parts) -> None:
        kept = [meta for meta in parts.metas if meta.key.data != key.encode()]
        parts.metas[:] = [*kept, Meta(Text(key.encode()), kind, body)]

    return _gguf(edit)


def _with_tensor(tensor: Tensor, data: bytes = b"") -> bytes:
    parts = gguf_of([(0, 32)])
    parts.tensors, parts.tail = [tensor], data
    return parts.packed()


HALF_INFINITY = struct.pack("<e", math.inf)
GGUF_FAULTS = {
    "tensors over the same bytes": (_gguf(lambda parts: setattr(parts.tensors[3], "offset", 0)), "overlap"),
    "one tensor by two names": (
        _gguf(
            lambda parts: (
                parts.tensors.append(Tensor(Text(b"blk.00.attn_norm.weight"), [32], 0, len(parts.tail)))
                or setattr(parts, "tail", parts.tail + bytes(128))
            )
        ),
        "blk.00.attn_norm.weight repeats blk.0.attn_norm.weight",
    ),
    "three dimensions": (_with_tensor(Tensor(Text(b"t"), [2, 2, 2], 0, 0), bytes(32)), "3 dimensions"),
    "a scale that is infinite": (
        _with_tensor(Tensor(Text(b"t"), [32, 1], 2, 0), HALF_INFINITY + bytes(16)),
        "not finite",
    ),
    "a scale of scales that is infinite": (
        _with_tensor(Tensor(Text(b"t"), [256, 1], 10, 0), bytes(80) + HALF_INFINITY * 2),
        "not finite",
    ),
    "floats that are none": (_with_tensor(Tensor(Text(b"t"), [1, 1], 0, 0), struct.pack("<f", math.nan)), "not finite"),
    "control characters in a name": (
        _gguf(lambda parts: setattr(parts.tensors[2], "name", Text(b"\x1b[2J\nx"))),
        "unknown",
    ),
    "a name of a page": (_gguf(lambda parts: setattr(parts.tensors[2], "name", Text(b"x" * 9000))), "unknown"),
    "sizes of layers that are infinite": (
        _with_meta("gemma3.feed_forward_length", ARRAY, numbers(6, [math.inf])),
        "whole number",
    ),
    "an array for a number": (_with_meta("gemma3.embedding_length", ARRAY, numbers(4, [1.0] * 9)), "whole number"),
}
TOKENS = "tokenizer.ggml."
TOKENIZER_FAULTS = {
    "an id that is text": (_with_meta(f"{TOKENS}bos_token_id", STRING, Text(b"two").packed()), "a whole number"),
    "an id that is a list": (_with_meta(f"{TOKENS}padding_token_id", ARRAY, numbers(4, [1.0, 2.0])), "a whole number"),
    "an id that is infinite": (_with_meta(f"{TOKENS}eos_token_id", 6, scalar(6, math.inf)), "a whole number"),
    "a kind that is a list": (_with_meta(f"{TOKENS}model", ARRAY, numbers(4, [1.0, 2.0])), "not supported"),
    "a prefix that is a list": (
        _with_meta(f"{TOKENS}add_space_prefix", ARRAY, numbers(4, [0.0, 0.0])),
        "not supported",
    ),
    "scores that are none": (_with_meta(f"{TOKENS}scores", ARRAY, numbers(12, [math.nan] * 12)), "malformed"),
    "scores beyond float32": (_with_meta(f"{TOKENS}scores", ARRAY, numbers(12, [1e300] * 12)), "malformed"),
    "tokens that are numbers": (_with_meta(f"{TOKENS}tokens", ARRAY, numbers(4, [1.0] * 12)), "positive whole number"),
    "fewer types than tokens": (_with_meta(f"{TOKENS}token_type", ARRAY, numbers(5, [1.0])), "12 tokens"),
    "types that are infinite": (_with_meta(f"{TOKENS}token_type", ARRAY, numbers(6, [math.inf] * 12)), "malformed"),
    "the same token twice": (_with_meta(f"{TOKENS}tokens", ARRAY, strings([b"a"] * 12)), "tokenizer"),
}


def _sentencepiece(change: bytes, into: bytes) -> bytes:
    whole = tokenizer_model.seeds()[0]
    assert len(change) == len(into) and whole.count(change) == 1
    return whole.replace(change, into)


MODEL_FAULTS = {
    "a piece that is no text": (_sentencepiece(b"\x0a\x02ab", b"\x0a\x02a\xff"), "no text"),
    "a field's number that one reader cuts to 32 bits": (
        tokenizer_model.seeds()[0] + bytes.fromhex("fa8080801000"), "its tokenizer is damaged",
    ),
    "a message that is no text": (_sentencepiece(b"<0x7F>", b"<0x7\xff>"), "does not load"),
}


def _header(text: str, data: bytes = b"") -> bytes:
    return safetensors_file(text.encode(), data)


def _entry(kind: str, shape: object, offsets: object) -> str:
    return f'{{"dtype": "{kind}", "shape": {shape}, "data_offsets": {offsets}}}'


def _one(*entry: Any) -> str:
    return f'{{"a": {_entry(*entry)}}}'


def _two(*entries: Any) -> str:
    return f'{{"a": {_entry(*entries[:3])}, "b": {_entry(*entries[3:])}}}'


def _two_heads() -> bytes:
    whole = safetensors_gemma("F16", head=True)
    size = int.from_bytes(whole[:8], "little")
    header = json.loads(whole[8 : 8 + size])
    begin, end = header["lm_head.weight"]["data_offsets"]
    header["model.lm_head.weight"] = header["lm_head.weight"] | {"data_offsets": [end, end + end - begin]}
    return safetensors_file(json.dumps(header).encode(), whole[8 + size :] + bytes(end - begin))


DIGITS = "9" * 4300
SAFETENSORS_FAULTS = {
    "a name twice": (_header(_two("I8", [1], [0, 1], "I8", [1], [1, 2]).replace('"b"', '"a"'), b"12"), "twice"),
    "tensors over the same bytes": (_header(_two("I8", [2], [0, 2], "I8", [2], [1, 3]), bytes(3)), "a and b overlap"),
    "a shape that is 0 in 64 bits": (_header(_one("I64", [1 << 32, 1 << 32], [0, 0])), "no memory holds"),
    "a shape that a zero hides": (_header(_one("F32", [0, 1 << 62], [0, 0])), "no memory holds"),
    "offsets of 4,300 digits": (_header(_one("F32", [1], f"[0, {DIGITS}]")), "malformed"),
    "lengths of 4,300 digits": (_header(_one("F32", "[" + ", ".join([DIGITS] * 40) + "]", [0, 0])), "malformed"),
    "seventy dimensions": (_header(_one("I8", [1] * 70, [0, 1]), b"0"), "70 dimensions"),
    "two heads": (_two_heads(), "model.lm_head.weight repeats lm_head.weight"),
    "no dimension": (_header(_one("F32", [], [0, 4]), bytes(4)), "0 dimensions"),
    "scales that are too large": (
        _header(_two("I8", [1, 32], [0, 32], "F32", [1, 1], [32, 36]).replace('"b"', '"a.scales"'),
                bytes([127] * 32) + struct.pack("<f", 3e38)), "not finite"),
    "scales that are not finite": (
        _header(_two("I8", [1, 32], [0, 32], "F16", [1, 1], [32, 34]).replace('"b"', '"a.scales"'),
                bytes(32) + HALF_INFINITY), "not finite"),
}  # fmt: skip


def _json(tree: Any, **changes: Any) -> bytes:
    return json.dumps(tree | changes).encode()


def _tokens(edit: Callable[[Any], object]) -> bytes:
    tree = tokenizer_json()
    edit(tree)
    return json.dumps(tree).encode()


CONFIG_FAULTS = {
    "a kind that is an object": (_json({"model_type": {"a": 1}}), "not supported"),
    "a number beyond float": (_json(CONFIG, rms_norm_eps=10**400), "positive number"),
    "a number near the end of float": (_json(CONFIG, rope_theta=1e308), "positive number"),
    "a drafter's constant that is none": (_json(DRAFTER, rope_theta=math.nan), "rope_theta must be a positive number"),
    "a drafter's constant below zero": (_json(DRAFTER, final_softcap=-1.0), "final_softcap must be a positive number"),
    "heads' constant beyond float": (_json(HEADS, embed_scale=math.inf), "embed_scale must be a positive number"),
    "heads that share no keys": (_json(DRAFTER, heads=4, kv_heads=3, head_dim=2), "4 heads over 3, of"),
    "a window of nothing": (_json(DRAFTER, window=0), "a window of 0"),
    "a head of odd width": (_json(DRAFTER, heads=8, kv_heads=4, head_dim=1), "head_dim 1"),
    "a kind of 4,000 digits": (b'{"model_type": ' + b"9" * 4000 + b"}", "not supported"),
}
TOKENIZER_JSON_FAULTS = {
    "an id of a table without end": (_tokens(lambda tree: tree["model"]["vocab"].update(z=10**12)), "from 0 to"),
    "an id below zero": (_tokens(lambda tree: tree["model"]["vocab"].update(z=-5)), "from 0 to"),
    "an added token that is a number": (_tokens(lambda tree: tree["added_tokens"][3].update(content=7)), "no text"),
    "half a surrogate pair": (_tokens(lambda tree: tree["model"]["vocab"].update({"\udcff": 200})), "surrogates"),
    "a template that nests": (_json({"chat_template": "{{ " + "(" * 3000 + "1" + ")" * 3000 + " }}"}), "too deeply"),
    "a template that no daemon runs": (_json({"chat_template": "x" * (MAX_SOURCE + 1)}), "characters, over 262144"),
    "a template's name that is an object": (_json({"chat_template": [{"name": {}, "template": "x"}]}), "tokenizer"),
}
BOMB = "a: &a {x: 1, y: 2}\n" + "".join(
    f"{key}: &{key} {{<<: [{', '.join([f'*{of}'] * 9)}]}}\n" for of, key in zip("abcdefghij", "bcdefghijk", strict=True)
)
YAML_FAULTS = {
    "merged aliases": (BOMB.encode(), "aliases"),
    "an alias of itself": (b"source: &a [*a]\n", "aliases"),
    "a date that is none": (b"source: !!timestamp x\n", "tags"),
    "a set": (b"? source\n? output\n", "source"),
    "a number in parts": (b"source: 1" + b":1" * 250 + b".0\n", "not YAML"),
    "a key twice": (b"source: a\nsource: b\n", "twice"),
    "a key that is a list": (b"? [source]\n: a\n", "a key must be a word"),
}
ROWS = Edge("x0", "float32", (1, "rows", 32))


def _layer(shape: tuple[int | str, ...], columns: int = 32) -> bytes:
    """A layer whose second input has that shape."""
    product = Node("MatMulNBits", ("x0", "w", "s"), "h", {"K": 64, "N": columns}, "com.microsoft")
    nodes = [product, Node("Add", ("h", "past"), "x1", {})]
    scales = Constant("s", np.ones((32, 1), np.float32))
    return model(nodes, [scales], [ROWS, Edge("past", "float32", shape)], [ROWS])


WIRE_FAULTS = {
    "an input of terabytes": (_layer((1 << 20, 1 << 20)), "larger than"),
    "an input that passes 64 bits": (_layer((1 << 62, 1 << 62, 1 << 62)), "larger than"),
    "an input that a zero hides": (_layer((0, 1 << 62, 1 << 20)), "larger than"),
    "forty dimensions": (_layer((1,) * 40), "larger than"),
    "a message that is cut off": (_layer((1, 32))[:-9], "cannot be read"),
}
DAEMON_FAULTS = {
    "half a surrogate pair": (b'bundle: "a\\ud800"\n', "surrogate"),
    "a tag without a type": (b"bundle: ! b\n", "tags"),
    "a tag on a list": (b"bundle: b\nengine: !!omap [a]\n", "tags"),
    "a mark that prints nothing": (b"bundle: b\nengine:\n  k: 1: \xef\xbb\xbf 2\n", "not YAML"),
}


def _parts(**changes: Any) -> bytes:
    return _json({"target": "t", "rows": 2, "length": 4, "width": 8, "done": 1}, **changes)


RECORD_FAULTS = {
    "no object": (b"[1]", "do not make sense"),
    "rows that are text": (_parts(rows="two"), "do not make sense"),
    "rows without end": (b'{"rows": 1e999, "length": 4, "width": 8, "done": 1}', "do not make sense"),
    "more done than there is": (_parts(done=3), "do not make sense"),
    "rows that the arrays have not": (_parts(rows=3), "not [3, 4] values"),
}
FAULTS = {
    "gguf": GGUF_FAULTS, "tokenizer_gguf": TOKENIZER_FAULTS, "safetensors": SAFETENSORS_FAULTS,
    "checkpoint_config": CONFIG_FAULTS, "tokenizer_json": TOKENIZER_JSON_FAULTS, "recipe": YAML_FAULTS,
    "config": DAEMON_FAULTS, "bench_record": RECORD_FAULTS, "wire": WIRE_FAULTS, "tokenizer_model": MODEL_FAULTS,
}  # fmt: skip


@pytest.mark.parametrize(
    ("bench", "fault"), [(name, fault) for name, faults in FAULTS.items() for fault in faults], indirect=["bench"]
)
def test_what_was_found_is_refused(bench: Bench, fault: str, request: pytest.FixtureRequest) -> None:
    data, words = FAULTS[request.node.callspec.params["bench"]][fault]
    bench.try_one(data)
    judge = bench.judge
    assert {kind: told for kind, (told, _) in judge.findings.items()} == {}
    assert any(words in line for line in judge.told), judge.told


def test_an_error_is_one_line_whatever_is_in_it() -> None:
    told = str(InputError("tensor \x1b[31mx\n\ud800\u202e é is\ttoo large"))
    assert told == "tensor \u241b[31mx \\ud800\\u202e é is too large"
    assert one_line("a" * 10_000 + "end").endswith("end") and len(one_line("a" * 10_000)) < 2_000
    assert len(one_line("\u202e" * 10_000)) < 2_000


def test_what_a_graph_says_of_its_products_is_cut_to_what_is_measured() -> None:
    products = [(1 << 40, 2), (64, 1 << 50), (0, 64), (64, 0), (1 << 63, 1 << 63), (128, 130), (64, 3), (63, 64)]
    assert shapes_of(products, 9, 1 << 20) == ((64, 1 << 14), (128, 130))


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (np.array([-1, 3, 4], "<i8").tobytes(), "rising token ids"),
        (np.array([3, 3, 4], "<i8").tobytes(), "rising token ids"),
        (np.array([1, 3, 4], "<i8").tobytes() + b"\0\0\0", "rising token ids"),
        (b"", "rising token ids"),
        (None, "cannot be read: No such file"),
    ],
)
def test_token_ids_of_a_head_that_are_none(tmp_path: Path, data: bytes | None, words: str) -> None:
    (tmp_path / "bundle.json").write_bytes(manifest.seeds()[0])
    head = replace(read_manifest(tmp_path).model("target"), token_ids="ids", vocab_size=3)
    if data is not None:
        (tmp_path / "ids").write_bytes(data)
    with pytest.raises(BundleError, match=words):
        read_token_ids(tmp_path, head)


def test_features_that_were_cut_off_are_refused(tmp_path: Path) -> None:
    bench_record.prepare(tmp_path)
    (tmp_path / "part.json").write_bytes(_parts())
    assert read_part(tmp_path).done == 1
    whole = (tmp_path / "hidden.npy").read_bytes()
    for damaged in (whole[:-1], whole[:9], b"", b"\x80\x04K\x01."):
        (tmp_path / "hidden.npy").write_bytes(damaged)
        with pytest.raises(ConfigError, match=r"hidden.npy: no features there"):
            read_part(tmp_path)
    np.save(tmp_path / "hidden.npy", np.zeros((2, 4, 8)))
    with pytest.raises(ConfigError, match=r"not .* values of float16"):
        read_part(tmp_path)


def test_arrays_of_an_earlier_run_are_read_or_refused(tmp_path: Path) -> None:
    """Whatever numpy makes of a file that was cut off or flipped: it has a dozen ways to fail."""
    rng = Random(3)
    np.savez(tmp_path / "whole.npz", gram=np.ones((4, 4)), count=np.array(5))
    np.savez_compressed(tmp_path / "packed.npz", gram=np.ones((4, 4)), count=np.array(5))
    np.save(tmp_path / "one.npy", np.arange(40))
    readers: dict[str, Callable[[Path], object]] = {
        "whole.npz": lambda path: read_arrays(path, ("gram", "count")),
        "packed.npz": lambda path: read_arrays(path, ("gram", "count")),
        "one.npy": read_array,
    }
    for name, read in readers.items():
        whole, told = (tmp_path / name).read_bytes(), []
        read(tmp_path / name)
        for _ in range(300):
            (tmp_path / "spoilt").write_bytes(edit_bytes(whole, rng))
            try:
                read(tmp_path / "spoilt")
            except ConfigError as problem:
                told.append(str(problem))
        assert len(told) > 100
        assert all(line.isprintable() and "spoilt cannot be read: " in line for line in told)
    for read, name in ((read_array, "whole.npz"), (readers["whole.npz"], "one.npy")):
        with pytest.raises(ConfigError, match="cannot be read: "):
            read(tmp_path / name)
    with pytest.raises(ConfigError, match="not \\[3\\]"):
        read_array(tmp_path / "one.npy", (3,))


def test_a_bound_on_a_file_is_not_allocated(tmp_path: Path) -> None:
    (tmp_path / "small").write_bytes(b"x" * 100_000)
    tracemalloc.start()
    try:
        assert len(read_at_most(tmp_path / "small", 1 << 28, "")) == 100_000
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()
    with pytest.raises(ConfigError, match="more than 64 KiB"):
        read_at_most(tmp_path / "small", 1 << 16, "")
