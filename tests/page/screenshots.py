"""Takes the pictures of the page in docs/images, of a service that runs or of a pair in here.

    python -m tests.page.screenshots --url http://127.0.0.1:8000/
    python -m tests.page.screenshots   # loads the demo pair into this process

Waits for real answers, so the figures in the pictures are measured, by the machine it runs on.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

from PIL import Image
from selenium.webdriver import Chrome
from selenium.webdriver.common.action_chains import ActionChains

from specdist.api.model_card import ModelCard
from specdist.config import AppConfig, EngineConfig, SpeculationConfig
from specdist.distill.offline_pair import OfflinePair
from specdist.engine.engine import Engine
from specdist.engine.loader import load_model
from specdist.models import resolve_model
from specdist.models.pair import check_pair
from tests.page.backends import RealPair
from tests.page.browser import Visitor, chromium, served, wait_for

FOLDER = Path(__file__).resolve().parents[2] / "docs" / "images"
PROMPT = "What is the capital of France? Tell me three facts about it."
SIZE = (1280, 1010)  # of the window; what is shown is less
NUM_COLOURS = 256
LIMIT_S = 300.0


@contextmanager
def demo_pair() -> Iterator[str]:
    """The demo pair in this process, the draft and the target taking turns."""
    folder, draft_folder = resolve_model("demo"), resolve_model("demo-draft")
    report = check_pair(folder, draft_folder)
    engine = EngineConfig(kv_cache_bytes=128 << 20, max_model_len=1024)
    trees = SpeculationConfig(mode="tree", num_speculative_tokens=4, max_tree_nodes=4, max_wait_s=0)
    config = AppConfig(target=engine, draft=engine, speculation=trees)
    target, draft = (load_model(f, "cpu", "float32", None) for f in (folder, draft_folder))
    pair = OfflinePair(
        config,
        Engine(target, engine, report.vocab_size),
        Engine(draft, engine, report.vocab_size, report.masked_ids),
    )
    card = ModelCard.load(folder, name="smollm2-135m-instruct", max_model_len=1024)
    with served(RealPair(pair), card) as url:
        yield url


def take(driver: Chrome, scheme: str, visitor: Visitor) -> None:
    """One picture, in few colours: a page has few."""
    visitor.emulate(prefers_color_scheme=scheme)
    path = FOLDER / f"page-{scheme}.png"
    driver.save_screenshot(str(path))
    picture = Image.open(path).convert("RGB").quantize(NUM_COLOURS, dither=Image.Dither.NONE)
    picture.save(path, optimize=True)


def run(url: str, max_tokens: int) -> None:
    """Ask side by side, point at a token, take both pictures."""
    FOLDER.mkdir(exist_ok=True)
    profile = tempfile.mkdtemp(prefix="specdist-profile-")
    with chromium(Path(profile)) as driver:
        driver.set_window_size(*SIZE)
        visitor = Visitor(driver, url)
        visitor.open()
        for name, value in (("temperature", 0), ("max_tokens", max_tokens), ("seed", 7)):
            visitor.set(name, value)
        visitor.send(PROMPT)
        visitor.wait_until_idle(LIMIT_S)
        visitor.script("document.getElementById('scroller').scrollTop = 0")
        take(driver, "light", visitor)
        shown = visitor.all(".answer .tok.next") or visitor.all(".answer .tok")
        ActionChains(driver).move_to_element(shown[len(shown) // 2]).perform()
        wait_for("the tip", lambda: visitor.one("#tip").is_displayed())
        take(driver, "dark", visitor)


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", help="of a running service, with a slash at the end")
    parser.add_argument("--max-tokens", type=int, default=120)
    options = parser.parse_args()
    with nullcontext(options.url) if options.url else demo_pair() as url:
        run(url, options.max_tokens)


if __name__ == "__main__":
    main()
