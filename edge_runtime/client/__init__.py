"""What a program on the device imports to talk with the daemon; needs httpx and msgspec and no more. Knows no model.

    with Client() as client:
        print(client.chat("What is a bundle?", max_tokens=100).text)
        with client.stream_complete("The licence says") as chunks:
            for chunk in chunks:
                print(chunk.text, end="", flush=True)
"""

from __future__ import annotations

from ..status import Status
from .blocking import Client, Stream
from .concurrent import AsyncClient, AsyncStream
from .results import (
    Choice,
    Chunk,
    Completion,
    ConnectionLost,
    EdgeRuntimeError,
    Health,
    Model,
    NotReachable,
    Timings,
    TokenLogprob,
    ToolCall,
    Usage,
)

__all__ = [
    "AsyncClient",
    "AsyncStream",
    "Choice",
    "Chunk",
    "Client",
    "Completion",
    "ConnectionLost",
    "EdgeRuntimeError",
    "Health",
    "Model",
    "NotReachable",
    "Status",
    "Stream",
    "Timings",
    "TokenLogprob",
    "ToolCall",
    "Usage",
]
