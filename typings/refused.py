"""Calls that TensorRT 10.3 lacks, each with the complaint that mypy must have: under ``--strict`` an ignored error that
is none is an error. So `make check` fails where the stubs would let one of them pass. Nothing imports this."""

from __future__ import annotations

import tensorrt as trt


def later_than_10_3(engine: trt.ICudaEngine, config: trt.IBuilderConfig, builder: trt.Builder) -> None:
    engine.get_aliased_input_tensor("y")  # type: ignore[attr-defined]
    config.tiling_optimization_level = 1  # type: ignore[attr-defined]
    builder.build_serialized_network_to_stream  # type: ignore[attr-defined]  # noqa: B018
    trt.BuilderFlag.STRICT_NANS  # type: ignore[attr-defined]  # noqa: B018
    trt.IKVCacheUpdateLayer  # type: ignore[attr-defined]  # noqa: B018


def earlier_than_10(engine: trt.ICudaEngine, context: trt.IExecutionContext) -> None:
    engine.num_bindings  # type: ignore[attr-defined]  # noqa: B018
    context.execute_async_v2([], 0)  # type: ignore[attr-defined]
    trt.Builder.build_engine  # type: ignore[attr-defined]  # noqa: B018


def called_wrongly(context: trt.IExecutionContext, network: trt.INetworkDefinition) -> None:
    context.set_device_memory(5)  # type: ignore[call-arg]
    context.set_input_shape("x", 5)  # type: ignore[call-overload]
    context.set_tensor_address("x", "y")  # type: ignore[arg-type]
    network.num_inputs = 3  # type: ignore[misc]


def fits(engine: trt.ICudaEngine, stream: int) -> bool:
    """And what our code does must pass."""
    context = engine.create_execution_context(trt.ExecutionContextAllocationStrategy.USER_MANAGED)
    context.set_device_memory(256, engine.device_memory_size_v2)
    return context.set_input_shape("x", (1, 5)) and context.execute_async_v3(stream)
