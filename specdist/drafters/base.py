"""What every drafter works on: one session's tree, and the interface of a drafting method.

A drafter adds candidates to a session's growing tree; the draft worker decides when it
is asked, re-roots the tree after verdicts and sends the best part to the target. Drafters
know no router and no transport.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from torch import Tensor

from specdist.config import SpeculationConfig
from specdist.drafters.growing_tree import GrowingTree
from specdist.engine.sequence import Sequence as EngineSequence
from specdist.protocol.candidates import DraftRow
from specdist.protocol.request import SessionRequest
from specdist.speculation.noise import Noise
from specdist.speculation.rules.registry import RuleInfo
from specdist.speculation.sampling import SamplingState


@dataclass(frozen=True, slots=True)
class GrowthLimits:
    """How far one session's tree may grow, from the settings and the request."""

    max_depth: int
    max_nodes: int
    max_children: int
    max_nodes_ahead: int  # while the target verifies
    min_score: float  # nodes less likely than this are not worth a row

    @classmethod
    def of(cls, settings: SpeculationConfig, request: SessionRequest) -> GrowthLimits:
        """The limits of a request under the present settings."""
        depth = settings.num_speculative_tokens
        if request.max_speculative_tokens is not None:
            depth = min(depth, request.max_speculative_tokens)
        if settings.mode == "off":
            depth = 0
        chain = settings.mode == "fixed"
        nodes = depth if chain else settings.max_tree_nodes
        ahead = settings.draft_ahead_nodes if settings.draft_ahead else 0
        return cls(
            max_depth=depth,
            max_nodes=nodes if depth else 0,
            max_children=1 if chain else settings.max_children,
            max_nodes_ahead=ahead,
            min_score=MIN_ADAPTIVE_SCORE if settings.mode == "adaptive" else 0.0,
        )


MIN_ADAPTIVE_SCORE = 0.02


@dataclass(slots=True)
class DraftSession:
    """One session on a draft replica."""

    request: SessionRequest
    router_id: str
    tokens: list[int]  # committed; shared with the engine's sequence when there is one
    sampling: SamplingState
    noise: Noise
    rule: RuleInfo
    limits: GrowthLimits
    sequence: EngineSequence | None = None  # None: no model drafts for this session
    tree: GrowingTree = field(default_factory=GrowingTree)
    draft_rows: dict[int, DraftRow] = field(default_factory=dict)
    root_law: Tensor | None = None  # log q at the root, to learn the trust in the noise from
    early: dict[int, tuple[int, ...]] = field(default_factory=dict)  # verdicts behind a gap
    offered_score: float | None = None  # expected tokens of what was offered for this root
    usual_score: float = 0.0  # running mean of the above
    num_unused: int = 0  # offers in a row that the target did not verify
    rest_is_known: bool = False  # the target has been told that drafting pauses
    num_draws: int = 0  # makes every draw of the rules that draw independent
    last_active_s: float = 0.0

    @property
    def committed_len(self) -> int:
        """Tokens decided by the target, as far as this draft has heard."""
        return len(self.tokens)

    @property
    def draws(self) -> bool:
        """Whether the session's rule needs children that are drawn from the draft's law."""
        return self.rule.needs_draft_probs


class Drafter(Protocol):
    """A method of making candidates."""

    name: str

    def committed(self, session: DraftSession, tokens: Sequence[int]) -> None:
        """Learn newly committed tokens, before the tree is re-rooted."""

    def propose(self, session: DraftSession) -> None:
        """Add candidates to a tree whose root is new."""

    def forget(self, session: DraftSession) -> None:
        """The session has ended."""
