"""How many candidates to verify in the next engine step, over the whole batch.

Picks the nodes that maximise expected committed tokens per second,

    (sessions + sum of node chances) / (C(rows) + exposed draft time),

where an empty set, plain decoding, competes like any other. Two things keep that honest:
per length bucket a *trust* (accepted over promised tokens, fading) scales the chances, and
a *gate* switches a bucket to plain decoding when speculation stops paying. The gate turns
only after several steps agree, and a closed one is probed now and then, ever more rarely.

Counts steps, reads no clock. Owned by the target worker.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import NamedTuple

from specdist.speculation.cost_model import CostModel

PROMPT_EDGES = (64, 256, 1024, 4096)
OUTPUT_EDGES = (32, 128, 512)

CLOSE_BELOW = 0.02  # expected extra tokens per session and step, net of their cost
OPEN_ABOVE = 0.05
CLOSE_PATIENCE = 6  # steps in a row that must agree before a gate turns
OPEN_PATIENCE = 2
TRUST_FADING = 0.9  # per verified draft
TRUST_PRIOR = 2.0  # promised tokens that a fresh bucket is believed without proof; fades too
MAX_TRUST = 1.5
PROBE_AFTER = 16  # steps; doubles after every probe in vain
PROBE_AFTER_MAX = 256
PROBE_STEPS = 5
PROBE_SESSIONS = 2
PROBE_NODES = 4
PROBE_MEMORY = 2.0  # promised tokens of the past that a probe is weighed against


def length_bucket(prompt_len: int, output_len: int) -> str:
    """A bounded label for the lengths of a request, such as ``p256_o32``: upper ends."""
    return f"p{_upper(PROMPT_EDGES, prompt_len)}_o{_upper(OUTPUT_EDGES, output_len)}"


def _upper(edges: Sequence[int], value: int) -> str:
    i = bisect_left(edges, value)
    return str(edges[i]) if i < len(edges) else "inf"


class Candidates(NamedTuple):
    """One session's candidates: per node the chance that it is on the true path."""

    scores: Sequence[float]
    parents: Sequence[int]  # -1: child of the root
    bucket: str = ""
    max_depth: int | None = None  # this request's own cap; 0: no speculation


class Choice(NamedTuple):
    """What to verify: per session the nodes (ascending, closed under parents)."""

    nodes: tuple[tuple[int, ...], ...]
    expected: tuple[float, ...]  # per session: accepted tokens that the scores promise


@dataclass
class _Gate:
    """One length bucket."""

    is_open: bool = True
    streak: int = 0  # steps in a row that argue for the other state
    promised: float = TRUST_PRIOR
    accepted: float = TRUST_PRIOR
    num_closed_steps: int = 0
    probe_after: int = PROBE_AFTER

    @property
    def trust(self) -> float:
        return min(self.accepted / self.promised, MAX_TRUST) if self.promised > 0 else 1.0

    @property
    def is_probing(self) -> bool:
        return not self.is_open and self.num_closed_steps >= self.probe_after

    def turn(self, gain: float) -> None:
        """Take in one step's net gain per session."""
        disagrees = gain < CLOSE_BELOW if self.is_open else gain > OPEN_ABOVE
        self.streak = self.streak + 1 if disagrees else 0
        if self.streak >= (CLOSE_PATIENCE if self.is_open else OPEN_PATIENCE):
            self.is_open = not self.is_open
            self.streak, self.num_closed_steps, self.probe_after = 0, 0, PROBE_AFTER

    def count_closed_step(self) -> None:
        self.num_closed_steps += 1
        if self.num_closed_steps == self.probe_after and self.promised > PROBE_MEMORY:
            self.accepted *= PROBE_MEMORY / self.promised
            self.promised = PROBE_MEMORY
        if self.num_closed_steps >= self.probe_after + PROBE_STEPS:
            self.num_closed_steps = 0
            self.probe_after = min(2 * self.probe_after, PROBE_AFTER_MAX)


class _Node(NamedTuple):
    """Sorts by falling chance; a parent, never less likely, comes before its child."""

    minus_chance: float
    session: int
    node: int


