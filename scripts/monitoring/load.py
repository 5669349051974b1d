"""A little load for a look at the dashboard: streams of requests, each after the other.

Prompts of several lengths, so that every length bucket has something to show. No benchmark:
nothing is measured here. Used by ``observe``.
"""

from __future__ import annotations

import json
import threading
import urllib.error
import urllib.request
from types import TracebackType

PROMPTS = (
    "Count from one to thirty in words.",
    "Tell a story about a lighthouse and the sea. " * 20,
    "List the planets, their moons and what is known of each. " * 60,
)
MAX_TOKENS = 48


class Load:
    """Sends requests while it is entered; a context manager."""

    def __init__(self, base_url: str, num_streams: int) -> None:
        self._url = base_url.rstrip("/")
        self._stopping = threading.Event()
        self._lock = threading.Lock()
        self.num_done = 0
        self.errors: list[str] = []
        self._threads = [
            threading.Thread(target=self._stream, args=(i,), daemon=True)
            for i in range(num_streams)
        ]

    def __enter__(self) -> Load:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stopping.set()
        for thread in self._threads:
            thread.join(timeout=60)

    def _stream(self, first: int) -> None:
        try:
            model = self._get("/v1/models")["data"][0]["id"]
            turn = first
            while not self._stopping.is_set():
                self._ask(model, PROMPTS[turn % len(PROMPTS)], seed=turn)
                turn += len(self._threads)
        except (OSError, ValueError, LookupError) as error:
            with self._lock:
                self.errors.append(f"{type(error).__name__}: {error}")

    def _ask(self, model: str, prompt: str, seed: int) -> None:
        body = {"model": model, "prompt": prompt, "max_tokens": MAX_TOKENS, "seed": seed}
        request = urllib.request.Request(
            f"{self._url}/v1/completions",
            json.dumps(body).encode(),
            {"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=300) as answer:
            answer.read()
        with self._lock:
            self.num_done += 1

    def _get(self, path: str) -> dict[str, list[dict[str, str]]]:
        with urllib.request.urlopen(self._url + path, timeout=30) as answer:
            result: dict[str, list[dict[str, str]]] = json.load(answer)
        return result
