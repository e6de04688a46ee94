"""A bundle that is not whole is refused in one line that says what is wrong."""

from __future__ import annotations

import json
import re
import tracemalloc
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

import onnx
import pytest
from fuzz.targets.wire import mutate, taking_from
from google.protobuf.message import DecodeError

from edge_runtime.bundle import (
    MANIFEST_NAME,
    FileEntry,
    KvLayer,
    Manifest,
    MemoryNeeds,
    Model,
    TokenizerEntry,
    file_sha256,
    read_manifest,
    verify_files,
    write_manifest,
)
from edge_runtime.errors import BundleError, ConfigError, InputError
from edge_runtime.graph_data import locations
from edge_runtime.schema import structure
from edge_runtime.soundness import refuse_commands
from edge_runtime.wire import Field, Fixed, encode

FILES = ("target.body.onnx", "target.head.onnx", "target.readout.onnx", "target.weights", "tokenizer.model", "NOTICE")


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    for name in FILES:
        # Of a graph, the field that says who made it.
        (tmp_path / name).write_bytes(encode([(2, name.encode() * 50)]))
    entries = tuple(FileEntry(n, (tmp_path / n).stat().st_size, file_sha256(tmp_path / n)) for n in FILES)
    model = Model(
        body=FILES[0], head=FILES[1], readout=FILES[2], screen=None, weights=(FILES[3],), table=(), precision="fp32",
        accuracy_level=0, vocab_size=64, token_ids=None, hidden_size=8, candidates=64, max_context=32,
        kv_dtype="float32", layers=(KvLayer(1, 4, 8), KvLayer(1, 4, None)), io=(),
    )  # fmt: skip
    manifest = Manifest(
        schema_version=1, name="m", family="gemma3", models={"target": model},
        tokenizer=TokenizerEntry("tokenizer.model", 64, 2, (1,), ""), chat_template=None,
        memory=MemoryNeeds(1, 2, 3), sources=(), recipe={"precision": "fp32"}, notes=(), licence="Gemma",
        licence_file="NOTICE", exporter="test", files=entries,
    )  # fmt: skip
    write_manifest(tmp_path, manifest)
    return tmp_path


def _edit(bundle: Path, **changes: Any) -> None:
    path = bundle / MANIFEST_NAME
    data = json.loads(path.read_text())
    data.update(changes)
    path.write_text(json.dumps(data))


def test_a_whole_bundle_reads_back_as_written(bundle: Path) -> None:
    manifest = read_manifest(bundle)
    verify_files(bundle, manifest)
    assert manifest.model("target").kv_bytes_per_token == 2 * 2 * 4 * 4
    write_manifest(bundle, manifest)
    assert read_manifest(bundle) == manifest


def test_a_missing_role_is_named(bundle: Path) -> None:
    with pytest.raises(BundleError, match="no draft model"):
        read_manifest(bundle).model("draft")


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("damage", ["missing", "truncated", "grown", "flipped", "empty"])
def test_every_damage_to_every_file_is_found(bundle: Path, name: str, damage: str) -> None:
    path = bundle / name
    data = path.read_bytes()
    if damage == "missing":
        path.unlink()
    else:
        flipped = bytes([data[0] ^ 1]) + data[1:]
        path.write_bytes({"truncated": data[:-1], "grown": data + b"x", "flipped": flipped, "empty": b""}[damage])
    with pytest.raises(BundleError, match=name):
        verify_files(bundle, read_manifest(bundle))


def test_no_directory(tmp_path: Path) -> None:
    for name in ("nowhere", "x" * 300):
        with pytest.raises(BundleError, match="no bundle at"):
            read_manifest(tmp_path / name)


def test_a_directory_that_is_no_bundle(tmp_path: Path) -> None:
    with pytest.raises(BundleError, match="not a bundle"):
        read_manifest(tmp_path)


@pytest.mark.parametrize("text", ["", "{", "[]", "null", "\x00\xff", '"text"'])
def test_a_manifest_that_is_no_manifest(bundle: Path, text: str) -> None:
    (bundle / MANIFEST_NAME).write_text(text, encoding="latin-1")
    with pytest.raises(BundleError):
        read_manifest(bundle)


