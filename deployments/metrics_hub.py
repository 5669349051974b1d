"""One place in the application where the metrics of all replicas come together.

``MetricsHub`` is a small named actor: every replica pushes what it counted about twice a
second, any router can read the sum. It is created by whoever needs it first and leaves by
itself when nobody has pushed for a while, so nothing stays behind when the application
goes. Counts of dead replicas stay in the sum.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import threading
import time
from collections.abc import Callable
from typing import Any

import ray
from ray.exceptions import RayError

from specdist.metrics.recorder import Delta, Recorder
from specdist.metrics.totals import Totals

logger = logging.getLogger(__name__)

HUB_NAMESPACE = "specdist"
PUSH_PERIOD_S = 0.5
LONELY_S = 60.0
CALL_TIMEOUT_S = 5.0


class MetricsHub:
    """The actor's plain class."""

    def __init__(self, lonely_s: float = LONELY_S) -> None:
        self._totals = Totals()
        self._lonely_s = lonely_s
        self._heard_s = time.monotonic()

    async def watch(self) -> None:
        """Leave when nobody has pushed for ``lonely_s``."""
        while time.monotonic() - self._heard_s < self._lonely_s:
            await asyncio.sleep(self._lonely_s / 4)
        ray.actor.exit_actor()

    async def push(self, sequence: int, delta: Delta) -> None:
        """Add a delta; repeats are counted once."""
        self._heard_s = time.monotonic()
        self._totals.add(delta, sequence, self._heard_s)

    async def render(self) -> str:
        """Prometheus text for the whole application."""
        return self._totals.render(time.monotonic())


def get_hub(app_name: str) -> Any:
    """The application's hub; started if there is none."""
    hub = (
        ray.remote(MetricsHub)
        .options(
            name=f"metrics-hub-{app_name}",
            namespace=HUB_NAMESPACE,
            lifetime="detached",
            get_if_exists=True,
            num_cpus=0,
            max_concurrency=1000,
        )
        .remote()
    )
    hub.watch.remote()
    return hub


class MetricsPusher:
    """Carries one recorder's deltas to the hub, each exactly once while the hub lives.

    Its own thread, so that it needs no event loop and blocks none; ``sample`` is called
    before each push to set gauges.
    """

    def __init__(
        self,
        recorder: Recorder,
        app_name: str,
        sample: Callable[[], None] = lambda: None,
        connect: Callable[[str], Any] = get_hub,
    ) -> None:
        self._recorder = recorder
        self._app_name = app_name
        self._sample = sample
        self._connect = connect
        self._hub: Any = None
        self._sequence = itertools.count(1)
        self._unsent: tuple[int, Delta] | None = None
        self._lock = threading.Lock()
        self._stopped = threading.Event()

    def start(self) -> None:
        """Push about every ``PUSH_PERIOD_S`` from now on."""
        threading.Thread(target=self._run, name="metrics", daemon=True).start()

    def stop(self) -> None:
        """Push no more."""
        self._stopped.set()

    def flush(self) -> None:
        """Push what is there now; a delta that did not arrive is sent again later."""
        with self._lock:
            if self._unsent is None:
                self._sample()
                self._unsent = (next(self._sequence), self._recorder.take_delta())
            try:
                if self._hub is None:
                    self._hub = self._connect(self._app_name)
                ray.get(self._hub.push.remote(*self._unsent), timeout=CALL_TIMEOUT_S)
            except (RayError, TimeoutError):
                self._hub = None
                raise
            self._unsent = None

    def render(self) -> str:
        """Push, then read the whole application's metrics."""
        self.flush()
        return str(ray.get(self._hub.render.remote(), timeout=CALL_TIMEOUT_S))

    def _run(self) -> None:
        while not self._stopped.wait(PUSH_PERIOD_S):
            try:
                self.flush()
            except Exception as error:  # a thread's boundary: the next round tries again
                logger.warning("metrics could not be pushed: %s: %s", type(error).__name__, error)
