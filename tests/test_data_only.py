"""What is read is data: nothing in the sources runs what a file, a checkpoint or a client says; and of a directory that
others made nothing is waited for, nor read without a bound."""

from __future__ import annotations

import ast
import json
import os
import pickle
import re
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from fuzz.targets import tokenizer_model

from edge_runtime.bundle import read_manifest
from edge_runtime.engines.engine_record import read_record
from edge_runtime.errors import BundleError, CheckpointError, InputError
from edge_runtime.text.chat import ChatTemplate
from export.chat_template import template_for
from export.checkpoint import open_checkpoint
from export.tokenizer import build_tokenizer_model

ROOT = Path(__file__).parent.parent
SOURCES = sorted(path for top in ("edge_runtime", "export", "tools", "examples") for path in (ROOT / top).rglob("*.py"))

_RUN = {"eval", "exec", "compile", "__import__"}
_SHELLS = {"os.system", "os.popen", "subprocess.getoutput", "subprocess.getstatusoutput"}
_PICKLES = {"pickle", "marshal", "shelve", "dill", "cloudpickle", "joblib", "code", "tarfile"}
"""tarfile: an archive writes where it likes; zipfile keeps to its place."""
_ERRORS_OF_PICKLES = {"PickleError", "UnpicklingError"}
_UNSAFE_YAML = {f"yaml.{name}" for name in ("unsafe_load", "full_load", "load_all", "unsafe_load_all", "full_load_all")}
_METHODS = {"register_custom_ops_library", "unpack_archive"}
"""Of whatever object."""
_WORDS = re.compile(
    r"\b(?:eval|exec|compile|__import__|system|popen|getoutput|getstatusoutput|pickle|marshal|shelve|dill|cloudpickle"
    r"|joblib|code|tarfile|yaml|torch|register_custom_ops_library|unpack_archive|trust_remote_code|shell|allow_pickle"
    r"|weights_only|from_pretrained|from_string|Template)\b"
)
"""Without one of these no rule has anything to say: most sources need not be parsed."""
_TEMPLATES = {"edge_runtime/text/sandbox.py", "edge_runtime/bench/page.py"}
"""Where templates are run: a model's in the sandbox, and one of our own."""


def problems(source: str, path: str) -> Iterator[str]:
    if not _WORDS.search(source):
        return
    tree = ast.parse(source)
    classes = {node.name: [_dotted(one) for one in node.bases] for node in ast.walk(tree)
               if isinstance(node, ast.ClassDef)}  # fmt: skip
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (f"imports {one.name}" for one in node.names if one.name.split(".")[0] in _PICKLES)
        elif isinstance(node, ast.ImportFrom) and not node.level and (node.module or "").split(".")[0] in _PICKLES:
            yield from (f"imports {node.module}.{one.name}" for one in node.names if one.name not in _ERRORS_OF_PICKLES)
        elif isinstance(node, ast.Call):
            yield from (f"line {node.lineno}: {one}" for one in _of_call(node, classes, path))
        elif isinstance(node, ast.Dict):
            pairs = zip(node.keys, node.values, strict=True)
            named = {key.value: value for key, value in pairs if isinstance(key, ast.Constant)}
            yield from _wrong(named, {"trust_remote_code": False, "shell": False, "allow_pickle": False})


def _of_call(node: ast.Call, classes: dict[str, list[str]], path: str) -> Iterator[str]:
    called = _dotted(node.func)
    name = called.split(".")[-1]
    given = {one.arg: one.value for one in node.keywords if one.arg}
    open_ended = any(one.arg is None for one in node.keywords)
    if called in _RUN or called in _SHELLS or called in _UNSAFE_YAML or name in _METHODS:
        yield f"calls {called}"
    if called == "yaml.load":
        loader = _dotted(given.get("Loader", node.args[-1]))
        if loader != "yaml.SafeLoader" and classes.get(loader) != ["yaml.SafeLoader"]:
            yield f"yaml.load with {loader}"
    yield from _wrong(given, {"trust_remote_code": False, "shell": False, "allow_pickle": False, "weights_only": True})
    if called == "torch.load" and "weights_only" not in given:
        yield "torch.load without weights_only=True"
    if name == "from_pretrained" and not open_ended and "trust_remote_code" not in given:
        yield "from_pretrained without trust_remote_code=False"
    if (name == "from_string" or called in ("jinja2.Template", "Template.from_code")) and path not in _TEMPLATES:
        yield "runs a template outside the sandbox"


def _dotted(node: ast.expr) -> str:
    if isinstance(node, ast.Attribute):
        return f"{_dotted(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


def _wrong(given: dict[str, ast.expr], wanted: dict[str, bool]) -> Iterator[str]:
    for name, value in wanted.items():
        found = given.get(name)
        if found is not None and not (isinstance(found, ast.Constant) and found.value is value):
            yield f"{name} is not {value}"


