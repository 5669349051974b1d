"""The rules by Prometheus's own programs, and what each alert must bring along."""

from __future__ import annotations

import re
import subprocess
import warnings
from pathlib import Path
from typing import Any

import pytest
import yaml

from scripts.monitoring.prometheus import find_tool
from scripts.monitoring.rules import COMPONENT, ROOT, alerts, recorded, write_rules, write_tests

ALERTMANAGER = COMPONENT / "alertmanager.example.yaml"
TEST_FILES = sorted(COMPONENT.glob("rules_test*.yaml"))


def tool(name: str) -> str:
    """The program; tests skip, and warn, without it."""
    path = find_tool(name)
    if path is None:
        message = f"rules are NOT checked by {name}: it is absent (make observe-tools)"
        warnings.warn(message, stacklevel=2)
        pytest.skip(message)
    return path


def run(*command: str, folder: Path = COMPONENT) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=60)


def cases() -> list[dict[str, Any]]:
    return [case for file in TEST_FILES for case in yaml.safe_load(file.read_text())["tests"]]


def test_promtool_checks_the_rules(tmp_path: Path) -> None:
    for file in write_rules(tmp_path):
        result = run(tool("promtool"), "check", "rules", "--lint-fatal", str(file))
        assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.parametrize("file", [path.name for path in TEST_FILES])
def test_promtool_fires_and_clears_the_alerts(file: str, tmp_path: Path) -> None:
    write_rules(tmp_path)
    write_tests(tmp_path)
    result = run(tool("promtool"), "test", "rules", file, folder=tmp_path)
    assert result.returncode == 0, result.stdout + result.stderr


def test_promtool_finds_a_wrong_threshold(tmp_path: Path) -> None:
    """The tests of the rules can fail."""
    write_rules(tmp_path)
    write_tests(tmp_path)
    rules_file = tmp_path / "prometheusrule.yaml"
    changed = rules_file.read_text().replace("stale_share:5m > 0.25", "stale_share:5m > 0.75")
    assert changed != rules_file.read_text()
    rules_file.write_text(changed)
    result = run(tool("promtool"), "test", "rules", "rules_test.yaml", folder=tmp_path)
    assert result.returncode != 0
    assert "SpecdistStaleShareHigh" in result.stdout + result.stderr


@pytest.mark.parametrize("name", alerts())
def test_every_alert_has_a_test_that_fires_and_one_that_clears(name: str) -> None:
    """Within one case: not at once, then with labels and texts, then no more."""
    orders = [
        [bool(t["exp_alerts"]) for t in case.get("alert_rule_test", []) if t["alertname"] == name]
        for case in cases()
    ]
    assert [False, True, False] in orders


@pytest.mark.parametrize("name", recorded())
def test_every_recorded_series_is_tested_or_behind_a_tested_alert(name: str) -> None:
    asked = [t["expr"] for case in cases() for t in case.get("promql_expr_test", [])]
    behind = [rule["expr"] for rule in alerts().values()]
    same_form = name.endswith(":quantile5m")  # one expression for every latency
    assert same_form or any(name in expr for expr in [*asked, *behind])


@pytest.mark.parametrize("name", alerts())
def test_every_alert_says_what_to_do(name: str) -> None:
    rule = alerts()[name]
    assert rule["labels"]["severity"] in ("warning", "critical")
    assert rule["labels"]["service"] == "specdist"
    assert {"summary", "description", "runbook_url"} == set(rule["annotations"])
    assert "for" in rule
    document, _, anchor = rule["annotations"]["runbook_url"].partition("#")
    headings = re.findall(r"^#+ (.+)$", (ROOT / document).read_text(), re.MULTILINE)
    assert anchor in [heading.lower().replace(" ", "-") for heading in headings]


def test_amtool_checks_the_example() -> None:
    result = run(tool("amtool"), "check-config", str(ALERTMANAGER))
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.parametrize(
    ("labels", "receiver"),
    [
        (("service=specdist", "severity=critical"), "pager"),
        (("service=specdist", "severity=warning"), "chat"),
        (("service=other", "severity=critical"), "nobody"),
    ],
)
def test_alerts_go_where_the_example_says(labels: tuple[str, ...], receiver: str) -> None:
    command = (tool("amtool"), "config", "routes", "test", f"--config.file={ALERTMANAGER}")
    result = run(*command, *labels)
    assert (result.returncode, result.stdout.strip()) == (0, receiver), result.stderr


def test_what_mutes_and_is_muted_exists() -> None:
    text = ALERTMANAGER.read_text()
    named = set(re.findall(r"Specdist\w+", text))
    assert named and named <= set(alerts())
