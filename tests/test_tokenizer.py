"""Text to ids and back, token by token as transformers has it; tokenizers of checkpoints, and those refused."""

from __future__ import annotations

import json
import shutil
import weakref
from pathlib import Path
from typing import Any

import model_fixture as real
import pytest
import tiny_bundle as tiny
from hypothesis import example, given, settings
from hypothesis import strategies as st

from edge_runtime.errors import BundleError, CheckpointError, InputError
from edge_runtime.text.llguidance_grammar import GrammarCompiler
from edge_runtime.text.tokenizer import GUARD, Tokenizer, guarded
from export.checkpoint import MappedCheckpoint
from export.model_config import GemmaConfig
from export.tokenizer import TokenizerModel, build_tokenizer_model, vocabulary_difference

TEXTS = [
    "",
    "Hello, world! It's 3.14159; naïve café.",
    "人工智能正在改变世界。 日本語も。",
    "def f(x):\n    if x:\n\treturn  {'a':   1}\n\n\n        # end\r\n",
    "🦙👩\u200d👩\u200d👧🏳\ufe0f\u200d🌈 👍🏽",
    "a\u0301 e\u0301\u0302 é ﷽",
    "مرحبا بالعالم שלום",
    "\x00", "a\x00b\x01\x07\x1b[0m\x7f",
    " ", "   lead", "trail   ", " " * 31 + "x", "\t" * 31 + "x", "\n" * 31 + "x",
    "=" * 77, "-" * 80, "a" * 65,
    "<table> <b>x</b> [multimodal] <start_of_image>",
    "<0x0A> <unk> <unused99999>",
    "\ufffd \u2028 \u00a0 \u3000 \u200b \U0010ffff",
]  # fmt: skip
# Runs of blanks up to 31, the longest that Gemma has a piece for.
BLANKS = st.integers(1, 31).flatmap(lambda n: st.sampled_from(" \n\t").map(lambda c: n * c))
MIXED = st.lists(st.text(max_size=4) | st.text("abehrst", max_size=9) | BLANKS.map(lambda s: f"{s}.")).map("".join)
MARKERS = ["<start_of_turn>", "<end_of_turn>", "<bos>", "<eos>", "<unused7>", "<unk>", "<mask>"]


def oracle(text: str) -> list[int]:
    ids: list[int] = real.transformers_tokenizer().encode(text, add_special_tokens=False).ids
    return ids


def spelt(tokenizer: Tokenizer, ids: list[int]) -> str:
    return b"".join(map(tokenizer.piece_bytes, ids)).decode("utf-8")


@pytest.mark.parametrize("text", TEXTS)
def test_ids_are_those_of_transformers(text: str) -> None:
    # It reads "<unk>" as the unknown token, which is a control piece here.
    assert real.tokenizer().encode(text.replace("<unk>", ""), bos=False) == oracle(text.replace("<unk>", ""))


@given(MIXED)
@settings(max_examples=300)
def test_ids_of_any_text_are_those_of_transformers(text: str) -> None:
    assert real.tokenizer().encode(text, bos=False) == oracle(text)


