"""The one application that the end-to-end tests share, and clients for it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from openai import OpenAI

from specdist.bench.served import ServedApp
from specdist.client import Client
from tests.e2e.rig import PATIENCE_S, is_served, wait_for

# Trees whenever there are some, whether they pay or not: these tests are about what is
# right, and this machine's draft may well be too slow to pay.
SPECULATION = {"mode": "tree", "draft_ahead": True, "max_wait_s": 2.0}

# A test's limit holds for the start of its application too.
LIMIT_S = 900


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give the tests of this folder the time that a busy machine takes."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.timeout(LIMIT_S))


@pytest.fixture(scope="session")
def app(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedApp]:
    """The whole application with the demo pair, in float32."""
    log = tmp_path_factory.mktemp("served") / "serve.log"
    float32 = {"dtype": "float32"}
    settings = {"speculation": SPECULATION, "target": float32, "draft": float32}
    with ServedApp(settings, log_path=log) as served:
        with Client(served.grpc_address) as client:
            wait_for("a draft", lambda: served.health()["num_drafts"], PATIENCE_S)
            wait_for("a first answer", lambda: is_served(client), PATIENCE_S)
        yield served


@pytest.fixture(scope="session")
def client(app: ServedApp) -> Iterator[Client]:
    """The gRPC client."""
    with Client(app.grpc_address, timeout_s=PATIENCE_S) as connected:
        yield connected


@pytest.fixture(scope="session")
def openai_client(app: ServedApp) -> Iterator[OpenAI]:
    """OpenAI's own client."""
    with OpenAI(
        base_url=f"{app.http_url}/v1", api_key="none", timeout=PATIENCE_S, max_retries=0
    ) as connected:
        yield connected
