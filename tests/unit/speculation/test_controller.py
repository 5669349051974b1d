"""The controller: the best set against brute force, gates, probes, no oscillation."""

from __future__ import annotations

import itertools
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specdist.speculation.controller import Candidates, Controller, length_bucket
from specdist.speculation.cost_model import CostModel
from specdist.speculation.tree import Tree
from tests.unit.speculation.test_tree import trees

# Seconds of a step by rows: nearly flat at first, as a memory-bound device is.
FLAT = {1: 0.0110, 2: 0.0112, 4: 0.0120, 8: 0.0140, 16: 0.0180, 32: 0.030, 64: 0.055, 512: 0.42}
LINEAR = {n: 0.010 * n for n in (1, 2, 4, 8, 16, 32, 64, 512)}


def cost(table=FLAT) -> CostModel:
    model = CostModel(edges=tuple(table))
    for rows, seconds in table.items():
        model.observe(rows, seconds)
    return model


def sloped(tree: Tree, rng: random.Random, bucket: str = "") -> Candidates:
    scores: list[float] = []
    for parent in tree.parents:
        scores.append(rng.random() * (1 if parent < 0 else scores[parent]))
    return Candidates(scores, tree.parents, bucket)


def chain(*scores: float, bucket: str = "", max_depth: int | None = None) -> Candidates:
    return Candidates(scores, tuple(range(-1, len(scores) - 1)), bucket, max_depth)


def closed_sets(session: Candidates):
    n = len(session.parents)
    for picked in itertools.product((False, True), repeat=n):
        if all(p < 0 or picked[p] for i, p in enumerate(session.parents) if picked[i]):
            yield tuple(i for i in range(n) if picked[i])


@settings(max_examples=40, deadline=None)
@given(st.lists(trees(max_nodes=5), min_size=1, max_size=2), st.integers(0, 10**6), st.booleans())
def test_adaptive_is_the_best_of_all_sets(shapes, seed, flat) -> None:
    rng = random.Random(seed)
    model = cost(FLAT if flat else LINEAR)
    sessions = [sloped(tree, rng) for tree in shapes]
    got = Controller(model).choose(sessions, other_rows=1, exposed_draft_s=0.001)

    def rate(sets) -> float:
        rows = sum(map(len, sets))
        tokens = sum(s.scores[i] for s, nodes in zip(sessions, sets, strict=True) for i in nodes)
        wait = 0.001 if rows else 0.0
        return (len(sessions) + tokens) / (model.step_s(len(sessions) + 1 + rows) + wait)

    best = max(rate(sets) for sets in itertools.product(*map(closed_sets, sessions)))
    assert rate(got.nodes) == pytest.approx(best)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(trees(), max_size=4),
    st.integers(0, 10**6),
    st.sampled_from(["adaptive", "tree", "fixed", "off"]),
    st.integers(0, 3),
    st.integers(1, 5),
)
def test_every_choice_keeps_the_limits(shapes, seed, mode, max_depth, max_nodes) -> None:
    rng = random.Random(seed)
    sessions = [sloped(tree, rng)._replace(max_depth=max_depth) for tree in shapes]
    choice = Controller(cost(), mode, max_nodes=max_nodes, max_depth=2).choose(sessions)
    assert len(choice.nodes) == len(choice.expected) == len(sessions)
    for tree, nodes, session in zip(shapes, choice.nodes, sessions, strict=True):
        selected, _ = tree.select(nodes)  # raises unless closed under parents
        assert max(selected.depths, default=0) <= min(max_depth, 2)
        assert len(nodes) <= (max_nodes if mode != "fixed" else 2)
        assert choice.expected[choice.nodes.index(nodes)] >= 0
        if mode == "off" or session.max_depth == 0:
            assert nodes == ()


def test_modes() -> None:
    tree = Candidates((0.3, 0.6, 0.5, 0.2), (-1, -1, 1, 1))
    assert Controller(cost(), "off").choose([tree]).nodes == ((),)
    assert Controller(cost(), "fixed").choose([tree]).nodes == ((1, 2),)
    assert Controller(cost(), "tree", max_nodes=3).choose([tree]).nodes == ((0, 1, 2),)
    assert Controller(cost(), "tree").is_active("b") and not Controller(cost(), "off").is_active(
        "b"
    )
    with pytest.raises(ValueError, match="mode must be one of"):
        Controller(cost(), "auto")


def test_load_switches_speculation_off() -> None:
    """The same candidates pay alone and do not pay when rows are dear."""
    one = chain(0.6, 0.36)
    assert Controller(cost()).choose([one]).nodes[0]
    assert not any(Controller(cost(LINEAR)).choose([one] * 8).nodes)
    assert not any(Controller(cost()).choose([one] * 64).nodes)


def test_waiting_makes_candidates_dearer() -> None:
    controller = Controller(cost())
    assert controller.choose([chain(0.5)]).nodes == ((0,),)
    assert controller.choose([chain(0.5)], exposed_draft_s=0.02).nodes == ((),)


