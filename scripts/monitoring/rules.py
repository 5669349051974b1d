"""The rules of k8s/components/monitoring in the form that Prometheus itself reads.

The PrometheusRule objects are the one place where rules stand; Prometheus and promtool want
what is under ``spec``. Run as a script it writes that, with promtool's tests beside it, into
a folder. Used by ``queries``, ``rows``, ``prometheus`` and the tests.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[2]
COMPONENT = ROOT / "k8s" / "components" / "monitoring"


@cache
def rule_objects() -> dict[str, dict[str, Any]]:
    """Each PrometheusRule by its file's name."""
    files = sorted(COMPONENT.glob("prometheusrule*.yaml"))
    return {file.name: yaml.safe_load(file.read_text()) for file in files}


def rules() -> Iterator[dict[str, Any]]:
    """Every recording and alert rule."""
    for document in rule_objects().values():
        for group in document["spec"]["groups"]:
            yield from group["rules"]


def recorded() -> dict[str, str]:
    """The expression of each recorded series; of those with several rules, the last."""
    return {rule["record"]: rule["expr"] for rule in rules() if "record" in rule}


def alerts() -> dict[str, dict[str, Any]]:
    """Each alert rule by its name."""
    return {rule["alert"]: rule for rule in rules() if "alert" in rule}


def write_rules(folder: Path, interval: str | None = None, window: str | None = None) -> list[Path]:
    """Write the rule files into ``folder``.

    For short looks ``interval`` replaces that of every group, ``window`` the 5 minutes over
    which rates are taken.
    """
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for name, document in rule_objects().items():
        groups = [dict(group) for group in document["spec"]["groups"]]
        if interval is not None:
            groups = [{**group, "interval": interval} for group in groups]
        text = yaml.safe_dump({"groups": groups}, sort_keys=False)
        path = folder / name
        path.write_text(text if window is None else text.replace("[5m]", f"[{window}]"))
        written.append(path)
    return written


def write_tests(folder: Path) -> list[Path]:
    """Copy promtool's tests next to the rules that they name."""
    written = []
    for file in sorted(COMPONENT.glob("rules_test*.yaml")):
        (folder / file.name).write_text(file.read_text())
        written.append(folder / file.name)
    return written


def main() -> int:
    """``python -m scripts.monitoring.rules FOLDER``: the rules and their tests."""
    folder = Path(sys.argv[1])
    for path in [*write_rules(folder), *write_tests(folder)]:
        print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