@pytest.mark.parametrize(
    ("version", "words"),
    [
        (0, "schema version 0, but this runtime reads 1; export the bundle again"),
        ("1", "schema version '1', but this runtime reads 1; export the bundle again"),
        (True, "schema version True, but this runtime reads 1; export the bundle again"),
        (2, "schema version 2, but this runtime reads 1; update edge-runtime"),
        (None, r"bundle.json names no schema version \(this runtime reads 1\)"),
    ],
)
def test_another_schema_version_says_what_to_do(bundle: Path, version: object, words: str) -> None:
    _edit(bundle, schema_version=version)
    with pytest.raises(BundleError, match=words + "$"):
        read_manifest(bundle)


def test_a_manifest_that_cannot_be_read_is_named_once(bundle: Path) -> None:
    (bundle / MANIFEST_NAME).unlink()
    (bundle / MANIFEST_NAME).mkdir()
    with pytest.raises(BundleError, match=f"^{bundle / MANIFEST_NAME} cannot be read: Is a directory$"):
        read_manifest(bundle)


def test_an_unknown_key_is_an_error_with_a_suggestion(bundle: Path) -> None:
    _edit(bundle, licences="x")
    with pytest.raises(BundleError, match=r"'licences' \(did you mean 'licence'\?\)"):
        read_manifest(bundle)


def test_a_wrong_type_names_its_place(bundle: Path) -> None:
    _edit(bundle, notes="text")
    with pytest.raises(BundleError, match="notes"):
        read_manifest(bundle)


@pytest.mark.parametrize("name", ["../outside", "/etc/passwd", "a/b", ".."])
def test_a_file_outside_the_bundle_is_refused(bundle: Path, name: str) -> None:
    entries = json.loads((bundle / MANIFEST_NAME).read_text())["files"]
    _edit(bundle, files=[*entries, {"name": name, "bytes": 1, "sha256": ""}])
    with pytest.raises(BundleError, match="leaves the bundle"):
        read_manifest(bundle)


def _taken_from(message: Any) -> Iterator[str]:
    """By the definition: every tensor's external data, wherever the message has one."""
    for field, value in message.ListFields():
        if field.type == field.TYPE_MESSAGE:
            for inner in value if field.is_repeated else [value]:
                yield from _taken_from(inner)
    if isinstance(message, onnx.TensorProto):
        for entry in message.external_data:
            if entry.key == "location":  # what is no UTF-8 comes as bytes
                yield entry.value if isinstance(entry.value, str) else entry.value.decode("utf-8", "backslashreplace")


def test_all_that_a_graph_takes_data_from_is_found() -> None:
    """Held against protobuf's own reader, of whatever it takes for a graph."""
    rng, taken = Random(5), 0
    pool = [taking_from("target.weights", "../x", "/etc/passwd")]
    for _ in range(1500):
        data = mutate(rng.choice(pool), rng)
        try:
            theirs = set(_taken_from(onnx.ModelProto.FromString(data)))
        except DecodeError:
            continue
        pool += [data] if theirs else []
        taken += len(theirs)
        try:
            ours = set(locations(data))
        except ValueError:
            continue  # nothing is run of it
        assert theirs <= ours
    assert taken > 500


def _replace(bundle: Path, name: str, data: bytes) -> None:
    """As whoever hands on a bundle of his own would: sizes and hashes are right."""
    (bundle / name).write_bytes(data)
    entries = json.loads((bundle / MANIFEST_NAME).read_text())["files"]
    for entry in entries:
        entry["bytes"], entry["sha256"] = (bundle / entry["name"]).stat().st_size, file_sha256(bundle / entry["name"])
    _edit(bundle, files=entries)


@pytest.mark.parametrize("place", range(3))
@pytest.mark.parametrize(
    "location",
    ["../outside", "/etc/passwd", "NOTICE/../../x", "sub/target.weights", "unlisted", "", "*/_ORT_MEM_ADDR_/*"],
)
def test_graphs_take_data_from_listed_files_alone(bundle: Path, location: str, place: int) -> None:
    named = ["target.weights"] * 3
    _replace(bundle, "target.body.onnx", taking_from(*named))
    verify_files(bundle, read_manifest(bundle))
    (bundle / "unlisted").write_bytes(b"x")
    named[place] = location
    _replace(bundle, "target.body.onnx", taking_from(*named))
    with pytest.raises(BundleError, match=rf"takes data from '{re.escape(location)}', which is no listed file"):
        verify_files(bundle, read_manifest(bundle), hashes=False)


