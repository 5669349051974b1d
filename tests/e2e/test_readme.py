"""The README's calls, run as they are printed there; only the ports are others."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from specdist.bench.served import ROOT, ServedApp
from specdist.client import Client
from tests.e2e.rig import OFF, PATIENCE_S, REFERENCES, join

SAY_HI = [{"role": "user", "content": "Say hi."}]
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def block(language: str, word: str) -> str:
    """The one code block of the README that contains a word."""
    blocks = BLOCK.findall((ROOT / "README.md").read_text())
    (found,) = [text for kind, text in blocks if kind == language and word in text]
    return str(found)


def run(command: list[str], text: str, app: ServedApp, folder: Path) -> str:
    """Run a block with the application's ports, in a folder that is not the repository."""
    text = text.replace("127.0.0.1:8000", f"127.0.0.1:{app.http_port}")
    text = text.replace("127.0.0.1:9000", app.grpc_address)
    done = subprocess.run(
        [*command, text], cwd=folder, capture_output=True, text=True, timeout=PATIENCE_S
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def hi_by_seed(client: Client) -> str:
    """What "Say hi." gives with seed 1 and 16 tokens, decoded plainly."""
    return client.generate(SAY_HI, max_tokens=16, seed=1, speculation=OFF).text


def test_grpc_block(app: ServedApp, client: Client, hi_by_seed: str, tmp_path: Path) -> None:
    printed = run([sys.executable, "-c"], block("python", "specdist.client"), app, tmp_path)
    paris = client.detokenize(REFERENCES["P-PARIS"].token_ids)
    assert printed.startswith(paris + " ")
    mean_length, rest = printed.removeprefix(paris + " ").split("\n", 1)
    assert float(mean_length) >= 1
    assert rest == hi_by_seed


def test_curl_block(app: ServedApp, hi_by_seed: str, tmp_path: Path) -> None:
    printed = run(["bash", "-ec"], block("bash", "curl "), app, tmp_path)
    answer = json.loads(printed)
    assert answer["choices"][0]["message"] == {"role": "assistant", "content": hi_by_seed}
    assert answer["seed"] == 1
    assert answer["usage"]["prompt_tokens"] == 33


def test_openai_block(app: ServedApp, client: Client, tmp_path: Path) -> None:
    printed = run([sys.executable, "-c"], block("python", "from openai"), app, tmp_path)
    plain = client.generate(SAY_HI, max_tokens=16, temperature=0, speculation=OFF)
    assert printed == plain.text + "\n"


def test_join_of_the_stream_is_the_whole(client: Client, hi_by_seed: str) -> None:
    assert join(client.stream(SAY_HI, max_tokens=16, seed=1)).text == hi_by_seed
