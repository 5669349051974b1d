"""Runs a phase again and again, killed with SIGKILL at random moments, then once to its end.

    python killed_runs.py SETTINGS.json SEED NUM_KILLS

A process of its own, so that the runs are forks of one that has loaded everything but has
never computed. Each run may go on until the folder has changed, and a random moment longer.
Called by ``test_distill_kills``.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT))

import specdist.distill.answers  # noqa: E402 (loaded here, once for all runs)
import specdist.distill.target_engine  # noqa: E402
import specdist.distill.training  # noqa: E402, F401
from specdist.distill.pipeline import Pipeline  # noqa: E402
from specdist.distill.settings import DistillSettings  # noqa: E402

LONGEST_WAIT_S = 60.0
LONGEST_EXTRA_S = 0.05


def begin(settings: DistillSettings) -> int:
    """Fork a run; returns its process id."""
    pid = os.fork()
    if pid:
        return pid
    try:
        Pipeline(settings).run()
    except BaseException as error:
        print(f"run failed: {error!r}", file=sys.stderr)
        os._exit(1)
    os._exit(0)


def state(folder: Path) -> list[tuple[str, int, int]]:
    """Changes whenever a run has made progress."""
    paths = [*folder.rglob("shard-*"), *folder.rglob("checkpoint.safetensors")]
    return sorted((p.name, p.stat().st_mtime_ns, p.stat().st_ino) for p in paths)


def kill_once(settings: DistillSettings, rng: random.Random) -> bool:
    """Whether the run was killed before it had ended."""
    before = state(settings.out_folder)
    pid, began = begin(settings), time.monotonic()
    while state(settings.out_folder) == before and time.monotonic() - began < LONGEST_WAIT_S:
        if os.waitpid(pid, os.WNOHANG)[0]:
            return False
        time.sleep(0.002)
    time.sleep(rng.random() * LONGEST_EXTRA_S)
    os.kill(pid, signal.SIGKILL)
    return os.WIFSIGNALED(os.waitpid(pid, 0)[1])


def main() -> None:
    """Tell as JSON how many runs were killed and how the last one ended."""
    settings = DistillSettings.from_values(json.loads(Path(sys.argv[1]).read_text()))
    rng = random.Random(int(sys.argv[2]))
    num_killed = sum(kill_once(settings, rng) for _ in range(int(sys.argv[3])))
    _, status = os.waitpid(begin(settings), 0)
    print(json.dumps({"num_killed": num_killed, "status": status}))


if __name__ == "__main__":
    main()
