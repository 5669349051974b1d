"""Short forms of the command line, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from specdist.config import SpeculationConfig
from specdist.distill.eval_settings import (
    DraftSpec,
    EvalSettings,
    TreeShape,
    parse_shapes,
    parse_temperatures,
)
from specdist.errors import ConfigError

SHAPES = parse_shapes("chain:2")


@pytest.mark.parametrize(
    ("text", "shape", "name"),
    [
        ("chain:4", TreeShape("chain", 4, 4), "chain:4"),
        ("tree:16", TreeShape("tree", 16, 5), "tree:16"),
        ("tree:3", TreeShape("tree", 3, 3), "tree:3"),
        (" tree:16:8", TreeShape("tree", 16, 8), "tree:16:8"),
        ("tree:4:9", TreeShape("tree", 4, 4), "tree:4"),
    ],
)
def test_shapes(text: str, shape: TreeShape, name: str) -> None:
    assert (TreeShape.parse(text), TreeShape.parse(text).name) == (shape, name)


def test_the_usual_depth_is_the_service_default() -> None:
    assert TreeShape.parse("tree:16").depth == SpeculationConfig().num_speculative_tokens


@pytest.mark.parametrize(
    "text", ["", "chain", "chain:0", "chain:4:4", "tree:x", "tree:8:0", "bush:3", "tree:-4"]
)
def test_other_shapes_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"chain:LENGTH or tree:NODES\[:DEPTH\]"):
        TreeShape.parse(text)


def test_nothing_chooses_sizes() -> None:
    chain = TreeShape.parse("chain:8").speculation(("draft_model",))
    tree = TreeShape.parse("tree:16").speculation(("draft_model", "ngram"))
    assert (chain.mode, chain.num_speculative_tokens) == ("fixed", 8)
    assert (tree.mode, tree.max_tree_nodes) == ("tree", 16)
    assert not chain.draft_ahead and not tree.draft_ahead


@pytest.mark.parametrize(
    ("text", "model", "drafters"),
    [
        ("ngram", None, ("ngram",)),
        ("demo-draft", "demo-draft", ("draft_model",)),
        ("some/folder+ngram", "some/folder", ("draft_model", "ngram")),
        ("a+b", "a+b", ("draft_model",)),
    ],
)
def test_drafts(text: str, model: str | None, drafters: tuple[str, ...]) -> None:
    spec = DraftSpec.parse(text)
    assert (spec.model, spec.drafters) == (model, drafters)


@pytest.mark.parametrize("text", ["", "+ngram", "ngram+ngram"])
def test_other_drafts_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="a draft must be"):
        DraftSpec.parse(text)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"max_tokens": 0}, "max_tokens must be at least 1, got 0"),
        ({"concurrency": 0}, "concurrency must be at least 1"),
        ({"temperatures": ()}, "temperatures must be numbers"),
        ({"temperatures": (0.0, 3.0)}, "temperatures must be numbers from 0 to 2"),
        ({"temperatures": (0.5, 0.5)}, "must differ"),
        ({"temperatures": (float("nan"),)}, "temperatures must be numbers"),
        ({"top_p": 0.0}, "top_p must be above 0"),
        ({"rule": "coupledd"}, "rule must be one of coupled"),
        ({"dtype": "int8"}, "dtype must be one of auto"),
        ({"shapes": ()}, "at least one"),
        ({"shapes": parse_shapes("chain:2,chain:2")}, "different shapes"),
    ],
)
def test_settings_name_what_is_wrong(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        EvalSettings(**{"shapes": SHAPES, **values})


@pytest.mark.parametrize("drafts", [(), ("a", "a")])
def test_drafts_must_differ(drafts: tuple[str, ...]) -> None:
    with pytest.raises(ConfigError, match="different ones"):
        EvalSettings(shapes=SHAPES).check_drafts(tuple(map(DraftSpec.parse, drafts)))


@pytest.mark.parametrize("draft", ["ngram", "a+ngram"])
def test_prompt_lookup_needs_a_rule_that_takes_any_candidates(draft: str) -> None:
    specs = (DraftSpec.parse(draft),)
    EvalSettings(shapes=SHAPES).check_drafts(specs)
    with pytest.raises(ConfigError, match="drawn from a draft model's law"):
        EvalSettings(shapes=SHAPES, rule="rejection").check_drafts(specs)


def test_temperatures() -> None:
    assert parse_temperatures("0, 0.8") == (0.0, 0.8)
    with pytest.raises(ConfigError, match="got 'hot'"):
        parse_temperatures("hot")
