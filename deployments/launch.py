"""``python -m deployments.launch [config]``: ``serve run``, and one line when it is ready.

Checks the config, runs ``serve run`` in the foreground as a child with light settings in its
environment, asks the application until a request would succeed, and then prints the ready line.
Signals go on to the child, whose exit code becomes this one's. Ends nothing else: a Ray
cluster that was there before stays. ``make serve`` calls it.
"""

from __future__ import annotations

import argparse
import logging
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from deployments.config_check import check_config
from specdist.errors import SpecdistError

logger = logging.getLogger(__name__)

POLL_S = 0.5
FAILED = "failed to deploy"  # what Serve answers when it has given up
REMIND_S = 60.0
STOP_S = 60.0
SERVE_RUN = "import sys; from ray.serve.scripts import cli; sys.argv[0] = 'serve'; cli()"
LIGHT_SETTINGS = {
    "RAY_USAGE_STATS_ENABLED": "0",  # no usage reports leave the machine
    "RAY_DEDUP_LOGS": "1",
    "RAY_worker_niceness": "0",  # Ray's 15 lets anything else on the machine slow the answers
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # a router must not hide the devices
    "TOKENIZERS_PARALLELISM": "false",
}


class Endpoints(NamedTuple):
    """Where the application answers."""

    host: str
    http_port: int
    grpc_port: int

    @property
    def ready_line(self) -> str:
        return (
            f"specdist ready: http://{self.host}:{self.http_port}/v1 "
            f"grpc://{self.host}:{self.grpc_port}"
        )


def read_endpoints(config: Mapping[str, Any]) -> Endpoints:
    """Host and ports of a Serve config, with Serve's defaults."""
    http = config.get("http_options") or {}
    grpc = config.get("grpc_options") or {}
    host = http.get("host", "127.0.0.1")
    if host in ("0.0.0.0", "::", ""):
        host = "127.0.0.1"
    return Endpoints(host, int(http.get("port", 8000)), int(grpc.get("port", 9000)))


def why_not_ready(endpoints: Endpoints) -> str | None:
    """None when a request would succeed; else what is missing."""
    url = f"http://{endpoints.host}:{endpoints.http_port}/health"
    try:
        with urllib.request.urlopen(url, timeout=10):
            pass
    except urllib.error.HTTPError as error:
        return f"{url} answers {error.code}: {error.read(300).decode(errors='replace')}"
    except OSError as error:
        return f"{url}: {error}"
    try:
        with socket.create_connection((endpoints.host, endpoints.grpc_port), timeout=5):
            return None
    except OSError as error:
        return f"gRPC port {endpoints.grpc_port}: {error}"


def port_in_use(endpoints: Endpoints) -> str | None:
    """Which port another program listens on: its answers must not be taken for ours."""
    for name, port in (("HTTP", endpoints.http_port), ("gRPC", endpoints.grpc_port)):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # TIME_WAIT is no use
            try:
                probe.bind((endpoints.host, port))
            except OSError as error:
                return f"{name} port {port} on {endpoints.host} cannot be used: {error.strerror}"
    return None


def start(config_path: Path) -> subprocess.Popen[bytes]:
    """``serve run`` in its own session, so that a Ctrl-C reaches it once, from here."""
    environment = {**LIGHT_SETTINGS, **os.environ}
    # A script's "make serve &" leaves SIGINT ignored, and the child would inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    command = [sys.executable, "-c", SERVE_RUN, "run", str(config_path)]
    return subprocess.Popen(command, env=environment, start_new_session=True)


def forward_signals(child: subprocess.Popen[bytes]) -> None:
    """SIGINT and SIGTERM go to the child; SIGTERM as SIGINT, on which Serve shuts down."""

    def forward(number: int, _: object) -> None:
        if child.poll() is None:
            child.send_signal(signal.SIGINT)

    signal.signal(signal.SIGINT, forward)
    signal.signal(signal.SIGTERM, forward)


def wait_until_ready(child: subprocess.Popen[bytes], endpoints: Endpoints) -> bool:
    """True once a request would succeed, False when the child ended before."""
    reminded_s = time.monotonic()
    while child.poll() is None:
        reason = why_not_ready(endpoints)
        if reason is None:
            return child.poll() is None
        if FAILED in reason:
            logger.error("the application failed to deploy: the log above says why")
            stop(child)
            return False
        if time.monotonic() - reminded_s > REMIND_S:
            reminded_s = time.monotonic()
            logger.warning("still starting: %s", reason)
        time.sleep(POLL_S)
    return False


def stop(child: subprocess.Popen[bytes]) -> None:
    """End ``serve run`` as a Ctrl-C would; kill it when it does not listen."""
    child.send_signal(signal.SIGINT)
    try:
        child.wait(STOP_S)
    except subprocess.TimeoutExpired:
        child.kill()


def main(arguments: list[str] | None = None) -> int:
    """The command; returns the child's exit code."""
    parser = argparse.ArgumentParser(prog="python -m deployments.launch", description=__doc__)
    parser.add_argument("config", nargs="?", default="serve_config.yaml", type=Path)
    config_path = parser.parse_args(arguments).config
    logging.basicConfig(format="%(levelname)s %(message)s")
    if not config_path.is_file():
        parser.error(f"config file {str(config_path)!r} does not exist")
    config = yaml.safe_load(config_path.read_text()) or {}
    try:
        check_config(config)
    except SpecdistError as error:
        parser.exit(1, f"error: {config_path}: {error.message}\n")
    endpoints = read_endpoints(config)
    runs_apart = "RAY_ADDRESS" not in os.environ  # a cluster that is there may hold the ports
    if runs_apart and (taken := port_in_use(endpoints)):
        hint = "choose another, or set RAY_ADDRESS=auto to serve on the cluster that has it"
        parser.exit(1, f"error: {config_path}: {taken}; {hint}\n")
    child = start(config_path)
    forward_signals(child)
    is_ready = wait_until_ready(child, endpoints)
    if is_ready:
        sys.stdout.write(endpoints.ready_line + "\n")
        sys.stdout.flush()
    code = child.wait()
    if code == 0 and not is_ready:
        return 1  # it never served
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(main())