@pytest.mark.parametrize("blank", [" ", "\n", "\t"])
@pytest.mark.parametrize("count", [32, 33, 62, 70])
def test_longer_runs_of_blanks_are_read_longest_first(blank: str, count: int) -> None:
    """As Google's own tokenizer does. Transformers merges pairs instead, and divides a run of 32 or more otherwise."""
    tokenizer = real.tokenizer()
    sizes = [len(tokenizer.piece_bytes(token)) for token in tokenizer.encode(blank * count, bos=False)]
    assert sizes == [31] * (count // 31) + [count % 31] * (count % 31 > 0)


@given(MIXED)
@example("\u2581 \u2581\u2581x")
def test_bytes_give_the_text_back(text: str) -> None:
    tokenizer = real.tokenizer()
    # Inside, a space is U+2581: that one cannot be told from a space.
    assert spelt(tokenizer, tokenizer.encode(text)) == text.replace("\u2581", " ")


def test_begin_of_text() -> None:
    tokenizer = real.tokenizer()
    assert tokenizer.encode("") == [tokenizer.bos_id] == [2]
    assert tokenizer.encode("", bos=False) == []


@pytest.mark.parametrize("text", ["a\ud800", "\udfff"])
def test_half_a_surrogate_pair_is_refused(text: str) -> None:
    for parse_special in (False, True):
        with pytest.raises(InputError, match="surrogate"):
            real.tokenizer().encode(text, parse_special=parse_special)


def test_markers_are_read_in_a_template_only() -> None:
    tokenizer = real.tokenizer()
    text = "<bos><start_of_turn>user\n  Hi<end_of_turn>\n<start_of_turn>model\n<unused7><b>"
    ids = tokenizer.encode(text, bos=False, parse_special=True)
    assert ids == oracle(text)
    assert [ids[0], ids[1], ids[-2]] == [2, 105, tokenizer.control_id("<unused7>")]
    assert not any(map(tokenizer.is_control, tokenizer.encode(text, bos=False)))


def test_no_text_spells_a_control_piece() -> None:
    tokenizer, model = real.tokenizer(), real.tokenizer_model()
    controls = set(model.control_ids)
    assert len(controls) == 6249
    text = "".join(model.pieces[i] for i in model.control_ids)
    assert not controls & set(tokenizer.encode(text, bos=False))
    assert spelt(tokenizer, tokenizer.encode(text)) == text
    # All of them can be written in a template, but for the unknown piece.
    written = tokenizer.encode(text, bos=False, parse_special=True)
    assert [token for token in written if token in controls] == [i for i in model.control_ids if i != 3]


PARTS = st.sampled_from([*MARKERS, "<", ">", "<start", "_of_turn>", "<b>", "[", "</b>", " ", "\n", "x"])


@given(st.lists(PARTS, max_size=8).map("".join))
@example("<end_of_turn>")
def test_guarded_text_is_ordinary_inside_a_template(text: str) -> None:
    tokenizer = real.tokenizer()
    assert tokenizer.encode(guarded(text), parse_special=True) == tokenizer.encode(text)


def test_a_guard_in_the_text_opens_nothing() -> None:
    tokenizer = real.tokenizer()
    ids = tokenizer.encode(guarded(f"<{GUARD}end_of_turn>{GUARD}<end_of_turn>"), bos=False, parse_special=True)
    assert spelt(tokenizer, ids) == "<end_of_turn>" * 2


def test_bytes_of_pieces_are_those_of_the_gguf() -> None:
    tokenizer, metadata = real.tokenizer(), real.checkpoint().metadata
    pieces: Any = metadata["tokenizer.ggml.tokens"]
    kinds: Any = metadata["tokenizer.ggml.token_type"]
    assert tokenizer.vocab_size == len(pieces)
    for i, (piece, kind) in enumerate(zip(pieces, kinds, strict=True)):
        if kind == 6:
            expected = bytes([int(piece[3:5], 16)])
        else:
            expected = b"" if kind == 3 else piece.replace("\u2581", " ").encode()
        assert tokenizer.piece_bytes(i) == expected, i
    for outside in (-1, len(pieces)):
        with pytest.raises(IndexError):
            tokenizer.piece_bytes(outside)


@pytest.mark.parametrize("data", [b"", b"garbage", bytes(100), None])
def test_a_file_that_is_no_model(tmp_path: Path, data: bytes | None) -> None:
    path = tmp_path / "tokenizer.model"
    if data is not None:
        path.write_bytes(data)
    with pytest.raises(BundleError, match="not a tokenizer model") as caught:
        Tokenizer(path)
    assert "\n" not in str(caught.value)


# --- export ---------------------------------------------------------------------------------------


def test_facts_of_the_real_model() -> None:
    model = real.tokenizer_model()
    assert (model.vocab_size, model.bos_id, model.eos_ids) == (262144, 2, (1, 106))
    assert model.pieces[138] == "\u2581\u2581" and model.pieces[106] == "<end_of_turn>"
    assert model.encode("Hi") == real.tokenizer().encode("Hi", bos=False)


def test_tokenizer_json_of_transformers_comes_to_the_same(tmp_path: Path) -> None:
    real.transformers_tokenizer().save(str(tmp_path / "tokenizer.json"))
    made = build_tokenizer_model(checkpoint(tmp_path))
    assert made.pieces_sha256 == real.tokenizer_model().pieces_sha256
    assert made.eos_ids == (1, 106) and made.control_ids == real.tokenizer_model().control_ids
    converted = real.load_tokenizer(made.model)
    for text in TEXTS:
        text = text.replace("<unk>", "")
        assert converted.encode(text, bos=False) == oracle(text)


BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
ADDED = ["\n", "\n\n", "  ", "   ", "<b>"]
LEARNT = ["ab", "\u2581a", "ba", "aba", "\u2581ab", "abab", "\u2581aba"]
TOKENS = ["<pad>", "<eos>", "<bos>", "<unk>", "<start_of_turn>", "<end_of_turn>", *ADDED, *BYTES, *LEARNT, *"\u2581ab"]
SPECIALS = 6


def checkpoint(path: Path, metadata: dict[str, object] | None = None) -> MappedCheckpoint:
    config = GemmaConfig.from_hf(
        {
            "architectures": ["Gemma3ForCausalLM"], "model_type": "gemma3_text", "vocab_size": 300, "hidden_size": 32,
            "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1,
            "head_dim": 16, "query_pre_attn_scalar": 16, "sliding_window": 8, "max_position_embeddings": 64,
            "eos_token_id": 1,
        }
    )  # fmt: skip
    kind = "safetensors" if metadata is None else "gguf"
    return MappedCheckpoint(config, path, kind, 0.0, metadata or {}, {}, ())  # type: ignore[arg-type]


def tiny_gguf(**changes: object) -> dict[str, object]:
    kinds = [3] * SPECIALS + [4] * len(ADDED) + [6] * 256 + [1] * (len(LEARNT) + 3)
    kinds[3] = 2
    scores = [0.0] * len(TOKENS)
    for rank, piece in enumerate(LEARNT):
        scores[TOKENS.index(piece)] = -float(rank)
    given: dict[str, object] = {"model": "llama", "tokens": list(TOKENS), "scores": scores, "token_type": kinds}
    return {f"tokenizer.ggml.{name}": value for name, value in (given | changes).items()}


def tiny_json(**changes: object) -> dict[str, Any]:
    """What a converter makes of the same scores: every way to split a piece is a merge."""
    spelling = [token.replace(" ", "\u2581") for token in TOKENS]
    merges = [
        [piece[:i], piece[i:]]
        for piece in ("\u2581\u2581", "\u2581\u2581\u2581", "\n\n", *LEARNT)
        for i in range(1, len(piece))
        if piece[:i] in spelling and piece[i:] in spelling
    ]
    model = {
        "type": "BPE", "vocab": {piece: i for i, piece in enumerate(spelling)}, "merges": merges,
        "byte_fallback": True, "unk_token": "<unk>", "fuse_unk": True,
    }  # fmt: skip
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    added = [
        {"id": i, "content": TOKENS[i], "special": i < SPECIALS, **flags}
        for i in range(SPECIALS + len(ADDED))
        if " " not in TOKENS[i]  # runs of spaces are merged
    ]
    normalizer = {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"}
    return {"model": model | changes, "added_tokens": added, "normalizer": normalizer, "pre_tokenizer": None}


def from_json(directory: Path, data: dict[str, Any]) -> TokenizerModel:
    (directory / "tokenizer.json").write_text(json.dumps(data), encoding="utf-8")
    return build_tokenizer_model(checkpoint(directory))


def from_gguf(**changes: object) -> TokenizerModel:
    return build_tokenizer_model(checkpoint(Path("tiny.gguf"), tiny_gguf(**changes)))


def test_gguf_and_tokenizer_json_make_one_tokenizer(tmp_path: Path) -> None:
    import tokenizers

    gguf, hf = from_gguf(), from_json(tmp_path, tiny_json())
    assert gguf.pieces == hf.pieces and gguf.pieces_sha256 == hf.pieces_sha256
    assert gguf.eos_ids == hf.eos_ids == (1, 5)
    theirs = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    one, other = real.load_tokenizer(gguf.model), real.load_tokenizer(hf.model)

    # Runs of up to three spaces: longer than the longest piece, they are divided otherwise by merges.
    @given(st.lists(st.sampled_from(["a", "b", "ab", " a", "\n", "<b>", "<", "é", " b", "  b", "   b"])).map("".join))
    def check(text: str) -> None:
        expected = theirs.encode(text, add_special_tokens=False).ids
        assert one.encode(text, bos=False) == other.encode(text, bos=False) == expected

    check()


def test_padding_behind_the_vocabulary_is_left_out() -> None:
    """Checkpoints of one family pad their vocabularies to different sizes."""
    plain, given = from_gguf(), tiny_gguf()
    extra = ["<image_soft_token>", f"[PAD{len(TOKENS) + 1}]"]
    scores: Any = given["tokenizer.ggml.scores"]
    kinds: Any = given["tokenizer.ggml.token_type"]
    padded = from_gguf(tokens=[*TOKENS, *extra], scores=[*scores, -1e3, -1e3], token_type=[*kinds, 3, 5])
    assert padded.pieces_sha256 == plain.pieces_sha256
    longer = from_gguf(tokens=[*TOKENS, "real"], scores=[*scores, -1e3], token_type=[*kinds, 1])
    assert vocabulary_difference(plain.pieces, longer.pieces) == [(len(TOKENS), None, "real")]
    assert plain.pieces_sha256 != longer.pieces_sha256


def test_pieces_that_changed_places_change_the_hash() -> None:
    tokens = list(TOKENS)
    tokens[6], tokens[7] = tokens[7], tokens[6]
    assert vocabulary_difference(from_gguf().pieces, from_gguf(tokens=tokens).pieces) == [
        (6, "\n", "\n\n"), (7, "\n\n", "\n")
    ]  # fmt: skip
    assert from_gguf().pieces_sha256 != from_gguf(tokens=tokens).pieces_sha256


def test_tokenizer_model_is_taken_as_it_is(tmp_path: Path) -> None:
    given = from_gguf().model
    (tmp_path / "tokenizer.model").write_bytes(given)
    (tmp_path / "tokenizer.json").write_text("never read")
    assert build_tokenizer_model(checkpoint(tmp_path)).model == given


def test_markers_of_a_tokenizer_model_become_control_pieces(tmp_path: Path) -> None:
    """As user-defined pieces, which they are in Google's file, a user could write them."""
    from sentencepiece import sentencepiece_model_pb2

    proto = vars(sentencepiece_model_pb2)["ModelProto"]()
    proto.ParseFromString(from_gguf().model)
    for i in (4, 5):
        proto.pieces[i].type = 4
    (tmp_path / "tokenizer.model").write_bytes(proto.SerializeToString())
    settings_file = tmp_path / "tokenizer_config.json"
    settings_file.write_text(json.dumps({"added_tokens_decoder": {"10": {"content": "<b>", "special": True}}}))
    made = build_tokenizer_model(checkpoint(tmp_path))
    assert made.control_ids == (0, 1, 2, 3, 4, 5, 10)
    tokenizer = real.load_tokenizer(made.model)
    assert not {4, 5, 10} & set(tokenizer.encode("<start_of_turn><b><end_of_turn>"))
    assert tokenizer.encode("<start_of_turn><b>", bos=False, parse_special=True) == [4, 10]


REFUSED_GGUF: list[tuple[dict[str, object], str]] = [
    ({"model": "gpt2"}, "'gpt2' is not supported"),
    ({"add_space_prefix": True}, "space ahead"),
    ({"scores": [0.0]}, "1 scores"),
    ({"token_type": [9] * len(TOKENS)}, "token 0 has the unknown type 9"),
    ({"bos_token_id": 9999}, "special ids"),
    ({"bos_token_id": -1}, "special ids"),
    ({"bos_token_id": 12}, "begin of text"),
    ({"tokens": ["a"] * len(TOKENS)}, "does not load"),
    ({"tokens": [], "scores": [], "token_type": []}, "special ids"),
]


@pytest.mark.parametrize(("changes", "words"), REFUSED_GGUF)
def test_refused_gguf(changes: dict[str, object], words: str) -> None:
    with pytest.raises(CheckpointError, match=words) as caught:
        from_gguf(**changes)
    assert "\n" not in str(caught.value)


def test_gguf_without_a_tokenizer() -> None:
    for name in ("tokens", "scores", "token_type"):
        metadata = tiny_gguf()
        del metadata[f"tokenizer.ggml.{name}"]
        with pytest.raises(CheckpointError, match=f"no tokenizer.ggml.{name}"):
            build_tokenizer_model(checkpoint(Path("tiny.gguf"), metadata))


REFUSED_JSON: list[tuple[dict[str, Any], str]] = [
    (tiny_json(type="Unigram"), "Unigram"),
    (tiny_json(byte_fallback=False), "byte-fallback"),
    (tiny_json(ignore_merges=True), "ignore_merges"),
    (tiny_json(merges=[["a", "zz"]]), "not a tokenizer"),
    (tiny_json(vocab={}), "not a tokenizer"),
    (tiny_json() | {"normalizer": {"type": "NFC"}}, "normalizer"),
    (tiny_json() | {"pre_tokenizer": {"type": "ByteLevel"}}, "pre_tokenizer"),
    (tiny_json() | {"added_tokens": [{"id": 0, "content": "<pad>", "special": True, "rstrip": True}]}, "beside it"),
    ({}, "not a tokenizer"),
]


@pytest.mark.parametrize(("data", "words"), REFUSED_JSON)
def test_refused_tokenizer_json(tmp_path: Path, data: dict[str, Any], words: str) -> None:
    with pytest.raises(CheckpointError, match=words) as caught:
        from_json(tmp_path, data)
    assert "\n" not in str(caught.value)


def test_refused_tokenizer_model(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"no tokenizer\.model"):
        build_tokenizer_model(checkpoint(tmp_path))
    (tmp_path / "tokenizer.model").write_bytes(b"version https://git-lfs")
    with pytest.raises(CheckpointError, match="does not load"):
        build_tokenizer_model(checkpoint(tmp_path))


def test_the_next_model_of_the_same_vocabulary_has_the_same_tokenizer_and_tables(tmp_path: Path) -> None:
    """Made anew for each, they would leave memory in pieces: a daemon that swaps its model for hours grew by it."""
    here, there = tmp_path / "here", tmp_path / "there"
    for place in (here, there):
        shutil.copyfile(tiny.bundle() / "tokenizer.model", place)
    first, second = Tokenizer.shared(here), Tokenizer.shared(there)
    assert first is second
    size = first.vocab_size
    tables = GrammarCompiler(first, (1,), size)._tables
    assert GrammarCompiler(second, (1,), size)._tables is tables
    assert GrammarCompiler(second, (1, 2), size)._tables is not tables
    assert GrammarCompiler(second, (1,), size + 8)._tables is not tables
    there.write_bytes(there.read_bytes() + b"\x78\x01")  # a field that nobody knows
    other = Tokenizer.shared(there)
    assert other is not first and other.encode("the same") == first.encode("the same")
    GrammarCompiler(other, (1,), size)
    held = [weakref.ref(first), weakref.ref(tables)]
    del first, second, tables
    assert not any(one() for one in held)  # nobody else has them


def test_a_file_that_is_none_leaves_the_next_one_alone(tmp_path: Path) -> None:
    bad = tmp_path / "bad"
    bad.write_bytes(b"no model")
    good = Tokenizer.shared(tiny.bundle() / "tokenizer.model")
    for path in (bad, tmp_path / "absent"):
        with pytest.raises(BundleError, match="not a tokenizer model"):
            Tokenizer.shared(path)
    assert Tokenizer.shared(tiny.bundle() / "tokenizer.model").encode("a b") == good.encode("a b")


def test_remembered_pieces_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edge_runtime.text.tokenizer._MOST_KNOWN", 10)
    tokenizer = Tokenizer(tiny.bundle() / "tokenizer.model")
    all_of_it = list(tokenizer.all_piece_bytes())
    assert [tokenizer.piece_bytes(token) for token in range(tokenizer.vocab_size)] == all_of_it
    assert len(tokenizer._bytes) <= 10