@pytest.mark.parametrize("name", ["target.body", "target.body.pb", "target.body.ONNX", "target.body.ort"])
def test_a_graph_by_any_other_name_is_none(bundle: Path, name: str) -> None:
    """onnxruntime reads a graph whatever it is called; what a graph takes data from is looked up by its name."""
    entries = json.loads((bundle / MANIFEST_NAME).read_text())["files"]
    twin = {**entries[0], "name": name}
    target = json.loads((bundle / MANIFEST_NAME).read_text())["models"]["target"]
    lookup, lanes = {"graph": name, "width": 8}, {"graph": name, "count": 2}
    screens = [{"head": name, "readout": FILES[2], "rescored": 8}, {"head": FILES[1], "readout": name, "rescored": 8}]
    edits: list[dict[str, Any]] = [{key: name} for key in ("body", "head", "readout", "stem")]
    edits += [{"lookup": lookup}, {"lanes": lanes}, *({"screen": one} for one in screens)]
    edits += [{"narrow": {name: FILES[0]}}, {"narrow": {FILES[0]: name}}]
    for edit in edits:
        _edit(bundle, files=[*entries, twin], models={"target": target | edit})
        with pytest.raises(BundleError, match=f"{re.escape(name)} is used as a graph, and is not called"):
            read_manifest(bundle)


@pytest.mark.parametrize("field", [(2, 5), (1, 5), (2, Fixed(bytes(4))), (1, Fixed(bytes(8)))])
def test_a_place_that_a_field_of_another_type_seems_to_replace(bundle: Path, field: Field) -> None:
    """Which is an unknown one, and replaces nothing."""
    entry = encode([(1, b"location"), (2, b"../outside"), field])
    tensor = encode([(13, entry), (14, 1)])
    _replace(bundle, "target.body.onnx", encode([(7, encode([(5, tensor)]))]))
    with pytest.raises(BundleError, match=r"takes data from '\.\./outside'"):
        verify_files(bundle, read_manifest(bundle))


def test_a_number_of_a_field_that_an_engine_cuts_to_32_bits(bundle: Path) -> None:
    """protobuf drops what is beyond them, and reads a graph where a stricter reader would see an unknown field."""
    graph = taking_from("../outside")
    far = (7 + (1 << 29)) << 3 | 2
    tag = bytes(far >> 7 * i & 0x7F | 0x80 for i in range(4)) + bytes([far >> 28])
    assert graph[0] == 7 << 3 | 2 and far & 0xFFFFFFFF == graph[0]
    _replace(bundle, "target.body.onnx", tag + graph[1:])
    with pytest.raises(BundleError, match="no graph of ONNX: field 536870919"):
        verify_files(bundle, read_manifest(bundle))


@pytest.mark.parametrize("data", [b"\xff" * 20, b"\x0b\x0c", b"\x02\x00", encode([(7, b"\x0a\xff")])])
def test_what_cannot_be_read_is_notaking_from(bundle: Path, data: bytes) -> None:
    """An engine may be more patient: it would read what was not looked at."""
    _replace(bundle, "target.body.onnx", data)
    with pytest.raises(BundleError, match="no graph of ONNX"):
        verify_files(bundle, read_manifest(bundle))


def test_graphs_within_graphs_without_end(bundle: Path) -> None:
    data = encode([(1, b"")])
    for _ in range(2000):
        data = encode([(1, encode([(5, encode([(6, data)]))]))])
    _replace(bundle, "target.body.onnx", encode([(7, data)]))
    with pytest.raises(BundleError, match="nested too deeply"):
        verify_files(bundle, read_manifest(bundle))


def test_graphs_within_graphs_are_not_copied_at_each_level(bundle: Path) -> None:
    data = encode([(1, encode([(7, bytes(1 << 20))]))])
    for _ in range(30):
        data = encode([(1, encode([(5, encode([(6, data)]))]))])
    _replace(bundle, "target.body.onnx", encode([(7, data)]))
    tracemalloc.start()
    try:
        verify_files(bundle, read_manifest(bundle), hashes=False)
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
    finally:
        tracemalloc.stop()