class Controller:
    """Decides per engine step; ``mode`` is one of adaptive, tree, fixed, off."""

    def __init__(
        self, cost: CostModel, mode: str = "adaptive", max_nodes: int = 16, max_depth: int = 5
    ) -> None:
        if mode not in ("adaptive", "tree", "fixed", "off"):
            raise ValueError(f"mode must be one of adaptive, tree, fixed, off, got {mode!r}")
        self.cost = cost
        self.mode = mode
        self.max_nodes = max_nodes  # per session
        self.max_depth = max_depth
        self._gates: dict[str, _Gate] = {}

    def is_active(self, bucket: str) -> bool:
        """Candidates for this bucket may be used now: worth drafting."""
        if self.mode != "adaptive":
            return self.mode != "off"
        gate = self._gate(bucket)
        return gate.is_open or gate.is_probing

    def trust(self, bucket: str) -> float:
        """Accepted over promised tokens of late."""
        return self._gate(bucket).trust

    def observe(self, bucket: str, expected: float, num_accepted: int) -> None:
        """A draft was verified: what ``Choice.expected`` promised and what was accepted."""
        gate = self._gate(bucket)
        gate.promised = gate.promised * TRUST_FADING + expected
        gate.accepted = gate.accepted * TRUST_FADING + num_accepted

    def choose(
        self, sessions: Sequence[Candidates], other_rows: int = 0, exposed_draft_s: float = 0.0
    ) -> Choice:
        """The nodes to verify in one step in which every session decodes.

        ``other_rows``: prefill rows in the same step; ``exposed_draft_s``: time the step
        would have to wait for these candidates (0 when they are already here).
        """
        if self.mode == "off" or not sessions:
            return self._choice(sessions, [])
        if self.mode == "fixed":
            return self._choice(sessions, [(i, self._chain(s)) for i, s in enumerate(sessions)])
        if self.mode == "tree":
            ranked = [self._ranked(i, s, 1.0) for i, s in enumerate(sessions)]
            return self._choice(sessions, [(i, [n.node for n in r]) for i, r in enumerate(ranked)])
        return self._choose_adaptive(sessions, other_rows, exposed_draft_s)

    def wait_budget_s(
        self, expected_accept: float, num_sessions: int, num_nodes: int, max_wait_s: float
    ) -> float:
        """How long waiting for candidates on their way can pay, for the whole batch.

        The break-even w of (n + E) / (C(n + nodes) + w) = n / C(n), at most ``max_wait_s``.
        """
        plain = self.cost.step_s(num_sessions)
        busy = self.cost.step_s(num_sessions + num_nodes)
        even = plain * (1 + expected_accept / num_sessions) - busy
        return min(max(even, 0.0), max_wait_s)

    def _choose_adaptive(
        self, sessions: Sequence[Candidates], other_rows: int, exposed_s: float
    ) -> Choice:
        ranked = [self._ranked(i, s, self.trust(s.bucket)) for i, s in enumerate(sessions)]
        base = len(sessions) + other_rows
        wanted = self._best_prefix(
            sorted(chain.from_iterable(ranked)), len(sessions), base, exposed_s
        )
        self._turn_gates(sessions, ranked, wanted, base, exposed_s)
        closed = [not self._gate(s.bucket).is_open for s in sessions]
        if any(closed):
            still = [n for r, off in zip(ranked, closed, strict=True) if not off for n in r]
            wanted = self._best_prefix(sorted(still), len(sessions), base, exposed_s)
        chosen: dict[int, list[int]] = {}
        for node in wanted:
            chosen.setdefault(node.session, []).append(node.node)
        self._add_probes(sessions, chosen)
        return self._choice(sessions, list(chosen.items()))

    def _best_prefix(
        self, nodes: list[_Node], num_sessions: int, base: int, exposed_s: float
    ) -> list[_Node]:
        """The likeliest nodes up to the stair with the most expected tokens per second."""
        best_rate = num_sessions / self.cost.step_s(base)
        best, tokens, taken = 0, float(num_sessions), 0
        while taken < len(nodes):
            end = min(len(nodes), self.cost.step_end(base + taken + 1) - base)
            tokens -= sum(n.minus_chance for n in nodes[taken:end])
            rate = tokens / (self.cost.step_s(base + end) + exposed_s)
            if rate > best_rate:
                best_rate, best = rate, end
            taken = end
        return nodes[:best]

    def _turn_gates(
        self,
        sessions: Sequence[Candidates],
        ranked: Sequence[list[_Node]],
        wanted: Sequence[_Node],
        base: int,
        exposed_s: float,
    ) -> None:
        """Tell every bucket that has candidates what they would gain, net, per session."""
        plain_s = self.cost.step_s(base)
        extra_s = self.cost.step_s(base + len(wanted)) + exposed_s - plain_s if wanted else 0.0
        price = extra_s / plain_s * len(sessions) / max(len(wanted), 1)  # tokens per node
        gains: dict[str, float] = {}
        sizes: dict[str, int] = {}
        for session, nodes in zip(sessions, ranked, strict=True):
            if nodes:
                gains.setdefault(session.bucket, 0.0)
                sizes[session.bucket] = sizes.get(session.bucket, 0) + 1
        for node in wanted:
            gains[sessions[node.session].bucket] += -node.minus_chance - price
        for bucket, gain in gains.items():
            self._gate(bucket).turn(gain / sizes[bucket])

    def _add_probes(self, sessions: Sequence[Candidates], chosen: dict[int, list[int]]) -> None:
        """Closed buckets: count the step, and every so often verify a few nodes all the same."""
        probed: dict[str, int] = {}
        for i, session in enumerate(sessions):
            nodes = [n.node for n in self._ranked(i, session, 1.0)[:PROBE_NODES]]
            if self._gate(session.bucket).is_probing and nodes:
                probed[session.bucket] = probed.get(session.bucket, 0) + 1
                if probed[session.bucket] <= PROBE_SESSIONS:
                    chosen[i] = nodes
        for bucket in {s.bucket for s in sessions}:
            gate = self._gate(bucket)
            if not gate.is_open and (not gate.is_probing or bucket in probed):
                gate.count_closed_step()

    def _ranked(self, index: int, session: Candidates, trust: float) -> list[_Node]:
        """The session's best nodes by falling chance, within its limits."""
        depths, chances, limit = _depths(session), _clean(session), self._depth_limit(session)
        nodes = [
            _Node(-min(chance * trust, 1.0), index, node)
            for node, chance in enumerate(chances)
            if chance > 0 and depths[node] <= limit
        ]
        return sorted(nodes)[: self.max_nodes]

    def _chain(self, session: Candidates) -> list[int]:
        """The path of likeliest children, first one among equals."""
        chances = _clean(session)
        path: list[int] = []
        while len(path) < self._depth_limit(session):
            end = path[-1] if path else -1
            children = [i for i, parent in enumerate(session.parents) if parent == end]
            if not children:
                break
            path.append(max(children, key=lambda i: chances[i]))
        return path

    def _depth_limit(self, session: Candidates) -> float:
        return min(self.max_depth, math.inf if session.max_depth is None else session.max_depth)

    @staticmethod
    def _choice(sessions: Sequence[Candidates], chosen: Sequence[tuple[int, list[int]]]) -> Choice:
        nodes: list[tuple[int, ...]] = [()] * len(sessions)
        for i, picked in chosen:
            nodes[i] = tuple(sorted(picked))
        expected = [
            math.fsum(map(_clean(session).__getitem__, picked)) if picked else 0.0
            for session, picked in zip(sessions, nodes, strict=True)
        ]
        return Choice(tuple(nodes), tuple(expected))

    def _gate(self, bucket: str) -> _Gate:
        return self._gates.setdefault(bucket, _Gate())


def _depths(session: Candidates) -> list[int]:
    depths: list[int] = []
    for parent in session.parents:
        depths.append(1 if parent < 0 else depths[parent] + 1)
    return depths


def _clean(session: Candidates) -> list[float]:
    """Scores as chances: NaN counts as 0, and no node is likelier than its parent."""
    chances: list[float] = []
    for score, parent in zip(session.scores, session.parents, strict=True):
        chance = 0.0 if math.isnan(score) else min(max(score, 0.0), 1.0)
        chances.append(chance if parent < 0 else min(chance, chances[parent]))
    return chances
