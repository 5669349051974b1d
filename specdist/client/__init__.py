"""The Python client of a specdist service, over gRPC: ``Client`` and ``AsyncClient``.

    from specdist.client import Client

    with Client("127.0.0.1:9000") as client:
        print(client.generate("The capital of France is", max_tokens=8).text)

Errors are those of ``specdist.errors``. Loads neither torch nor a web framework.
"""

from specdist.client.aio import AsyncClient
from specdist.client.options import Message, Options, Prompt
from specdist.client.results import (
    Answer,
    Chunk,
    ModelInfo,
    SpeculationStats,
    TokenLogprob,
    Tokens,
    TopLogprob,
    Usage,
)
from specdist.client.sync import Client

__all__ = [
    "Answer",
    "AsyncClient",
    "Chunk",
    "Client",
    "Message",
    "ModelInfo",
    "Options",
    "Prompt",
    "SpeculationStats",
    "TokenLogprob",
    "Tokens",
    "TopLogprob",
    "Usage",
]
