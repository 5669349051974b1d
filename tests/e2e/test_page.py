"""The page over the served pair: a visitor compares, chats on, stops."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from specdist.bench.served import ServedApp
from tests.e2e.rig import PATIENCE_S, REFERENCES, wait_for, wait_until_idle
from tests.page.browser import Visitor, chromium, need_browser

IDLE_S = 20.0
COUNT = REFERENCES["P-COUNT"]


@pytest.fixture(scope="module")
def page(app: ServedApp, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Visitor]:
    """The page as the application serves it, in Chromium."""
    need_browser()
    with chromium(tmp_path_factory.mktemp("profile")) as driver:
        visitor = Visitor(driver, f"{app.http_url}/")
        visitor.open()
        yield visitor


def test_a_visitor_sees_the_same_words_twice(page: Visitor, app: ServedApp) -> None:
    page.set("temperature", 0)
    page.set("max_tokens", COUNT.max_tokens)
    page.send(COUNT.prompt)
    page.wait_until_idle(PATIENCE_S)
    assert page.answer(0) == page.answer(1) == "1, 2, 3, 4, 5, 6, 7, 8, 9, 10"
    assert page.text(".verdict .same") == "Identical: yes"
    assert page.text(".verdict .detail") == f"all {len(COUNT.token_ids)} tokens are the same"
    assert {"accepted", "next"} <= {origin for _, origin in page.tokens(0)}
    assert {origin for _, origin in page.tokens(1)} == {"plain"}
    assert page.take_log() == []
    wait_until_idle(app, IDLE_S)


def test_stop_frees_both_models(page: Visitor, app: ServedApp) -> None:
    """A seeded chat with the turn before it; the work ends with the stream."""
    page.mode("on")
    page.set("temperature", 1)
    page.set("max_tokens", 1000)
    page.send("Write a long story about a lighthouse.")
    wait_for("some tokens", lambda: len(page.all(".answer")[-1].text) > 0, PATIENCE_S)
    page.one("#stop").click()
    page.wait_until_idle(PATIENCE_S)
    assert page.all(".answer .state")[-1].text == "stopped"
    wait_until_idle(app, IDLE_S)
    assert app.health()["num_targets"] == 1
