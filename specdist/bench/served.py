"""Starts the whole application for a measurement or a test, on ports of its own, and ends it.

Writes a Serve config, runs ``python -m deployments.launch`` as a child and waits for its
ready line. Everything it started is a descendant of that child: replicas can be found (and
killed) by the name of their deployment. Knows no Ray; used by benchmarks and e2e tests.
"""

from __future__ import annotations

import copy
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

import psutil
import yaml

ROOT = Path(__file__).resolve().parents[2]
START_S = 300.0


def free_port() -> int:
    """A port that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def merged(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """``base`` with ``changes`` laid over it, mapping by mapping."""
    result = dict(copy.deepcopy(dict(base)))
    for key, value in changes.items():
        old = result.get(key)
        both = isinstance(old, Mapping) and isinstance(value, Mapping)
        result[key] = merged(old, value) if both else value
    return result


class ServedApp:
    """The application in processes of its own; a context manager."""

    def __init__(
        self,
        args: Mapping[str, Any] | None = None,
        replicas: Mapping[str, int] | None = None,
        log_path: Path | None = None,
    ) -> None:
        """``args`` is laid over those of serve_config.yaml, ``replicas`` sets num_replicas."""
        self.http_port, self.grpc_port = free_port(), free_port()
        self._folder = tempfile.TemporaryDirectory(prefix="specdist-")
        self._log_path = log_path or Path(self._folder.name) / "serve.log"
        self._config_path = Path(self._folder.name) / "serve_config.yaml"
        self._config_path.write_text(yaml.safe_dump(self._config(args or {}, replicas or {})))
        self._child: subprocess.Popen[str] | None = None

    @property
    def http_url(self) -> str:
        """Base of the HTTP API."""
        return f"http://127.0.0.1:{self.http_port}"

    @property
    def grpc_address(self) -> str:
        """Address for ``specdist.client``."""
        return f"127.0.0.1:{self.grpc_port}"

    @property
    def config_path(self) -> Path:
        """The Serve config in use."""
        return self._config_path

    def log(self) -> str:
        """What the application has printed."""
        return self._log_path.read_text(errors="replace") if self._log_path.exists() else ""

    def __enter__(self) -> ServedApp:
        environment = {**os.environ, "PYTHONUNBUFFERED": "1", "RAY_AUTH_MODE": "token"}
        self._child = subprocess.Popen(
            [sys.executable, "-m", "deployments.launch", str(self._config_path)],
            cwd=ROOT,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
        ready = threading.Event()
        threading.Thread(target=self._follow, args=(ready,), daemon=True).start()
        deadline = time.monotonic() + START_S
        while not ready.wait(0.2):
            if self._child.poll() is not None or time.monotonic() > deadline:
                tail = self.log()[-4000:]
                self.stop()
                raise RuntimeError(f"the application did not become ready:\n{tail}")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def stop(self) -> None:
        """End the application and everything it started."""
        if self._child is None:
            return
        family = psutil.Process(self._child.pid).children(recursive=True) if self._alive() else []
        self._child.send_signal(signal.SIGINT)
        try:
            self._child.wait(30)
        except subprocess.TimeoutExpired:
            self._child.kill()
        for process in family:
            if process.is_running():
                process.kill()
        psutil.wait_procs(family, timeout=10)
        self._child = None

    def replica_pids(self, deployment: str) -> list[int]:
        """Processes of the replicas of Router, Draft or Target."""
        assert self._child is not None
        found = []
        for process in psutil.Process(self._child.pid).children(recursive=True):
            try:
                if f"ServeReplica:specdist:{deployment}" in " ".join(process.cmdline()):
                    found.append(process.pid)
            except psutil.Error:
                continue
        return found

    def kill(self, deployment: str) -> int:
        """Kill -9 one replica; returns its process id."""
        pid = self.replica_pids(deployment)[0]
        os.kill(pid, signal.SIGKILL)
        return pid

    def get(self, path: str, timeout_s: float = 10.0) -> str:
        """The body of a GET."""
        with urllib.request.urlopen(self.http_url + path, timeout=timeout_s) as response:
            return str(response.read().decode())

    def metric(self, name: str, **labels: str) -> float:
        """The sum of a metric's series that carry the given labels; 0 when there is none."""
        wanted = [f'{key}="{value}"' for key, value in labels.items()]
        total = 0.0
        for line in self.get("/metrics").splitlines():
            series, _, value = line.rpartition(" ")
            if series.split("{")[0] == name and all(text in series for text in wanted):
                total += float(value)
        return total

    def health(self) -> dict[str, Any]:
        """The body of /health."""
        return dict(json.loads(self.get("/health")))

    def _alive(self) -> bool:
        return self._child is not None and self._child.poll() is None

    def _config(self, args: Mapping[str, Any], replicas: Mapping[str, int]) -> dict[str, Any]:
        config: dict[str, Any] = yaml.safe_load((ROOT / "serve_config.yaml").read_text())
        config["http_options"] = {"host": "127.0.0.1", "port": self.http_port}
        config["grpc_options"]["port"] = self.grpc_port
        (application,) = config["applications"]
        application["args"] = merged(application["args"], args)
        for deployment in application["deployments"]:
            deployment.pop("user_config", None)
            count = replicas.get(deployment["name"])
            if count is not None:
                deployment["num_replicas"] = count
        return config

    def _follow(self, ready: threading.Event) -> None:
        assert self._child is not None and self._child.stdout is not None
        with self._log_path.open("w") as log:
            for line in self._child.stdout:
                log.write(line)
                log.flush()
                if line.startswith("specdist ready: "):
                    ready.set()
