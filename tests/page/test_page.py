"""The page in Chromium over scripted answers: streams, colours, figures, comparison, settings."""

from __future__ import annotations

import json

import pytest
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.keys import Keys

from specdist.protocol.health import HealthReport
from tests.page.backends import BUSY, SAME, ScriptedPair
from tests.page.browser import Visitor, wait_for

# What STEPS makes of SAME: the first seven tokens with their origin.
OPENING = [
    ("the", "plain"),
    (" quick", "accepted"),
    (" brown", "accepted"),
    (" fox", "accepted"),
    (" jumps", "next"),
    (" over", "accepted"),
    (" the", "next"),
]
NUM_TOKENS = 21
NUM_STEPS = 10
DIFFERS_AT = 6


def test_both_sides_one_after_the_other(page: Visitor, backend: ScriptedPair) -> None:
    page.ask("hello")
    on, off = backend.requests
    assert (on.speculation.enabled, off.speculation.enabled) == (True, False)
    assert on.sampling == off.sampling and on.sampling.seed is not None
    assert on.prompt_token_ids == off.prompt_token_ids
    assert page.answer(0) == page.answer(1) == SAME
    assert page.tokens(0)[:7] == OPENING
    assert {origin for _, origin in page.tokens(1)} == {"plain"}
    assert page.tokens(0)[-1] == ("<|im_end|>", "accepted")
    assert ("Ω", "plain") in page.tokens(0), "two tokens that make one character"
    assert page.text(".verdict .same") == "Identical: yes"
    assert page.text(".verdict .detail") == f"all {NUM_TOKENS} tokens are the same"
    assert "as fast with speculation" in page.text(".verdict .faster")
    assert page.take_log() == []


def test_figures_are_the_service_s_own(page: Visitor) -> None:
    page.mode("on")
    page.script(
        """window.last = {}; const parse = JSON.parse;
        JSON.parse = text => { const value = parse(text);
          if (value.speculation) window.last = value; return value; }"""
    )
    page.ask("hello")
    totals = page.script("return window.last.speculation")
    shown = {name: page.figure(name, 0) for name in ("tokens", "rate", "length", "tree")}
    drafted, steps = totals["num_draft_tokens"], totals["num_spec_steps"]
    assert shown == {
        "tokens": f"{page.script('return window.last.usage.completion_tokens')} in "
        f"{totals['num_steps']}",
        "rate": f"{100 * totals['draft_acceptance_rate']:.0f} %",
        "length": f"{totals['mean_acceptance_length']:.2f}",
        "tree": f"{drafted / steps:.1f} per step",
    }
    assert shown["tokens"] == f"{NUM_TOKENS} in {NUM_STEPS}"
    assert float(page.figure("speed", 0)) > 0
    bars = "return document.querySelectorAll('.strip rect.{}').length"
    assert page.script(bars.replace("{}", "guessed")) == steps
    assert page.text(".answer .state") == "finished"


def test_the_first_difference_is_named_and_marked(page: Visitor) -> None:
    page.ask("differ, please")
    assert page.text(".verdict .same") == "Identical: no"
    words = "first difference at token 6: “␣over” with speculation, “␣” without"
    assert page.text(".verdict .detail") == words
    marked = [element.get_property("textContent") for element in page.all(".differs")]
    assert marked == [" over", " "]
    page.one(".verdict button").click()
    assert page.script("return document.activeElement.value") == str(DIFFERS_AT)


def test_hover_shows_a_token(page: Visitor) -> None:
    page.mode("on")
    page.ask("hello")
    ActionChains(page.driver).move_to_element(page.all(".answer .tok")[4]).perform()
    wait_for("the tip", lambda: page.one("#tip").is_displayed())
    words = page.one("#tip").text.replace("\n", " ")
    token = json.loads(page.script("return sessionStorage.getItem('specdist.page')"))
    probability = token["turns"][0]["answers"][0]["tokens"][4]["probability"]
    assert words == (
        f"␣jumps the target’s own token after a guess position 5 of {NUM_TOKENS} "
        f"probability {100 * probability:.1f} % step 2: 3 of 4 candidates accepted"
    )
    assert len(page.all(".step.at .tok")) == 4, "the whole step is shown"
    ActionChains(page.driver).send_keys(Keys.ESCAPE).perform()
    assert not page.one("#tip").is_displayed()


def test_stop_ends_the_work_and_keeps_the_text(page: Visitor, backend: ScriptedPair) -> None:
    page.send("endless")
    wait_for("some tokens", lambda: len(page.all(".answer .tok")) > 5)
    page.one("#stop").click()
    page.wait_until_idle()
    wait_for("the end of the work", lambda: backend.num_open == 0)
    assert len(backend.requests) == 1, "the second side does not start"
    assert [e.text for e in page.all(".answer .state")] == ["stopped", "not run"]
    assert page.focused() == "prompt"
    kept = page.answer(0)
    page.mode("on")
    page.ask("hello again")
    prompt = backend.prompt(backend.requests[-1])
    assert kept in prompt and "hello again" in prompt