def test_names_are_looked_at_however_deep_they_lie(bundle: Path) -> None:
    """From Python 3.12 on, JSON is read deeper than a function may call itself."""
    deep: Any = "a\x1bb"
    for _ in range(20_000):
        deep = {"a": [deep]}
    with pytest.raises(BundleError, match="which no name has"):
        refuse_commands(bundle, "it", deep)


def test_links_that_lead_out_of_a_bundle(bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    weights, elsewhere = bundle / "target.weights", tmp_path_factory.mktemp("elsewhere") / "weights"
    weights.rename(elsewhere)
    weights.symlink_to(elsewhere)
    with pytest.raises(BundleError, match="a link that leads out of the bundle"):
        verify_files(bundle, read_manifest(bundle))
    weights.unlink()
    elsewhere.rename(bundle / "once")
    weights.symlink_to("once")
    verify_files(bundle, read_manifest(bundle))
    # The directory itself may be one.
    link = elsewhere.parent / "bundle"
    link.symlink_to(bundle)
    verify_files(link, read_manifest(link))


@pytest.mark.parametrize("key", ["recipe", "notes", "beside"])
def test_a_manifest_that_nests_is_read_or_refused_however_deep(bundle: Path, key: str) -> None:
    """Also where the reader of JSON just takes it, which hangs on the release of Python."""
    whole = json.loads((bundle / MANIFEST_NAME).read_text())
    for depth in (*range(900, 1000, 3), 1_200, 1_450, 5_000, 50_000):
        text = json.dumps({**whole, key: {"a": "@"}}).replace('"@"', f"{'[' * depth}{']' * depth}")
        (bundle / MANIFEST_NAME).write_text(text)
        with suppress(BundleError):
            read_manifest(bundle)


@pytest.mark.parametrize("character", ["\x1b", "\n", "\x7f", "\x9b", "\u2028", "\ud800"])
def test_a_name_that_commands_a_terminal_is_refused_wherever_it_stands(bundle: Path, character: str) -> None:
    """Names are printed, logged and sent by all that reads a bundle; here all of them go through."""
    whole = (bundle / MANIFEST_NAME).read_text()
    evil = f"a{character}[31mb"
    data = json.loads(whole)
    target, entries = data["models"]["target"], data["files"]
    edits: list[dict[str, Any]] = [
        {"name": evil},
        {"family": evil},
        {"exporter": evil},
        {"notes": ["fine", evil]},
        {"models": {"target": target, evil: target}},
        {"models": {"target": {**target, "body": evil}}},
        {"files": [{**entries[0], "name": evil}, *entries[1:]]},
        {evil: 1},
    ]
    for edit in edits:
        _edit(bundle, **edit)
        with pytest.raises(BundleError) as caught:
            read_manifest(bundle)
        assert str(caught.value).isprintable() and "which no name has" in str(caught.value)
        (bundle / MANIFEST_NAME).write_text(whole)
    _edit(bundle, recipe={"source": evil}, name="Gemma für 圖 \U0001f600")  # what it was made of is printed nowhere
    read_manifest(bundle)


def test_a_file_that_is_used_must_be_listed(bundle: Path) -> None:
    entries = json.loads((bundle / MANIFEST_NAME).read_text())["files"]
    _edit(bundle, files=[entry for entry in entries if entry["name"] != "target.weights"])
    with pytest.raises(BundleError, match=r"target\.weights used but not in the list"):
        read_manifest(bundle)


def test_a_bundle_without_target(bundle: Path) -> None:
    _edit(bundle, models={})
    with pytest.raises(BundleError, match="no target"):
        read_manifest(bundle)


def test_structure_names_nested_places() -> None:
    with pytest.raises(ConfigError, match=r"here: files\[0\]: unknown key 'byte' \(did you mean 'bytes'\?\)"):
        structure(Manifest, {"files": [{"name": "a", "byte": 1}]}, ConfigError, "here")


def test_input_errors_exit_with_2() -> None:
    assert InputError.exit_code == BundleError.exit_code == 2