def test_nothing_runs_what_it_reads() -> None:
    assert len(SOURCES) > 400
    found = []
    for path in SOURCES:
        name = path.relative_to(ROOT).as_posix()
        found += [f"{name}: {one}" for one in problems(path.read_text(encoding="utf-8"), name)]
    assert found == []


@pytest.mark.parametrize(
    "source",
    [
        "eval(text)", "exec(text)", "compile(text, '', 'exec')", "__import__(name)", "import pickle",
        "from pickle import loads", "import marshal", "import joblib", "from shelve import open", "os.system(text)",
        "subprocess.run(text, shell=True)", "subprocess.Popen(text, shell=wish)", "yaml.load(text, yaml.Loader)",
        "yaml.load(text)", "class L(yaml.Loader): pass\nyaml.load(text, L)", "yaml.unsafe_load(text)",
        "torch.load(path)", "torch.load(path, weights_only=False)", "np.load(path, allow_pickle=True)",
        "AutoModel.from_pretrained(path)", "AutoModel.from_pretrained(path, trust_remote_code=True)",
        "options = {'trust_remote_code': True}", "options.register_custom_ops_library(path)", "import tarfile",
        "Environment().from_string(text)", "jinja2.Template(text)",
    ],
)  # fmt: skip
def test_the_rule_can_fail(source: str) -> None:
    assert len(list(problems(source, "a.py"))) == 1


@pytest.mark.parametrize(
    "source",
    [
        "re.compile(text)", "model.eval()", "from pickle import PickleError", "torch.load(path, weights_only=True)",
        "np.load(path)", "class L(yaml.SafeLoader): pass\nyaml.load(text, L)", "yaml.safe_load(text)",
        "AutoModel.from_pretrained(path, **options)",
    ],
)  # fmt: skip
def test_the_rule_can_hold(source: str) -> None:
    assert list(problems(source, "a.py")) == []


class Bomb:
    """What a pickle may be."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[object, tuple[object, ...]]:
        return Path.touch, (self.mark,)


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "x.pth", "x.ckpt", "x.pkl"])
def test_a_checkpoint_that_is_a_program_is_refused_unread(tmp_path: Path, name: str) -> None:
    mark, config = tmp_path / "it ran", {"model_type": "gemma3_text", "architectures": ["Gemma3ForCausalLM"]}
    (tmp_path / name).write_bytes(pickle.dumps(Bomb(mark)))
    with pytest.raises(CheckpointError, match=f"{name} is a pickle, a program that runs when it is read"):
        open_checkpoint(tmp_path / name)
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    with pytest.raises(CheckpointError) as caught:
        open_checkpoint(tmp_path)
    assert len(str(caught.value).splitlines()) == 1 and not mark.exists()


@pytest.mark.parametrize(
    "name",
    ["config.json", "generation_config.json", "model.safetensors.index.json", "tokenizer.model", "tokenizer.json",
     "tokenizer_config.json", "chat_template.jinja", "chat_template.json"],
)  # fmt: skip
def test_what_stands_beside_weights_is_read_up_to_a_bound(tmp_path: Path, name: str) -> None:
    """A file with nothing in it takes no room on a disk, and all memory where it is read whole."""
    tokenizer_model.prepare(tmp_path)
    if name.startswith("tokenizer"):
        (tmp_path / "tokenizer.model").write_bytes(tokenizer_model.seeds()[0])
    if name == "tokenizer.json":
        (tmp_path / "tokenizer.model").unlink()
    with (tmp_path / name).open("wb") as file:
        file.truncate(1 << 40)
    read = build_tokenizer_model if name.startswith("tokenizer") else template_for
    with pytest.raises(CheckpointError, match=rf"{name}: cannot be read: more than 64 MiB"):
        read(open_checkpoint(tmp_path))


def test_a_template_of_a_bundle_is_read_up_to_a_bound(tmp_path: Path) -> None:
    with (tmp_path / "chat_template.jinja").open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(BundleError, match="more than 1 MiB"):
        ChatTemplate.read(tmp_path / "chat_template.jinja")


@pytest.mark.parametrize(
    "name", ["config.json", "model.safetensors", "x.safetensors", "x.gguf", "bundle.json", "engine.json"]
)
def test_a_pipe_is_not_waited_for(tmp_path: Path, name: str) -> None:
    """An archive may hold one."""
    tokenizer_model.prepare(tmp_path)
    if name.endswith(".safetensors"):
        (tmp_path / "model.safetensors").unlink()
    (tmp_path / name).unlink(missing_ok=True)
    os.mkfifo(tmp_path / name)
    read = {"bundle.json": read_manifest, "engine.json": read_record}.get(name, open_checkpoint)
    with only_for_seconds(30), pytest.raises(InputError, match=rf"{name}.*it is no ordinary file"):
        read(tmp_path / name if name == "x.gguf" else tmp_path)


@contextmanager
def only_for_seconds(seconds: int) -> Iterator[None]:
    def over(*_: object) -> None:
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, over)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
