"""A Prometheus of our own for as long as it is needed, and its HTTP API.

Finds the programs on the PATH or where ``make observe-tools`` unpacks them, writes a
configuration with the rules of the component, and asks what Grafana would ask. Knows no
dashboard. Used by ``observe`` and the tests.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

import yaml

from scripts.monitoring.rules import write_rules
from specdist.bench.served import free_port

UNPACKED = Path(sys.prefix) / "observe" / "usr" / "bin"  # in the virtual environment
RAY_TARGETS = Path("/tmp/ray/prom_metrics_service_discovery.json")  # where Ray writes its ports
START_S = 30.0


def find_tool(name: str) -> str | None:
    """The path of prometheus, promtool or amtool; None when it is not there."""
    return shutil.which(name) or shutil.which(name, path=str(UNPACKED))


class Series(NamedTuple):
    """One result of a query: its labels, and (time, value) pairs, the newest last."""

    labels: dict[str, str]
    points: list[tuple[float, float]]


class PrometheusError(RuntimeError):
    """Prometheus did not start, or refused a query."""


class LocalPrometheus:
    """Prometheus as a child process, scraping one application; a context manager."""

    def __init__(
        self,
        folder: Path,
        target: str,
        scrape_s: float = 1.0,
        window: str | None = None,
        ray_targets: Path | None = RAY_TARGETS,
    ) -> None:
        """``target`` is a URL with its path; ``ray_targets`` a file that lists Ray's ports.

        ``window`` is the time over which the rules take rates, where it is not 5 minutes.
        """
        program = find_tool("prometheus")
        if program is None:
            raise PrometheusError("prometheus is absent: make observe-tools unpacks it")
        self._program = program
        self._folder = folder
        self._port = free_port()
        self._child: subprocess.Popen[bytes] | None = None
        interval = f"{round(scrape_s * 1000)}ms"
        write_rules(folder / "rules", interval, window)
        config = configuration(target, interval, ray_targets)
        (folder / "prometheus.yaml").write_text(yaml.safe_dump(config, sort_keys=False))

    @property
    def url(self) -> str:
        """Where it answers."""
        return f"http://127.0.0.1:{self._port}"

    def __enter__(self) -> LocalPrometheus:
        with (self._folder / "prometheus.log").open("wb") as log:
            self._child = subprocess.Popen(self._command(), stdout=log, stderr=log)
        deadline = time.monotonic() + START_S
        while not self._has_scraped():
            if self._child.poll() is not None or time.monotonic() > deadline:
                self.stop()
                text = (self._folder / "prometheus.log").read_text()[-2000:]
                raise PrometheusError(f"prometheus did not start:\n{text}")
            time.sleep(0.1)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def stop(self) -> None:
        """End the child."""
        if self._child is not None and self._child.poll() is None:
            self._child.terminate()
            self._child.wait(timeout=30)

    def query(self, expr: str) -> list[Series]:
        """An instant query, now."""
        result = self.get("query", {"query": expr})["result"]
        if not isinstance(result, list) or (result and not isinstance(result[0], dict)):
            raise PrometheusError(f"not a vector: {expr}")
        return [Series(item["metric"], [_point(item["value"])]) for item in result]

    def query_range(self, expr: str, start_s: float, end_s: float, step_s: float) -> list[Series]:
        """A query over time."""
        asked = {"query": expr, "start": start_s, "end": end_s, "step": step_s}
        result = self.get("query_range", asked)["result"]
        return [Series(item["metric"], [_point(v) for v in item["values"]]) for item in result]

    def rules(self) -> list[dict[str, Any]]:
        """Every rule with its health and last error."""
        return [rule for group in self.get("rules", {})["groups"] for rule in group["rules"]]

    def targets(self) -> list[dict[str, Any]]:
        """Every target that is scraped."""
        return list(self.get("targets", {"state": "active"})["activeTargets"])

    def get(self, path: str, arguments: Mapping[str, Any]) -> Any:
        """``data`` of an answer of the API; raises PrometheusError when it refuses."""
        url = f"{self.url}/api/v1/{path}?{urllib.parse.urlencode(arguments)}"
        try:
            with urllib.request.urlopen(url, timeout=30) as answer:
                return json.load(answer)["data"]
        except urllib.error.HTTPError as error:
            raise PrometheusError(f"{path} {dict(arguments)}: {error.read(500)!r}") from error

    def _command(self) -> list[str]:
        return [
            self._program,
            f"--config.file={self._folder / 'prometheus.yaml'}",
            f"--storage.tsdb.path={self._folder / 'data'}",
            f"--web.listen-address=127.0.0.1:{self._port}",
            "--log.level=warn",
        ]

    def _has_scraped(self) -> bool:
        """It answers, and has asked the application once: the first time takes it seconds."""
        try:
            jobs = [(t["labels"]["job"], t["health"]) for t in self.targets()]
        except (OSError, PrometheusError):
            return False
        return any(job == "specdist" and health != "unknown" for job, health in jobs)


def configuration(target: str, interval: str, ray_targets: Path | None) -> dict[str, Any]:
    """Prometheus's configuration: the application once, Ray's ports where they are listed."""
    parts = urllib.parse.urlsplit(target)
    if parts.scheme not in ("http", "https") or not parts.netloc:
        raise ValueError(f"target must be a URL like http://127.0.0.1:8000/metrics, got {target!r}")
    timings = {"scrape_interval": interval, "scrape_timeout": interval}
    jobs: list[dict[str, Any]] = [
        {
            "job_name": "specdist",
            "scheme": parts.scheme,
            "metrics_path": parts.path or "/metrics",
            "static_configs": [{"targets": [parts.netloc]}],
        }
    ]
    if ray_targets is not None and ray_targets.exists():
        jobs.append({"job_name": "ray", "file_sd_configs": [{"files": [str(ray_targets)]}]})
    return {
        "global": {**timings, "evaluation_interval": interval},
        "rule_files": [os.path.join("rules", "*.yaml")],
        "scrape_configs": jobs,
    }


def _point(pair: list[Any]) -> tuple[float, float]:
    return float(pair[0]), float(pair[1])
