"""Nodes of one graph in the operators of TensorRT 10.3. Knows no operation of ours and no checkpoint.

Strongly typed: the type of every value is what the graph says, so that float16 stands only where a cast put it.
"""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto, helper

from .ort_nodes import IR_VERSION, OPSET, Nodes

_ROOT = float(np.sqrt(2.0 / np.pi))


class TrtNodes(Nodes):
    """No contrib operator, and nothing that 64-bit integers are reckoned with."""

    def __init__(self, half: bool) -> None:
        super().__init__(half)
        self._narrow: set[str] = set()

    def model(
        self, name: str, inputs: list[onnx.ValueInfoProto], outputs: list[onnx.ValueInfoProto]
    ) -> onnx.ModelProto:
        graph = helper.make_graph(self._nodes, name, inputs, outputs, list(self._initializers.values()))
        opsets = [helper.make_opsetid("", OPSET)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=IR_VERSION, producer_name="edge-export")

    def ints32(self, name: str, *values: int) -> str:
        return self.constant(name, np.array(values, np.int32))

    def floats(self, name: str, *values: float) -> str:
        return self.constant(name, np.array(values, np.float32))

    def narrow(self, x: str) -> str:
        """``x`` as products and caches take it: in float16, unless the export is one in float32."""
        if not self.half or x in self._narrow:
            return x
        return self.as_half(x)

    def is_narrow(self, x: str) -> str:
        """Notes that ``x`` comes in that type already."""
        self._narrow.add(x)
        return x

    def wide(self, x: str, out: str) -> str:
        """What a product gave, in float32, under the name ``out``."""
        if self.half:
            return self.node("Cast", [x], out, to=TensorProto.FLOAT)
        return self.node("Identity", [x], out) if x != out else x

    def stored(self, x: str, out: str) -> str:
        """``x`` as it goes into a cache, under the name ``out``."""
        if not self.half:
            return self.node("Identity", [x], out)
        return self.is_narrow(self.node("Cast", [x], out, to=TensorProto.FLOAT16))

    def rms_norm(self, out: str, x: str, weight: str, eps: float) -> str:
        """Written out: the operator is of opset 23."""
        square = self.node("Mul", [x, x], f"{out}.square")
        mean = self.node("ReduceMean", [square, self.ints(-1)], f"{out}.mean", keepdims=1)
        above = self.node("Add", [mean, self.floats(f"eps_{eps!r}", eps)], f"{out}.above")
        unit = self.node("Div", [x, self.node("Sqrt", [above], f"{out}.root")], f"{out}.unit")
        return self.node("Mul", [unit, weight], out)

    def softcap(self, out: str, x: str, cap: float) -> str:
        limit = self.floats(f"cap_{cap!r}", cap)
        squashed = self.node("Tanh", [self.node("Div", [x, limit], f"{out}.scaled")], f"{out}.tanh")
        return self.node("Mul", [squashed, limit], out)

    def gelu(self, out: str, x: str) -> str:
        """The tanh form, written out: the operator came with opset 20, and later than the others."""
        cube = self.node("Mul", [self.node("Mul", [x, x], f"{out}.square"), x], f"{out}.cube")
        small = self.node("Mul", [cube, self.floats("gelu.cubic", 0.044715)], f"{out}.small")
        total = self.node("Add", [x, small], f"{out}.sum")
        inner = self.node("Mul", [total, self.floats("gelu.inner", _ROOT)], f"{out}.inner")
        shifted = self.node("Add", [self.node("Tanh", [inner], f"{out}.tanh"), self.floats("one", 1.0)], f"{out}.share")
        return self.node("Mul", [self.node("Mul", [x, self.floats("half", 0.5)], f"{out}.half"), shifted], out)
