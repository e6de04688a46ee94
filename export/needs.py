"""What a graph will cost in memory, read off the graph itself. Knows no engine."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import numpy as np
import onnx

from edge_runtime.bundle import GraphNeeds, MappedTensor, Product

_BITS = {onnx.TensorProto.FLOAT: 32, onnx.TensorProto.FLOAT16: 16}


def needs_of(role: str, graphs: Mapping[str, onnx.ModelProto], table: Sequence[MappedTensor]) -> tuple[GraphNeeds, ...]:
    """Of a model's graphs by their names, as their files are called."""
    shared = [tensor.name for tensor in table]
    return tuple(graph_needs(f"{role}.{name}.onnx", proto, shared) for name, proto in graphs.items())


def graph_needs(file: str, proto: onnx.ModelProto, table: Collection[str]) -> GraphNeeds:
    """``table``: names of the initializers that graphs share where they gather rows of them."""
    external = {one.name: one for one in proto.graph.initializer if one.data_location == onnx.TensorProto.EXTERNAL}
    gathered = {name for node in proto.graph.node if node.op_type == "GatherBlockQuantized" for name in node.input}
    # What is dequantised for one product is that product's weight.
    coded = {
        node.output[0]: (external[node.input[0]], next(one.i for one in node.attribute if one.name == "block_size"))
        for node in proto.graph.node
        if node.op_type == "DequantizeLinear" and node.input[0] in external
    }
    sizes: dict[tuple[int, int | None], list[int]] = {}
    widest = heads = 0
    for node in proto.graph.node:
        given = {one.name: one.i for one in node.attribute}
        if node.op_type == "MatMulNBits":
            columns, kind = given["N"], (given["bits"], given["block_size"])
            sizes.setdefault(kind, []).append(columns * given["K"])
        elif node.op_type in ("MatMul", "Gemm") and node.input[1] in external:
            weight = external[node.input[1]]
            columns = weight.dims[0 if given.get("transB") else 1]
            sizes.setdefault((_BITS[weight.data_type], None), []).append(int(np.prod(weight.dims)))
        elif node.op_type == "MatMul" and node.input[1] in coded:
            weight, block_size = coded[node.input[1]]
            columns = weight.dims[1]
            sizes.setdefault((4, block_size), []).append(int(np.prod(weight.dims)))
        else:
            heads = max(heads, given.get("num_heads", 0) if node.op_type == "GroupQueryAttention" else 0)
            continue
        widest = max(widest, columns)
    return GraphNeeds(
        file=file,
        stored=sum(_length(one) for one in external.values()),
        table=sum(_length(one) for name, one in external.items() if name in gathered.intersection(table)),
        products=tuple(Product(bits, size, sum(of), max(of)) for (bits, size), of in sizes.items()),
        widest=widest,
        attention_heads=heads,
    )


def _length(tensor: onnx.TensorProto) -> int:
    return next(int(entry.value) for entry in tensor.external_data if entry.key == "length")