@pytest.mark.parametrize(
    ("asked", "message", "shown"),
    [("break", "internal error", "the quick brown fox jumps over the"), ("busy", BUSY, "")],
)
def test_an_error_is_shown_and_can_be_tried_again(
    page: Visitor, backend: ScriptedPair, asked: str, message: str, shown: str
) -> None:
    """In the middle of a stream, and before it."""
    page.mode("on")
    page.ask(asked)
    alert = page.one(".answer [role=alert]")
    assert alert.is_displayed() and message in alert.text
    assert (page.text(".answer .state"), page.answer(0)) == ("failed", shown)
    page.one(".turn > button").click()
    page.wait_until_idle()
    assert len(page.all(".turn")) == 1 and len(backend.requests) == 2
    page.ask("hello")
    prompt = backend.prompt(backend.requests[-1])
    assert asked not in prompt, "what failed is no part of the conversation"


def test_a_connection_that_breaks_is_an_error(page: Visitor) -> None:
    page.mode("on")
    page.script(
        """const body = new ReadableStream({start(c) { c.close(); }});
        const real = window.fetch;
        window.fetch = (url, o) => o?.body ? Promise.resolve(new Response(body)) : real(url, o);"""
    )
    page.ask("hello")
    assert page.text(".answer .error") == "the connection ended before the answer did"


def test_settings_reach_the_request(page: Visitor, backend: ScriptedPair) -> None:
    for name, value in (("temperature", 0.25), ("top_p", 0.5), ("max_tokens", 7), ("seed", 11)):
        page.set(name, value)
    page.set("rule", "traversal")
    page.set("spec_tokens", 3)
    page.ask("hello")
    on, off = backend.requests
    sampling = on.sampling
    asked = (sampling.temperature, sampling.top_p, sampling.max_tokens, sampling.seed)
    assert asked == (0.25, 0.5, 7, 11)
    assert (on.speculation.rule, on.speculation.max_tokens) == ("traversal", 3)
    assert not off.speculation.enabled
    assert page.text(".answer .state") == "cut at max tokens"
    assert len(page.tokens(0)) == 7
    assert page.text(".made") == "seed 11, temperature 0.25, top p 0.5, rule traversal"


def test_a_setting_that_is_out_of_range_sends_nothing(page: Visitor, backend: ScriptedPair) -> None:
    page.set("temperature", 3)
    page.send("hello")
    assert page.focused() == "temperature"
    assert backend.requests == [] and page.all(".turn") == []
    assert page.one("#prompt").get_property("value") == "hello"


def test_the_conversation_outlives_a_reload(page: Visitor, backend: ScriptedPair) -> None:
    page.set("seed", 5)
    page.ask("first")
    before = page.tokens(0), page.figure("rate", 0), page.text(".verdict .same")
    page.driver.refresh()
    assert (page.tokens(0), page.figure("rate", 0), page.text(".verdict .same")) == before
    assert page.one("#seed").get_property("value") == "5"
    page.mode("off")
    page.ask("second")
    prompt = backend.prompt(backend.requests[-1])
    assert prompt.index("first") < prompt.index(SAME) < prompt.index("second")
    page.one("#clear").click()
    assert page.all(".turn") == [] and page.one("#empty").is_displayed()
    page.driver.refresh()
    assert page.all(".turn") == []


def test_health_is_shown(page: Visitor, backend: ScriptedPair) -> None:
    assert page.text("#health-text") == "ready: 1 target, 1 draft"
    backend.report = HealthReport(False, "the target is loading")
    try:
        page.driver.refresh()
        wait_for("bad news", lambda: page.text("#health-text") == "the target is loading")
        assert page.one("#health").get_attribute("data-ready") == "false"
    finally:
        backend.report = HealthReport(True, "", 1, 1)


def test_model_text_is_text(page: Visitor) -> None:
    page.mode("on")
    page.ask("<img src=x onerror=alert(1)>")
    assert page.text(".asked p") == "<img src=x onerror=alert(1)>"
    assert page.all(".turn img") == []


def test_nothing_comes_from_elsewhere(page: Visitor) -> None:
    page.take_urls()
    page.driver.refresh()
    page.ask("hello")
    urls = [u for u in page.take_urls() if not u.startswith(("data:", "chrome"))]
    assert len(urls) > 10
    assert [u for u in urls if not u.startswith(page.url)] == []
    script = "document.body.append(Object.assign(document.createElement('script'), {text: 'x()'}))"
    page.script(script)
    assert any("Content Security Policy" in line for line in page.take_log())
