"""One browser for the whole folder, and the page over scripted answers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from selenium.webdriver import Chrome

from specdist.api.model_card import ModelCard
from specdist.config import RulesConfig
from tests.page.backends import ScriptedPair
from tests.page.browser import Visitor, chromium, need_browser, served
from tests.unit.api.fakes import write_model_folder


@pytest.fixture(scope="session")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chrome]:
    """Headless Chromium."""
    need_browser()
    with chromium(tmp_path_factory.mktemp("profile")) as started:
        started.set_window_size(1280, 900)
        yield started


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a small tokenizer."""
    return write_model_folder(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="session")
def card(model_folder: Path) -> ModelCard:
    """A model with all four rules."""
    rules = RulesConfig(allow_lossy=True)
    return ModelCard.load(model_folder, name="a-model", max_model_len=2048, rules=rules)


@pytest.fixture(scope="session")
def scripted_app(card: ModelCard) -> Iterator[tuple[ScriptedPair, str]]:
    """The application over scripted answers, and its address."""
    backend = ScriptedPair(card)
    with served(backend, card) as url:
        yield backend, url


@pytest.fixture
def backend(scripted_app: tuple[ScriptedPair, str]) -> ScriptedPair:
    """The scripted backend, as if nobody had asked it anything."""
    scripted_app[0].requests.clear()
    return scripted_app[0]


@pytest.fixture
def page(driver: Chrome, backend: ScriptedPair, scripted_app: tuple[ScriptedPair, str]) -> Visitor:
    """A visitor before the page, nothing asked yet."""
    visitor = Visitor(driver, scripted_app[1])
    visitor.open()
    return visitor
