"""An application for Prometheus to scrape: real exposition of the real catalogue, no model.

Every scrape counts a little more of everything, through ``Recorder`` and ``Totals`` as the
application does. Run as a script it serves until it is ended; used by ``test_observe``.
"""

from __future__ import annotations

import itertools
import sys
import threading
import time
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType

from specdist.metrics.catalog import ROWS, Metric
from specdist.metrics.recorder import Recorder
from specdist.metrics.totals import CONTENT_TYPE, REPLICAS, Totals

SPEC = "specdist_spec_decode_num_"
VALUES = {
    "position": ("0", "1", "2"),
    "length_bucket": ("le_128", "le_512", "le_2048"),
    "deployment": ("Draft", "Target"),
    "device": ("host",),
    "event": ("attached", "lost"),
    "outcome": ("stop", "length"),
    "reason": ("starved",),
}
PER_SCRAPE = {  # where 1 would tell an unlikely story
    f"{SPEC}steps": 50,
    f"{SPEC}drafts": 40,
    f"{SPEC}draft_tokens": 160,
    f"{SPEC}accepted_tokens": 60,
    f"{SPEC}accepted_tokens_per_pos": 20,
    "specdist_generation_tokens": 110,
    "specdist_draft_tokens_proposed": 300,
    "specdist_plain_step_seconds": 1.5,
    "specdist_candidate_wait_seconds": 0.05,
    "specdist_request_drafts": 40,
    "specdist_request_draft_tokens": 160,
    "specdist_request_accepted_tokens": 60,
    "specdist_request_generation_tokens": 110,
    "specdist_requests": 2,
}
GAUGES = {"specdist_kv_cache_usage_ratio": 0.4, "specdist_memory_bytes": 7e8}


class Application:
    """Serves /metrics on a port of its own; a context manager."""

    def __init__(self, port: int = 0, without: tuple[str, ...] = ()) -> None:
        """``without`` names metrics that stay away."""
        self._totals = Totals(gauge_ttl_s=1e9)
        self._recorders = [Recorder(f"{name}:r") for name in ("Target", "Draft", "Router")]
        self._without = without
        self._sequence = itertools.count(1)
        self._lock = threading.Lock()
        self._server = ThreadingHTTPServer(("127.0.0.1", port), self._handler())

    @property
    def url(self) -> str:
        """Base URL."""
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> Application:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._server.shutdown()
        self._server.server_close()

    def text(self) -> str:
        """The exposition, after a little more work."""
        with self._lock:
            for row in ROWS:
                if row.name != REPLICAS:
                    self._count(row)
            sequence = next(self._sequence)
            for recorder in self._recorders:
                self._totals.add(recorder.take_delta(), sequence, time.monotonic())
            lines = self._totals.render(time.monotonic()).splitlines(keepends=True)
        return "".join(line for line in lines if not any(n in line for n in self._without))

    def _count(self, row: Metric) -> None:
        for values in itertools.product(*(VALUES[label] for label in row.labels)):
            labels = dict(zip(row.labels, values, strict=True))
            recorder = self._recorders[labels.get("deployment") == "Draft"]
            if row.kind == "counter":
                recorder.count(row.name, PER_SCRAPE.get(row.name, 1), **labels)
            elif row.kind == "gauge":
                recorder.gauge(row.name, GAUGES.get(row.name, 3), **labels)
            else:
                for bound in row.buckets[2:7]:
                    recorder.observe(row.name, bound, **labels)

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        text = self.text

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                body = text().encode()
                with suppress(ConnectionError):  # a scrape that took too long is given up
                    self.send_response(200 if self.path == "/metrics" else 404)
                    self.send_header("Content-Type", CONTENT_TYPE)
                    self.end_headers()
                    self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:
                pass

        return Handler


if __name__ == "__main__":
    with Application(int(sys.argv[1]) if len(sys.argv) > 1 else 0) as served:
        print(served.url, flush=True)
        threading.Event().wait()
