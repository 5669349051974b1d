"""``make observe`` against an application that has everything, and against one that has not."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from scripts.monitoring.load import Load
from scripts.monitoring.observe import fill_in, main
from scripts.monitoring.pictures import legend_of, number
from scripts.monitoring.prometheus import configuration
from scripts.monitoring.rows import build_rows
from tests.k8s.monitoring.application import Application
from tests.k8s.monitoring.test_rules import tool


def run(url: str, seconds: int, *more: str) -> int:
    tool("prometheus")
    return main(["--url", url, "--seconds", str(seconds), "--scrape-s", "1", *more])


def test_all_rules_evaluate_and_all_panels_have_data(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with Application() as application:
        code = run(application.url, 10, "--out", str(tmp_path))  # with time for a busy machine
    printed = capsys.readouterr()
    assert (code, printed.err) == (0, "")
    rows = build_rows()
    for row in rows:
        assert f"-- {row.title}" in printed.out
    line = next(text for text in printed.out.splitlines() if "Draft token share " in text)
    assert line.endswith("accepted / generated 54.55 %")
    assert (tmp_path / "panels.txt").read_text() == printed.out
    pictures = {path.name: path.stat().st_size for path in tmp_path.glob("*.png")}
    assert len(pictures) == len(rows) and min(pictures.values()) > 5000
    assert all(name in (tmp_path / "index.html").read_text() for name in pictures)


def test_a_metric_that_is_missing_is_a_trouble(capsys: pytest.CaptureFixture[str]) -> None:
    with Application(without=("specdist_engine_steps_total",)) as application:
        assert run(application.url, 1) == 1
    assert "TROUBLE panel 'Steps per second' has no data" in capsys.readouterr().err


def test_nobody_there_is_a_trouble(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("http://127.0.0.1:9", 1) == 1
    assert "http://127.0.0.1:9/metrics is down" in capsys.readouterr().err


class Completions(BaseHTTPRequestHandler):
    """Two endpoints of the OpenAI API."""

    def do_GET(self) -> None:
        self._answer(b'{"data": [{"id": "m"}]}')

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self._answer(b"{}")

    def _answer(self, body: bytes) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def completions() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Completions)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()


def test_load_asks_until_it_is_left(completions: str) -> None:
    with Load(completions, 2) as load:
        deadline = threading.Event()
        while load.num_done < 10 and not load.errors:
            deadline.wait(0.01)
    asked = load.num_done
    deadline.wait(0.05)
    assert (load.num_done, load.errors) == (asked, [])


def test_load_says_what_went_wrong() -> None:
    with Load("http://127.0.0.1:9", 1) as load:
        pass
    assert len(load.errors) == 1 and "refused" in load.errors[0]


def test_variables_of_grafana_are_filled_in() -> None:
    assert fill_in('rate(a{b=~"$namespace"}[$__rate_interval])', 8.0) == 'rate(a{b=~".*"}[8s])'
    with pytest.raises(ValueError, match=r"unknown variable \$pod"):
        fill_in("a{b='$pod'}", 8.0)


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (0.5454545, "percentunit", "54.55 %"),
        (0.0123, "s", "12.3 ms"),
        (2.5, "s", "2.5 s"),
        (7e8, "bytes", "667.6 MiB"),
        (3.0, "bytes", "0.00293 KiB"),
        (1234.567, "short", "1235"),
        (float("inf"), "s", "inf"),
    ],
)
def test_numbers(value: float, unit: str, text: str) -> None:
    assert number(value, unit) == text


def test_legends() -> None:
    assert legend_of("p95 {{length_bucket}}", {"length_bucket": "le_128"}) == "p95 le_128"


def test_ray_is_scraped_where_it_lists_its_ports(tmp_path: Path) -> None:
    def jobs(file: Path) -> list[Any]:
        config = configuration("http://localhost:8000/metrics", "1s", file)
        return [job["job_name"] for job in config["scrape_configs"]]

    listed = tmp_path / "targets.json"
    assert jobs(listed) == ["specdist"]
    listed.write_text("[]")
    assert jobs(listed) == ["specdist", "ray"]
    with pytest.raises(ValueError, match="must be a URL"):
        configuration("localhost:8000", "1s", None)
