"""The launcher: endpoints, readiness, signals and exit codes, with a stand-in for Serve."""

from __future__ import annotations

import http.server
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from deployments import launch
from deployments.launch import Endpoints, read_endpoints, why_not_ready

ROOT = Path(__file__).resolve().parents[3]
STAND_IN = """
import sys, time
try:
    print("child up", flush=True)
    time.sleep(30)
except KeyboardInterrupt:
    sys.exit({code})
"""


def test_endpoints_of_the_shipped_config() -> None:
    import yaml

    endpoints = read_endpoints(yaml.safe_load((ROOT / "serve_config.yaml").read_text()))
    assert endpoints.ready_line == "specdist ready: http://127.0.0.1:8000/v1 grpc://127.0.0.1:9000"


def test_endpoints_default_to_serves() -> None:
    assert read_endpoints({}) == Endpoints("127.0.0.1", 8000, 9000)
    assert read_endpoints({"http_options": {"host": "0.0.0.0"}}).host == "127.0.0.1"


class _Health(http.server.BaseHTTPRequestHandler):
    status = 200
    text = b"no target replica answers"

    def do_GET(self) -> None:
        self.send_response(self.status)
        self.end_headers()
        self.wfile.write(self.text)

    def log_message(self, *_: object) -> None: ...


@pytest.fixture
def health() -> Iterator[http.server.HTTPServer]:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Health)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


def test_ready_means_health_and_grpc(
    health: http.server.HTTPServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    port = health.server_port
    assert why_not_ready(Endpoints("127.0.0.1", port, port)) is None
    assert "gRPC port 1" in (why_not_ready(Endpoints("127.0.0.1", port, 1)) or "")
    monkeypatch.setattr(_Health, "status", 503)
    reason = why_not_ready(Endpoints("127.0.0.1", port, port)) or ""
    assert "503" in reason and "no target replica answers" in reason
    assert "refused" in (why_not_ready(Endpoints("127.0.0.1", 1, port)) or "")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("in_background", [False, True])
def test_signals_reach_the_child_and_its_code_comes_back(
    health: http.server.HTTPServer, tmp_path: Path, number: signal.Signals, in_background: bool
) -> None:
    port = health.server_port
    config = tmp_path / "serve.yaml"
    config.write_text(f"http_options: {{port: {port}}}\ngrpc_options: {{port: {port}}}\n")
    ignore = "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN);"  # as a shell's & does
    script = (
        f"{ignore if in_background else ''}import sys; from deployments import launch;"
        f"launch.SERVE_RUN = {STAND_IN.format(code=7)!r};"
        "launch.port_in_use = lambda _: None;"  # the stand-in for Serve listens already
        f"sys.exit(launch.main([{str(config)!r}]))"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", script],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert process.stdout is not None
    lines = {process.stdout.readline().strip(), process.stdout.readline().strip()}
    ready = f"specdist ready: http://127.0.0.1:{port}/v1 grpc://127.0.0.1:{port}"
    assert lines == {"child up", ready}
    process.send_signal(number)
    assert process.wait(timeout=20) == 7


def test_child_that_fails_ends_the_launcher_with_its_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "serve.yaml"
    config.write_text("http_options: {port: 1}\n")
    monkeypatch.setattr(launch, "SERVE_RUN", "import sys; sys.exit(3)")
    monkeypatch.setattr(launch, "forward_signals", lambda child: None)
    began = time.monotonic()
    assert launch.main([str(config)]) == 3
    assert time.monotonic() - began < 20
    assert "ready" not in capsys.readouterr().out


def test_missing_config_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        launch.main(["absent.yaml"])
    assert caught.value.code == 2
    assert "absent.yaml" in capsys.readouterr().err


def test_a_mistake_in_the_config_ends_the_start_at_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "serve.yaml"
    config.write_text((ROOT / "serve_config.yaml").read_text().replace("kv_cache_bytes", "kv_cach"))
    with pytest.raises(SystemExit) as caught:
        launch.main([str(config)])
    assert caught.value.code == 1
    assert "unknown setting 'target.kv_cach'; did you mean 'kv_cache_bytes'" in (
        capsys.readouterr().err
    )


def test_an_application_that_failed_to_deploy_ends_the_launcher(
    health: http.server.HTTPServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_Health, "status", 503)
    monkeypatch.setattr(_Health, "text", b"Deployment is unavailable because it failed to deploy.")
    monkeypatch.setattr(launch, "SERVE_RUN", STAND_IN.format(code=0))
    monkeypatch.setattr(launch, "port_in_use", lambda _: None)
    monkeypatch.setattr(launch, "forward_signals", lambda child: None)
    config = tmp_path / "serve.yaml"
    config.write_text(f"http_options: {{port: {health.server_port}}}\n")
    began = time.monotonic()
    assert launch.main([str(config)]) != 0
    assert time.monotonic() - began < 20


def test_a_port_of_another_program_ends_the_start_at_once(
    health: http.server.HTTPServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "serve.yaml"
    config.write_text(f"http_options: {{port: {health.server_port}}}\n")
    with pytest.raises(SystemExit) as caught:
        launch.main([str(config)])
    assert caught.value.code == 1
    said = capsys.readouterr()
    assert f"HTTP port {health.server_port} on 127.0.0.1 cannot be used" in said.err
    assert "ready" not in said.out
