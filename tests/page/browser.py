"""Headless Chromium for the tests of the page, and a server for it in a thread of its own.

Debian's packages chromium and chromium-driver (``make browser``); nothing is downloaded.
"""

from __future__ import annotations

import json
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeVar

import pytest
import uvicorn
from selenium.webdriver import Chrome, ChromeOptions
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webelement import WebElement

from specdist.api.backend import Backend
from specdist.api.model_card import ModelCard
from specdist.api.openai import build_http_app

T = TypeVar("T")

PROGRAMS = ("chromium", "chromedriver")
PATIENCE_S = 20.0
FLAGS = (
    *("headless", "no-sandbox", "disable-gpu", "disable-quic", "no-first-run"),
    *("disable-background-networking", "disable-component-update", "disable-sync"),
    *("disable-dev-shm-usage", "hide-scrollbars", "force-color-profile=srgb"),
)


def need_browser() -> None:
    """Skip where there is no Chromium; in CI that is a failure."""
    missing = [name for name in PROGRAMS if shutil.which(name) is None]
    if missing:
        words = f"{' and '.join(missing)} not found: `make browser` installs Debian's packages"
        if os.environ.get("CI"):
            pytest.fail(words)
        pytest.skip(words)


@contextmanager
def chromium(profile: Path) -> Iterator[Chrome]:
    """A browser with an empty profile that logs everything, refused loads included."""
    options = ChromeOptions()
    options.binary_location = shutil.which("chromium") or ""
    for flag in (*FLAGS, f"user-data-dir={profile}"):
        options.add_argument(f"--{flag}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = Chrome(options, Service(shutil.which("chromedriver")))
    try:
        yield driver
    finally:
        driver.quit()


@contextmanager
def served(backend: Backend, card: ModelCard) -> Iterator[str]:
    """The address of the HTTP application, in a thread with an event loop of its own."""
    app = build_http_app(backend, card)
    config = uvicorn.Config(app, host="127.0.0.1", port=0, log_level="warning", lifespan="off")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    wait_for("the server", lambda: server.started)
    port = server.servers[0].sockets[0].getsockname()[1]
    try:
        yield f"http://127.0.0.1:{port}/"
    finally:
        server.should_exit = True
        thread.join(PATIENCE_S)


def wait_for(what: str, holds: Callable[[], T], limit_s: float = PATIENCE_S) -> T:
    """Ask again and again until the answer is true."""
    ends_at = time.monotonic() + limit_s
    while not (answer := holds()):
        if time.monotonic() > ends_at:
            raise AssertionError(f"{what}: not within {limit_s:g} s, last {answer!r}")
        time.sleep(0.02)
    return answer


def axe_source() -> str:
    """The accessibility checker axe-core, as it comes in a Python package."""
    spec = find_spec("axe_playwright_python")
    assert spec is not None, "`make test` installs axe-playwright-python"
    return (Path(spec.submodule_search_locations[0]) / "axe.min.js").read_text()  # type: ignore[index]


class Visitor:
    """What somebody who sits before the page does and sees."""

    def __init__(self, driver: Chrome, url: str) -> None:
        self.driver, self.url = driver, url

    def open(self) -> None:
        """Load the page anew, in an empty tab."""
        self.emulate()
        self.driver.get(self.url)
        self.driver.execute_script("sessionStorage.clear()")
        self.driver.get(self.url)
        self.take_log()
        wait_for("health", lambda: self.text("#health-text").startswith("ready"))

    def emulate(self, **features: str) -> None:
        """Media features, by name with underscores; those not named are the browser's own."""
        wanted = [{"name": n.replace("_", "-"), "value": v} for n, v in features.items()]
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": wanted})

    def all(self, selector: str) -> list[WebElement]:
        """Every element that matches."""
        return self.driver.find_elements(By.CSS_SELECTOR, selector)

    def one(self, selector: str) -> WebElement:
        """The first one that matches."""
        return self.driver.find_element(By.CSS_SELECTOR, selector)

    def text(self, selector: str) -> str:
        """The text content, blanks and all, shown or not."""
        return str(self.one(selector).get_property("textContent"))

    def focused(self) -> str:
        """The id of what has the focus."""
        return str(self.driver.switch_to.active_element.get_attribute("id"))

    def set(self, name: str, value: object) -> None:
        """Type a setting."""
        self.script("document.getElementById(arguments[0]).value = arguments[1]", name, str(value))

    def mode(self, value: str) -> None:
        """Choose on, off or both."""
        self.one(f".modes input[value={value}]").click()

    def send(self, words: str) -> None:
        """Type and press Enter."""
        self.one("#prompt").send_keys(words, Keys.ENTER)

    def ask(self, words: str) -> None:
        """Send, and wait for the end of all answers."""
        self.send(words)
        self.wait_until_idle()

    def wait_until_idle(self, limit_s: float = PATIENCE_S) -> None:
        """Wait until nothing runs."""
        wait_for("the end", lambda: self.one("#send").is_displayed(), limit_s)

    def answer(self, number: int) -> str:
        """The text of an answer, counted over the whole page; -1 is the last."""
        return str(self.all(".answer .text")[number].get_property("textContent"))

    def tokens(self, number: int) -> list[tuple[str, str]]:
        """(text, origin) of each piece of an answer, the one that ends it included."""
        read = """return [...arguments[0].querySelectorAll('.tok')].map(
          e => [e.textContent || e.dataset.name, e.classList[1]])"""
        return [tuple(pair) for pair in self.script(read, self.all(".answer .text")[number])]

    def figure(self, name: str, number: int) -> str:
        """A figure of an answer."""
        return str(self.all(f".figures .{name}")[number].get_property("textContent"))

    def script(self, code: str, *arguments: object) -> Any:
        """Run JavaScript in the page."""
        return self.driver.execute_script(code, *arguments)

    def take_log(self) -> list[str]:
        """What the console said since the last call: mistakes and refused loads."""
        return [entry["message"] for entry in self.driver.get_log("browser")]

    def take_urls(self) -> list[str]:
        """Everything that was asked of the network since the last call."""
        messages = [json.loads(e["message"])["message"] for e in self.driver.get_log("performance")]
        wanted = [m for m in messages if m["method"] == "Network.requestWillBeSent"]
        return [m["params"]["request"]["url"] for m in wanted]

    def violations(self) -> list[str]:
        """What axe-core finds, moderate and worse."""
        self.script(axe_source())
        found = self.driver.execute_async_script(
            "axe.run(document, {resultTypes: ['violations']}).then(arguments[0])"
        )
        return [
            f"{v['impact']} {v['id']}: {[n['html'][:120] for n in v['nodes']]}"
            for v in found["violations"]
            if v["impact"] != "minor"
        ]
