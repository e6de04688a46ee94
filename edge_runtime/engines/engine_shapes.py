"""Which shapes a plan is built for, and whether its inputs and outputs are the bundle's. Pure; knows no TensorRT.

A body has two profiles, since what is fast for a few rows is slow for a chunk: *decode* runs the K + 1 rows of a
verification and fewer, *prefill* what is longer. A head has one. Where a graph leaves a size open, it is ``rows`` or
the ``capacity`` of the caches, and the latter is one number for all of a plan's life.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

from ..bundle import TARGET, Manifest, Model, Tensor
from ..errors import BundleError
from .engine_record import BuildOptions, EngineTensor, Profile, ProfileName, Shapes, Wanted

GraphName = Literal["body", "head"]
GRAPHS: tuple[GraphName, GraphName] = ("body", "head")
_ROWS, _CAPACITY = "rows", "capacity"


def roles_of(manifest: Manifest) -> tuple[str, ...]:
    """Raises ``BundleError`` where the bundle is not one for TensorRT."""
    roles = tuple(role for role, model in manifest.models.items() if model.dialect == "tensorrt")
    if TARGET not in roles:
        raise BundleError(
            f"bundle {manifest.name!r} has graphs for ONNX Runtime: export it with 'engine: tensorrt' in its recipe"
        )
    return roles


def graph_file(model: Model, graph: GraphName) -> str:
    return model.body if graph == "body" else model.head


def wanted(manifest: Manifest, options: BuildOptions) -> tuple[Wanted, ...]:
    """A plan for each graph of each model, the target's body, which is the largest, first.

    Raises ``BundleError`` for a graph with a size that nothing here gives.
    """
    digests = {entry.name: entry.sha256 for entry in manifest.files}
    found: dict[str, Wanted] = {}
    for role in roles_of(manifest):
        model = manifest.models[role]
        for graph in GRAPHS:
            name = graph_file(model, graph)
            if name not in found:
                found[name] = Wanted(
                    graph=name,
                    graph_sha256=digests[name],
                    weights={file: digests[file] for file in model.weights},
                    profiles=profiles(model, graph, options, role),
                )
    return tuple(found.values())


def profiles(model: Model, graph: GraphName, options: BuildOptions, role: str) -> tuple[Profile, ...]:
    verified = options.draft_length + 1
    if graph == "head":
        most = max(verified, model.fan_out, 2)
        usual = verified if role == TARGET else model.fan_out
        return (_profile(model, graph, "head", (1, usual, most), options),)
    decode = min(verified, options.chunk)
    usual = decode if role == TARGET else 1  # a drafter is asked for one token after the other
    found = [_profile(model, graph, "decode", (1, usual, decode), options)]
    if model.feeds_chunks and options.chunk > decode:
        found.append(_profile(model, graph, "prefill", (decode + 1, options.chunk, options.chunk), options))
    return tuple(found)


def _profile(
    model: Model, graph: GraphName, name: ProfileName, rows: tuple[int, int, int], options: BuildOptions
) -> Profile:
    inputs = {}
    for line in _lines(model, graph):
        if line.direction == "in" and any(isinstance(size, str) for size in line.shape):
            least, usual, most = (_sizes(line, count, options.context, model) for count in rows)
            inputs[line.name] = Shapes(least, usual, most)
    return Profile(name, rows[0], rows[2], inputs)


def _sizes(line: Tensor, rows: int, context: int, model: Model) -> tuple[int, ...]:
    known = {_ROWS: rows, _CAPACITY: min(context, model.max_context)}
    sizes = []
    for size in line.shape:
        if isinstance(size, str) and size not in known:
            raise BundleError(f"{line.graph}: {line.name} has the size {size!r}; a plan knows rows and capacity only")
        sizes.append(known[size] if isinstance(size, str) else size)
    return tuple(sizes)


def _lines(model: Model, graph: GraphName) -> list[Tensor]:
    return [line for line in model.io if line.graph == graph]


def io_problem(model: Model, graph: GraphName, found: Sequence[EngineTensor]) -> str | None:
    """What of a network or of a plan is not as the manifest's I/O table has it, in words; ``None``: nothing."""
    listed = {line.name: line for line in _lines(model, graph)}
    there = {tensor.name: tensor for tensor in found}
    for names, words in ((listed.keys() - there.keys(), "lacks"), (there.keys() - listed.keys(), "has an unlisted")):
        if names:
            return f"{words} {', '.join(sorted(names))}"
    for name, line in listed.items():
        tensor = there[name]
        if tensor.direction != line.direction:
            return f"{name} goes {tensor.direction}, and the manifest has it go {line.direction}"
        if tensor.dtype != line.dtype:
            return f"{name} is {tensor.dtype}, and the manifest says {line.dtype}"
        if not _alike(tensor.shape, line.shape):
            shapes = [" x ".join(str(size) for size in shape) for shape in (tensor.shape, line.shape)]
            return f"{name} is {shapes[0]}, and the manifest says {shapes[1]}"
    return None


def _alike(shape: Sequence[int], listed: Sequence[int | str]) -> bool:
    """An open size may be fixed in the plan, and a fixed one that only TensorRT cannot tell may be open."""
    pairs = zip(shape, listed, strict=False)
    return len(shape) == len(listed) and all(isinstance(said, str) or size in (said, -1) for size, said in pairs)


def refuse_other_io(path: Path, model: Model, graph: GraphName, found: Sequence[EngineTensor]) -> None:
    """Raises ``BundleError``."""
    if (problem := io_problem(model, graph, found)) is not None:
        raise BundleError(f"{path}: {problem}; export the bundle again")


def capacity_of(plan_profiles: Sequence[Profile], io: Sequence[EngineTensor]) -> int | None:
    """Positions of a plan's past; ``None``: it has none."""
    sizes: Mapping[str, tuple[int, ...]] = {tensor.name: tensor.shape for tensor in io}
    for name, shape in sizes.items():
        if name.startswith("past_"):
            bounded = plan_profiles[0].inputs.get(name)
            return shape[2] if bounded is None else bounded.most[2]
    return None
