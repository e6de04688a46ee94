"""Nodes and initializers of one ONNX graph as they come. Knows no operation of ours and no checkpoint."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from ..weights import Blocks, Region

MS = "com.microsoft"
OPSET = 21
IR_VERSION = 10
"""Of ONNX 1.16. The operators need more than that: onnxruntime 1.23 or later (docs/run.md)."""

_ONNX_DTYPE = {
    "float32": TensorProto.FLOAT,
    "float16": TensorProto.FLOAT16,
    "uint8": TensorProto.UINT8,
    "int64": TensorProto.INT64,
    "int32": TensorProto.INT32,
    "int4": TensorProto.INT4,
}


def value_info(name: str, dtype: int, shape: Sequence[int | str]) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, dtype, list(shape))


def external_tensor(name: str, region: Region) -> onnx.TensorProto:
    """A tensor whose bytes lie in a weight file."""
    tensor = TensorProto(name=name, data_type=_ONNX_DTYPE[region.dtype], dims=region.shape)
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in (("location", region.file), ("offset", region.offset), ("length", region.length)):
        tensor.external_data.add(key=key, value=str(value))
    return tensor


def table_regions(name: str, table: Blocks, rows: int | None = None) -> list[tuple[str, Region]]:
    """Initializers of a table whose rows are gathered: the bytes that the head's product reads.

    As ``rows`` longer rows, where several that lie one behind the other are gathered as one.
    """
    count = table.rows if rows is None else rows
    joined = table.rows // count
    regions = [(name, replace(table.quants, shape=(count, joined * table.columns * table.bits // 8)))]
    for part, region in ((f"{name}.scales", table.scales), (f"{name}.zero_points", table.zero_points)):
        if region is not None:
            regions.append((part, replace(region, shape=(count, joined * region.shape[1]))))
    return regions


def block_table(add: Callable[[onnx.TensorProto], str], name: str, table: Blocks, rows: int | None = None) -> list[str]:
    """The inputs of a GatherBlockQuantized over ``table``, indices left out."""
    return [add(external_tensor(part, region)) for part, region in table_regions(name, table, rows)]


class Nodes:
    """Collects the nodes and initializers of one graph."""

    def __init__(self, half: bool) -> None:
        self.half = half
        self._nodes: list[onnx.NodeProto] = []
        self._initializers: dict[str, onnx.TensorProto] = {}
        self._done: set[str] = set()

    def model(
        self, name: str, inputs: list[onnx.ValueInfoProto], outputs: list[onnx.ValueInfoProto]
    ) -> onnx.ModelProto:
        graph = helper.make_graph(self._nodes, name, inputs, outputs, list(self._initializers.values()))
        opsets = [helper.make_opsetid("", OPSET), helper.make_opsetid(MS, 1)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=IR_VERSION, producer_name="edge-export")

    def several(self, kind: str, inputs: list[str], outs: list[str], domain: str = "", **attributes: Any) -> list[str]:
        named = next(out for out in outs if out)
        self._nodes.append(helper.make_node(kind, inputs, outs, name=named, domain=domain, **attributes))
        self._done.update(outs)
        return outs

    def node(self, kind: str, inputs: list[str], out: str, domain: str = "", **attributes: Any) -> str:
        """Twice under one name is once: the same inputs make the same value."""
        if out not in self._done:
            self.several(kind, inputs, [out], domain, **attributes)
        return out

    def constant(self, name: str, array: NDArray[Any]) -> str:
        self._initializers.setdefault(name, numpy_helper.from_array(array, name))
        return name

    def ints(self, *values: int) -> str:
        return self.constant("ints_" + "_".join(map(str, values)), np.array(values, np.int64))

    def add(self, tensor: onnx.TensorProto) -> str:
        self._initializers.setdefault(tensor.name, tensor)
        return tensor.name

    def external(self, name: str, region: Region) -> str:
        return self.add(external_tensor(name, region))

    def as_half(self, x: str) -> str:
        return self.node("Cast", [x], f"{x}.f16in", to=TensorProto.FLOAT16)

    def rms_norm(self, out: str, x: str, weight: str, eps: float) -> str:
        # The standard operator set has no RMS norm before opset 23; this one lives in the default domain of ORT.
        return self.node("SimplifiedLayerNormalization", [x, weight], out, axis=-1, epsilon=eps, stash_type=1)

    def group_norm(self, out: str, x: str, weight: str, groups: int, width: int, eps: float) -> str:
        """RMS norm of each part of a row; a reshape only where there are several."""
        if groups == 1:
            return self.rms_norm(out, x, weight, eps)
        parts = self.node("Reshape", [x, self.ints(0, 0, groups, width)], f"{out}.parts")
        normed = self.rms_norm(f"{out}.normed", parts, weight, eps)
        return self.node("Reshape", [normed, self.ints(0, 0, groups * width)], out)
