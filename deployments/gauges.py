"""The present values of one replica as gauges: its worker's stats and its memory.

Called by the metrics thread of each replica before it pushes.
"""

from __future__ import annotations

import resource
import sys
from collections.abc import Mapping
from pathlib import Path

from specdist.metrics.catalog import CATALOG
from specdist.metrics.recorder import Recorder


def record_stats(recorder: Recorder, deployment: str, stats: Mapping[str, float]) -> None:
    """Set a gauge for each entry of ``stats`` whose name is a gauge of the catalogue.

    A key is the metric's name without its prefix: ``num_requests_running``,
    ``num_requests_waiting``, ``kv_cache_usage_ratio``, ``kv_blocks_used``, ...
    """
    for key, value in stats.items():
        metric = CATALOG.get(f"specdist_{key}")
        if metric is not None and metric.kind == "gauge":
            labels = {"deployment": deployment} if metric.labels else {}
            recorder.gauge(metric.name, value, **labels)
    for device, used in _memory_bytes().items():
        recorder.gauge("specdist_memory_bytes", used, deployment=deployment, device=device)


def _memory_bytes() -> dict[str, float]:
    used = {"host": _resident_bytes()}
    torch = sys.modules.get("torch")  # a replica without torch has no device to report
    if torch is not None and torch.cuda.is_initialized():
        used["cuda"] = float(torch.cuda.memory_reserved())
    return used


def _resident_bytes() -> float:
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except OSError:  # no /proc: the peak is the nearest thing that every Unix tells
        return float(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)
    return float(pages * resource.getpagesize())
