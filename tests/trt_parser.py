"""The real parser and builder of TensorRT-RTX, which need no GPU. Knows no test and no graph of ours.

It is another product than the TensorRT of a board, and newer: what it refuses is wrong, what it takes is likely right.
Without a GPU it builds for a compute capability that is named, and no engine can be loaded.
"""

from __future__ import annotations

import platform
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import onnx
import pytest

Shapes = dict[str, tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]]
"""Input -> its least, usual and largest shape: one profile."""


def trt() -> Any:
    try:
        import tensorrt_rtx_bindings
    except ImportError as problem:
        here = f"{sys.platform} on {platform.machine()}"
        if here == "linux on x86_64":
            pytest.fail(f"tensorrt-rtx-cu12 is not installed ({problem}): pip install '.[test]'")
        pytest.skip(f"there is no wheel of tensorrt-rtx-cu12 for {here}")
    return tensorrt_rtx_bindings


class Parsed:
    """A graph as a strongly typed network, or what was wrong with it."""

    def __init__(self, graph: Path | onnx.ModelProto) -> None:
        self._trt = trt()
        self._logger = _logger(self._trt)
        self._builder = self._trt.Builder(self._logger)
        flags = 1 << int(self._trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED)
        self.network = self._builder.create_network(flags)
        parser = self._trt.OnnxParser(self.network, self._logger)
        if isinstance(graph, Path):
            self.accepted = bool(parser.parse_from_file(str(graph)))
        else:
            self.accepted = bool(parser.parse(graph.SerializeToString()))
        self.errors = [parser.get_error(i).desc() for i in range(parser.num_errors)]

    def build(self, profiles: Sequence[Shapes]) -> int:
        """Bytes of the plan; 0 where the builder gave up."""
        config = self._builder.create_builder_config()
        config.set_memory_pool_limit(self._trt.MemoryPoolType.WORKSPACE, 64 << 20)
        for shapes in profiles:
            profile = self._builder.create_optimization_profile()
            for name, (least, usual, largest) in shapes.items():
                profile.set_shape(name, least, usual, largest)
            assert config.add_optimization_profile(profile) >= 0
        plan = self._builder.build_serialized_network(self.network, config)
        return 0 if plan is None else int(plan.nbytes)

    @property
    def complaints(self) -> list[str]:
        return list(self._logger.messages)


def _logger(module: Any) -> Any:
    class Logger(module.ILogger):  # type: ignore[misc]
        def __init__(self) -> None:
            module.ILogger.__init__(self)
            self.messages: list[str] = []

        def log(self, severity: Any, message: str) -> None:
            if severity in (module.ILogger.ERROR, module.ILogger.INTERNAL_ERROR):
                self.messages.append(message)

    return Logger()


def body_profiles(proto: onnx.ModelProto, capacity: int, rows: Sequence[tuple[int, int]]) -> list[Shapes]:
    """A profile for each (least, most) of rows."""
    found = []
    for least, most in rows:
        shapes: Shapes = {}
        for value in proto.graph.input:
            dims = [dim.dim_param or dim.dim_value for dim in value.type.tensor_type.shape.dim]
            if any(isinstance(size, str) for size in dims):
                shapes[value.name] = tuple(  # type: ignore[assignment]
                    tuple(count if size == "rows" else capacity if size == "capacity" else size for size in dims)
                    for count in (least, max(least, most // 2), most)
                )
        found.append(shapes)
    return found
