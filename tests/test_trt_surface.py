"""Every name of TensorRT and of CUDA that our code uses is in each release, and the fakes have nothing beside it."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
from fake_cuda import _SURFACE as CUDA
from fake_cuda import FakeRuntime
from fake_tensorrt import FakeTensorRT
from trt_names import Override, Use, given_by, uses_of
from trt_surface import surface, versions

ROOT = Path(__file__).resolve().parent.parent
OLDEST = "10.3.0"
PATHS = sorted((ROOT / "edge_runtime" / "engines").glob("trt*.py"))
SOURCES = {path.name: path.read_text(encoding="utf-8") for path in PATHS}
_FREE = frozenset({"__version__"})
"""Of the module, no class."""


def everything(version: str) -> list[tuple[str, Use | Override]]:
    given = given_by(list(SOURCES.values()))
    found: list[tuple[str, Use | Override]] = []
    for name, source in SOURCES.items():
        uses, overrides = uses_of(source, surface(OLDEST), given)
        found += [(name, one) for one in (*uses, *overrides)]
    return found


def problems(uses: list[tuple[str, Use | Override]], version: str) -> list[str]:
    api = surface(version)
    anywhere = {member for members in api.values() for member in members}
    ever = {member for one in versions() for members in surface(one).values() for member in members}
    found = []
    for file, use in uses:
        where = f"{file}:{use.line}: TensorRT {version}"
        if isinstance(use, Override):
            member = api.get(use.class_name, {}).get(use.member)
            if member is None or all(way.names != use.parameters for way in member.ways):
                found.append(f"{where} does not call {use.class_name}.{use.member}{use.parameters}")
        elif use.class_name is None:
            # Of what the walk could not tell: a name that some release has and this one has nowhere.
            if use.member in ever and use.member not in anywhere:
                found.append(f"{where} has no {use.member}")
        elif use.class_name not in api:
            found += [] if use.class_name in _FREE else [f"{where} has no {use.class_name}"]
        elif use.member is not None and use.member not in api[use.class_name]:
            found.append(f"{where} has no {use.class_name}.{use.member}")
        elif use.member is not None and use.arguments is not None:
            member = api[use.class_name][use.member]
            count, names = use.arguments
            if member.kind == "method" and not any(way.takes(count, set(names)) for way in member.ways):
                found.append(f"{where}: {use.class_name}.{use.member} does not take that")
    return found


def test_the_surfaces_are_those_of_the_releases_that_matter() -> None:
    assert [version.rpartition(".")[0] if version.count(".") > 2 else version for version in versions()] == [
        "10.3.0", "10.7.0", "10.16.1", "11.4.0",
    ]  # fmt: skip
    assert len(surface(OLDEST)) > 20
    gone = "create_execution_context_without_device_memory"
    assert gone in surface(OLDEST)["ICudaEngine"] and gone not in surface(versions()[-1])["ICudaEngine"]


def test_the_stubs_are_the_oldest_surface() -> None:
    """What mypy checks against is what the bindings of that release have, no more and no less."""
    tree = ast.parse((ROOT / "typings" / "tensorrt" / "__init__.pyi").read_text(encoding="utf-8"))
    told = {}
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            names = {part.name for part in node.body if isinstance(part, ast.FunctionDef | ast.ClassDef)}
            names |= {ast.unparse(part.target) for part in node.body if isinstance(part, ast.AnnAssign)}
            told[node.name] = names - {"__int__", "__buffer__"}
    assert told.pop("Logger") | {"Severity"} == set(surface(OLDEST)["Logger"])
    wanted = {name: set(members) for name, members in surface(OLDEST).items() if name != "Logger"}
    assert told == wanted


@pytest.mark.parametrize("version", versions())
def test_every_name_in_use_is_in_every_release(version: str) -> None:
    assert problems(everything(version), version) == []


def test_the_walk_sees_what_is_used() -> None:
    seen = {(use.class_name, use.member) for _, use in everything(OLDEST) if isinstance(use, Use)}
    overridden = {(use.class_name, use.member) for _, use in everything(OLDEST) if isinstance(use, Override)}
    assert seen >= {
        ("NetworkDefinitionCreationFlag", "STRONGLY_TYPED"), ("Builder", "build_serialized_network"),
        ("Builder", "create_network"), ("INetworkDefinition", "num_inputs"), ("OnnxParser", "parse_from_file"),
        ("ParserError", "desc"), ("IBuilderConfig", "set_memory_pool_limit"), ("IBuilderConfig", "max_aux_streams"),
        ("IOptimizationProfile", "set_shape"), ("ITimingCache", "serialize"), ("Runtime", "deserialize_cuda_engine"),
        ("Runtime", "gpu_allocator"), ("ICudaEngine", "device_memory_size_v2"),
        ("ICudaEngine", "create_execution_context"), ("ExecutionContextAllocationStrategy", "USER_MANAGED"),
        ("IExecutionContext", "set_device_memory"), ("IExecutionContext", "set_optimization_profile_async"),
        ("IExecutionContext", "set_input_shape"), ("IExecutionContext", "set_tensor_address"),
        ("IExecutionContext", "infer_shapes"), ("IExecutionContext", "execute_async_v3"),
    }  # fmt: skip
    assert overridden >= {("ILogger", "log"), ("IGpuAllocator", "allocate"), ("IProgressMonitor", "step_complete")}


@pytest.mark.parametrize(
    ("source", "version", "words"),
    [
        ("import tensorrt as trt\ntrt.BuilderFlag.FP16", "11.4.0.106", "has no BuilderFlag.FP16"),
        ("def f(a: trt.ICudaEngine):\n    a.device_memory_size", "11.4.0.106", "ICudaEngine.device_memory_size"),
        ("def f(engine):\n    engine.device_memory_size", "11.4.0.106", "has no device_memory_size"),
        ("def f(a: trt.IBuilderConfig):\n    a.tiling_optimization_level", OLDEST, "tiling_optimization_level"),
        (
            "def f(e: trt.ICudaEngine):\n    c = e.create_execution_context()\n    c.set_device_memory(5)",
            OLDEST,
            "does not take that",
        ),
        ("class A(trt.IGpuAllocator):\n    def allocate(self, bytes): ...", OLDEST, "does not call"),
        ("trt.IKVCacheUpdateLayer", OLDEST, "has no IKVCacheUpdateLayer"),
    ],
)
def test_the_check_can_fail(source: str, version: str, words: str) -> None:
    uses, overrides = uses_of(source, surface(OLDEST), {})
    (problem,) = problems([("a.py", one) for one in (*uses, *overrides)], version)
    assert words in problem


def test_every_call_of_cuda_is_in_every_release() -> None:
    source = (ROOT / "edge_runtime/engines/cuda.py").read_text(encoding="utf-8")
    tree = ast.parse(source)
    named = {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    named |= {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    used = {name for name in named if re.fullmatch(r"cuda[A-Z]\w*", name)}
    kinds = {name.partition(".")[0] for name in CUDA["names"] if "." in name}
    known = {name.rpartition(".")[2] for name in CUDA["names"]} | kinds
    assert len(used) > 30 and used <= known
    everywhere = {name.rpartition(".")[2] for name, ways in CUDA["names"].items() if list(ways.values()) == ["all"]}
    assert used - kinds <= everywhere


def test_the_fakes_refuse_what_the_bindings_lack() -> None:
    cuda = FakeRuntime()
    trt = FakeTensorRT(cuda)
    with pytest.raises(AttributeError, match="cudaMallocManaged"):
        cuda.cudaMallocManaged(4)
    builder = trt.Builder(trt.ILogger())
    with pytest.raises(AttributeError, match="build_engine_with_config"):
        builder.build_engine_with_config  # noqa: B018  # came with 10.4
    with pytest.raises(AttributeError, match="cannot be set"):
        builder.create_builder_config().fp16 = True
    with pytest.raises(TypeError, match="incompatible"):
        builder.create_network(1, 2)
    with pytest.raises(AttributeError):
        FakeTensorRT(cuda, versions()[-1]).BuilderFlag.FP16  # noqa: B018  # gone with 11
