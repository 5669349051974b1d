"""The page without a mouse, without eyes, without motion: keyboard, names, live regions, axe."""

from __future__ import annotations

import pytest
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.keys import Keys

from tests.page.backends import SAME, ScriptedPair
from tests.page.browser import Visitor, wait_for

FOCUS_ORDER = [
    *("skip", "panel", "temperature", "top_p", "max_tokens", "seed", "rule", "spec_tokens"),
    *("endpoints", "example", "example", "example", "prompt", "mode", "send"),
]


def press(page: Visitor, *keys: str) -> None:
    for key in keys:
        ActionChains(page.driver).send_keys(key).perform()


def name_of_focus(page: Visitor) -> str:
    return str(
        page.script(
            """const e = document.activeElement;
            return e.id || e.name || (e.closest('.examples') && 'example')
              || (e.closest('.api') && 'endpoints') || (e.closest('#panel') && 'panel')
              || e.className || e.tagName"""
        )
    )


def test_the_focus_goes_through_everything_in_the_order_of_the_page(page: Visitor) -> None:
    assert page.focused() == "prompt", "typing works at once"
    page.script("document.querySelector('a, button, input').focus()")
    seen = [name_of_focus(page)]
    for _ in FOCUS_ORDER[1:]:
        press(page, Keys.TAB)
        seen.append(name_of_focus(page))
    assert seen == FOCUS_ORDER


def test_the_slider_tells_of_every_token(page: Visitor) -> None:
    page.mode("on")
    page.ask("hello")
    slider = page.one(".inspect input")
    slider.send_keys(Keys.HOME, Keys.ARROW_RIGHT)
    words = "token 2 of 21, “ quick”, accepted draft token, probability "
    assert slider.get_attribute("aria-valuetext").startswith(words)
    assert slider.get_attribute("aria-valuetext").endswith("step 2: 3 of 4 candidates accepted")
    wait_for("the tip", lambda: page.one("#tip").is_displayed())
    assert page.text(".tok.at") == " quick"
    slider.send_keys(Keys.END)
    assert "token 21 of 21, “<|im_end|>”" in slider.get_attribute("aria-valuetext")
    slider.send_keys(Keys.TAB)
    assert not page.one("#tip").is_displayed()


def test_what_is_said(page: Visitor, backend: ScriptedPair) -> None:
    """The end of an answer is told once, not token by token."""
    page.script(
        """window.heard = []; const said = document.getElementById('said');
        new MutationObserver(() => heard.push(said.textContent)).observe(said, {childList: true})"""
    )
    page.ask("hello")
    first, last = page.script("return window.heard")
    assert first == "Answering."
    assert last.startswith(f"{SAME} Answer with speculation: 21 tokens, ")
    assert "Answer without speculation: 21 tokens" in last
    assert "Identical: yes, all 21 tokens are the same." in last
    live = page.script("return [...document.querySelectorAll('[aria-live], [role=log]')].length")
    assert live == 0, "no region that speaks with every token"


@pytest.mark.parametrize(("scheme", "width"), [("light", 1280), ("dark", 520)])
def test_axe_finds_nothing(page: Visitor, scheme: str, width: int) -> None:
    page.emulate(prefers_color_scheme=scheme)
    page.driver.set_window_size(width, 900)
    try:
        assert page.violations() == []
        page.ask("hello")
        page.ask("differ")
        page.mode("on")
        page.ask("break")
        page.script("document.querySelector('.inspect input').focus()")
        wait_for("the tip", lambda: page.one("#tip").is_displayed())
        assert page.violations() == []
    finally:
        page.driver.set_window_size(1280, 900)


def test_colours_follow_the_reader(page: Visitor) -> None:
    ground = "return getComputedStyle(document.body).backgroundColor"
    page.emulate(prefers_color_scheme="light")
    light = page.script(ground)
    page.emulate(prefers_color_scheme="dark")
    assert page.script(ground) != light


def test_no_motion_where_it_is_not_wanted(page: Visitor) -> None:
    moving = """return [...document.getAnimations()].length"""
    page.mode("on")
    for motion, num_moving in (("no-preference", 1), ("reduce", 0)):
        page.emulate(prefers_reduced_motion=motion)
        page.send("endless")
        wait_for("tokens", lambda: len(page.all("[data-state=writing] .tok")) > 3)
        assert page.script(moving) == num_moving
        page.one("#stop").click()
        page.wait_until_idle()


def test_the_page_fits_a_narrow_screen(page: Visitor) -> None:
    page.driver.set_window_size(520, 900)
    try:
        page.driver.refresh()
        page.ask("hello")
        overflow = "return document.documentElement.scrollWidth - innerWidth"
        assert page.script(overflow) <= 0
        tops = page.script("return [...document.querySelectorAll('.answer')].map(e => e.offsetTop)")
        assert tops[1] > tops[0], "one below the other"
    finally:
        page.driver.set_window_size(1280, 900)


def test_both_columns_stand_in_line(page: Visitor) -> None:
    page.ask("hello")
    read = "return [...document.querySelectorAll(arguments[0])].map(e => e.offsetTop)"
    for part in (".text", ".steps", ".inspect", ".figures", ".figures .tree"):
        tops = page.script(read, f".answer {part}")
        assert len(tops) == 2 and tops[0] == tops[1], part