def test_nan_and_wild_scores_do_no_harm() -> None:
    nan = float("nan")
    session = Candidates((nan, 0.9, 7.0, 0.9), (-1, 0, -1, 2))
    choice = Controller(cost()).choose([session])
    assert choice.nodes == ((2, 3),) and choice.expected == (1.9,)
    assert Controller(cost()).choose([]).nodes == ()


def test_wait_budget_is_the_break_even() -> None:
    controller, model = Controller(cost()), cost()
    wait = controller.wait_budget_s(1.5, num_sessions=1, num_nodes=3, max_wait_s=1.0)
    assert 2.5 / (model.step_s(4) + wait) == pytest.approx(1 / model.step_s(1))
    assert controller.wait_budget_s(0.0, 1, 3, 1.0) == 0.0
    assert controller.wait_budget_s(50.0, 1, 3, 0.25) == 0.25


def simulate(quality, steps: int, num_sessions: int = 1, seed: int = 0):
    """A draft that always claims 0.7 per token; ``quality(step)`` is how often it is right.

    Returns nodes per step, gate per step, and time over that of plain decoding.
    """
    rng, model = random.Random(seed), cost()
    controller, history, active, seconds, tokens = Controller(model), [], [], 0.0, 0
    for step in range(steps):
        offers = [chain(*(0.7**d for d in range(1, 6)), bucket="b")] * num_sessions
        choice = controller.choose(offers)
        num_nodes = sum(map(len, choice.nodes))
        history.append(num_nodes)
        active.append(controller.is_active("b"))
        seconds += model.step_s(num_sessions + num_nodes)
        for nodes, expected in zip(choice.nodes, choice.expected, strict=True):
            accepted = 0
            while accepted < len(nodes) and rng.random() < quality(step):
                accepted += 1
            tokens += accepted + 1
            if nodes:
                controller.observe("b", expected, accepted)
    return history, active, seconds / (model.step_s(num_sessions) * tokens / num_sessions)


@pytest.mark.parametrize("num_sessions", [1, 4, 16])
def test_bad_draft_falls_to_the_floor_within_ten_steps(num_sessions: int) -> None:
    """B113: a draft that is never right costs next to nothing, soon."""
    history, _, slowdown = simulate(lambda step: 0.0, 12, num_sessions)
    assert history[0] > 0 and max(history[9:]) <= 1
    history, _, slowdown = simulate(lambda step: 0.0, 300, num_sessions)
    assert slowdown < 1.05
    assert any(history[20:])  # probed: zero is not for ever
    assert sum(n > 0 for n in history[20:]) <= 25


@pytest.mark.parametrize("num_sessions", [1, 4])
def test_good_draft_stays_on_and_pays(num_sessions: int) -> None:
    history, active, slowdown = simulate(lambda step: 0.75, 200, num_sessions)
    assert all(active) and min(history) > 0 and slowdown < 0.8


@pytest.mark.parametrize("num_sessions", [1, 4])
def test_alternating_draft_changes_the_gate_at_most_once_per_window(num_sessions: int) -> None:
    """B113: good and bad by turns, five steps each, must not make it flap."""
    _, active, slowdown = simulate(lambda step: 0.8 * (step // 5 % 2 == 0), 200, num_sessions)
    changes = [i for i in range(1, 200) if active[i] != active[i - 1]]
    for start in range(0, 200, 5):
        assert sum(start <= i < start + 5 for i in changes) <= 1
    assert len(changes) <= 16 and slowdown < 1.05


@pytest.mark.parametrize("num_sessions", [1, 4])
def test_draft_that_recovers_is_taken_up_again(num_sessions: int) -> None:
    history, active, _ = simulate(lambda step: 0.8 * (step >= 40), 160, num_sessions)
    assert not all(active[:40]) and all(active[-30:]) and min(history[-30:]) > 0


def test_probes_grow_rarer() -> None:
    history, _, _ = simulate(lambda step: 0.0, 400)
    bursts = [i for i in range(20, 400) if history[i] and not history[i - 1]]
    gaps = [b - a for a, b in itertools.pairwise(bursts)]
    assert len(bursts) >= 3 and all(later > earlier for earlier, later in itertools.pairwise(gaps))


def test_buckets_decide_apart() -> None:
    controller = Controller(cost())
    for _ in range(30):
        offers = [chain(0.7, 0.5, bucket="good"), chain(0.7, 0.5, bucket="bad")]
        choice = controller.choose(offers)
        for offer, nodes, expected in zip(offers, choice.nodes, choice.expected, strict=True):
            if nodes:
                controller.observe(offer.bucket, expected, (offer.bucket == "good") * len(nodes))
    assert controller.trust("good") > 1 and controller.trust("bad") < 0.2
    assert choice.nodes[0] and not choice.nodes[1]


def test_length_buckets_are_bounded_labels() -> None:
    assert length_bucket(1, 1) == "p64_o32" and length_bucket(64, 33) == "p64_o128"
    labels = {length_bucket(p, o) for p in range(0, 9000, 31) for o in range(0, 2000, 13)}
    assert len(labels) == 20 and length_bucket(10**6, 10**6) == "pinf_oinf"
