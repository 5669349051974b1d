"""What a target replica keeps for one session, and how candidates are fitted to it.

Pure bookkeeping: the freshest candidate tree, the walk of a late tree through what has
been committed since, and the cut to what the request may still use. Knows no model;
used by the target worker only.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial

from torch import Tensor

from specdist.config import RulesConfig
from specdist.engine.engine import Engine
from specdist.engine.sequence import Sequence as EngineSequence
from specdist.protocol.candidates import CandidateTree, DraftRow
from specdist.protocol.request import SessionRequest
from specdist.protocol.verdict import TokenLogprobs, Verdict
from specdist.speculation import sampling as law
from specdist.speculation.constraint import Constraint
from specdist.speculation.noise import Noise
from specdist.speculation.rules.base import Verification
from specdist.speculation.rules.coupled import verify_logits
from specdist.speculation.rules.registry import RuleInfo, get_rule
from specdist.speculation.sampling import SamplingState
from specdist.speculation.tree import Tree

# After this many waits in vain the target stops waiting for a session's candidates; it tries
# once more after so many steps, or when candidates were in time without being waited for.
MAX_VAIN_WAITS = 2
STEPS_BEFORE_NEXT_WAIT = 16
SMOOTHING = 0.2


@dataclass(frozen=True, slots=True)
class FittedTree:
    """Candidates that grow from the session's present root."""

    tree: Tree
    scores: tuple[float, ...]
    draft_rows: tuple[DraftRow, ...]


EMPTY = FittedTree(Tree((), ()), (), ())


@dataclass(slots=True)
class TargetSession:
    """One session on the target: its sequence, its law and its candidates."""

    request: SessionRequest
    router_id: str
    sequence: EngineSequence
    sampling: SamplingState
    noise: Noise
    rule: RuleInfo
    apply_rule: Callable[..., Verification]
    max_tokens: int
    usable_vocab: int
    offered: CandidateTree | None = None  # the latest tree, until a step takes it
    candidates: FittedTree | None = None  # what of it grows from the present root
    num_stale: int = 0  # trees dropped since the last verdict
    expects_candidates: bool = False
    num_vain_waits: int = 0
    num_steps_unwaited: int = 0  # since the last wait in vain
    num_generated: int = 0
    expected_accepted: float = 1.0  # running mean of accepted tokens per verified tree
    stop_ids: frozenset[int] = field(default_factory=frozenset)

    @property
    def committed_len(self) -> int:
        """Tokens decided so far, prompt included."""
        return len(self.sequence.tokens)

    @property
    def is_prefilling(self) -> bool:
        """Whether more than the root still lacks its KV."""
        return self.sequence.num_computed < self.committed_len - 1

    def offer(self, offered: CandidateTree) -> bool:
        """Take the tree if it still fits what is committed; False when it is stale."""
        self.expects_candidates = not offered.rests
        if offered.rests:
            return True
        fitted = self._fit(offered)
        if fitted is None:
            self.num_stale += 1
            return False
        self.offered, self.candidates = offered, fitted
        return True

    def take_candidates(self, max_model_len: int) -> FittedTree:
        """The candidates of this step, cut to what the answer can still hold."""
        fitted = self.candidates or EMPTY
        in_time = self.candidates is not None
        self.num_vain_waits = 0 if in_time else self.num_vain_waits
        self.num_steps_unwaited += 1
        self.candidates, self.offered = None, None
        room = min(
            self.max_tokens - self.num_generated,
            max_model_len - self.committed_len,
        )
        depth = max(room - 1, 0)
        if self.request.max_speculative_tokens is not None:
            depth = min(depth, self.request.max_speculative_tokens)
        return cut_to_depth(fitted, depth)

    def worth_waiting(self) -> bool:
        """Whether candidates are on their way and have not been missed too often."""
        return (
            self.expects_candidates
            and self.candidates is None
            and not self.is_prefilling
            and (
                self.num_vain_waits < MAX_VAIN_WAITS
                or self.num_steps_unwaited >= STEPS_BEFORE_NEXT_WAIT
            )
        )

    def waited_in_vain(self) -> None:
        """The step goes on without this session's candidates."""
        self.num_vain_waits += 1
        self.num_steps_unwaited = 0

    def verify(self, trees: FittedTree, logits: Tensor) -> Verification:
        """Apply the session's rule at the present position.  # logits: [1 + nodes, vocab]"""
        if self.rule.name == "coupled":
            return verify_logits(trees.tree, logits, self.sampling, self.noise, self.committed_len)
        tree = trees.tree
        paths = [(), *(tree.path_tokens(i) for i in range(len(tree)))]
        log_probs = law.log_probs(logits, self.sampling, paths)
        rows = {row.node: row for row in trees.draft_rows} if self.rule.needs_draft_probs else None
        return self.apply_rule(tree, log_probs, rows, self.noise, self.committed_len)

    def verdict(
        self,
        tokens: tuple[int, ...],
        num_accepted: int = 0,
        num_draft_tokens: int = 0,
        finish_reason: str | None = None,
        error: str | None = None,
        logprobs: tuple[TokenLogprobs, ...] = (),
    ) -> Verdict:
        """The verdict of this step; takes the count of stale trees with it."""
        num_stale, self.num_stale = self.num_stale, 0
        return Verdict(
            session_id=self.request.session_id,
            base_len=self.committed_len,
            tokens=tokens,
            num_accepted=num_accepted,
            num_draft_tokens=num_draft_tokens,
            num_stale_trees=num_stale,
            finish_reason=finish_reason,
            error=error,
            logprobs=logprobs,
            num_cached_tokens=self.sequence.num_cached_tokens,
        )

    def failure(
        self, message: str, is_retryable: bool = False, is_refusal: bool = False
    ) -> Verdict:
        """End this session with an error."""
        verdict = self.verdict((), finish_reason="error", error=message)
        return replace(verdict, is_retryable=is_retryable, is_refusal=is_refusal)

    def learn(self, num_nodes: int, num_accepted: int, num_tokens: int) -> None:
        """Count what was emitted, and what candidates are worth to this session."""
        self.num_generated += num_tokens
        if num_nodes:
            self.expected_accepted += SMOOTHING * (num_accepted - self.expected_accepted)

    def commit(self, tokens: tuple[int, ...]) -> None:
        """Append what was decided; a tree that this step did not use has a root behind it now."""
        self.sequence.tokens.extend(tokens)
        if self.offered is not None:
            self.candidates = self._fit(self.offered)
            if self.candidates is None:
                self.offered = None
                self.num_stale += 1

    def _fit(self, offered: CandidateTree) -> FittedTree | None:
        tree = _sound_tree(offered, self.usable_vocab)
        if tree is None:
            return None
        since = self.sequence.tokens[offered.base_len :]
        if offered.base_len > self.committed_len or offered.base_len < 1:
            return None
        if not since:
            return FittedTree(tree, offered.scores, offered.draft_rows)
        if self.rule.needs_draft_probs:
            return None  # its draws were made for a root that is gone
        node = tree.walk(since)
        if node is None:
            return None
        rest, kept = tree.subtree(node)
        return FittedTree(rest, tuple(offered.scores[i] for i in kept), ()) if len(rest) else None


def new_target_session(
    request: SessionRequest,
    router_id: str,
    sequence: EngineSequence,
    engine: Engine,
    rules: RulesConfig,
    constraint: Constraint | None = None,
) -> TargetSession:
    """A session as the target keeps it, continued from what is committed already.

    ``constraint`` stands at the beginning of the answer and is led through what is committed.
    """
    params, rule = request.sampling, get_rule(request.rule)
    if params.seed is None or params.max_tokens is None:
        raise ValueError(f"{request.session_id}: seed and max_tokens must be resolved")
    prompt = request.committed[: request.num_prompt_tokens]
    answer = request.committed[request.num_prompt_tokens :]
    eos = frozenset() if params.ignore_eos else engine.eos_token_ids
    apply_rule: Callable[..., Verification] = rule.load()
    if rule.name == "typical":
        apply_rule = partial(apply_rule, epsilon=rules.typical_epsilon, delta=rules.typical_delta)
    return TargetSession(
        request=request,
        router_id=router_id,
        sequence=sequence,
        sampling=law.SamplingState(params, prompt, engine.eos_token_ids, answer, constraint),
        noise=Noise(params.seed),
        rule=rule,
        apply_rule=apply_rule,
        max_tokens=params.max_tokens,
        usable_vocab=engine.vocab_size,
        num_generated=len(answer),
        stop_ids=eos | frozenset(params.stop_token_ids),
    )


def _sound_tree(offered: CandidateTree, vocab_size: int) -> Tree | None:
    """The offered tree; None if no sound draft makes such a one: a draft never stops a target."""
    if len(offered.scores) not in (0, len(offered.tokens)):
        return None
    if not all(0 <= token < vocab_size for token in offered.tokens):
        return None  # padding, or a token that only the draft has
    try:
        return Tree(offered.tokens, offered.parents)
    except ValueError:
        return None


def shrink(fitted: FittedTree, num_nodes: int, rule: RuleInfo) -> FittedTree:
    """The likeliest ``num_nodes`` candidates; all or none where the draws must stay whole."""
    if num_nodes >= len(fitted.tree):
        return fitted
    if rule.needs_draft_probs or not num_nodes:
        return EMPTY
    scores = fitted.scores or (0.0,) * len(fitted.tree)
    order = sorted(range(len(fitted.tree)), key=lambda i: (-scores[i], i))
    return select(fitted, sorted(order[:num_nodes]))


def cut_to_depth(fitted: FittedTree, depth: int) -> FittedTree:
    """Drop every node deeper than ``depth``; whole sibling groups go together."""
    depths = fitted.tree.depths
    if not len(fitted.tree) or max(depths) <= depth:
        return fitted
    return select(fitted, [i for i, d in enumerate(depths) if d <= depth])


def select(fitted: FittedTree, nodes: list[int]) -> FittedTree:
    """Keep the given nodes (closed under parents)."""
    tree, kept = fitted.tree.select(nodes)
    place = {old: new for new, old in enumerate(kept)} | {-1: -1}
    rows = tuple(
        DraftRow(place[row.node], row.token_ids, row.probs)
        for row in fitted.draft_rows
        if row.node in place
    )
    scores = tuple(fitted.scores[i] for i in kept) if fitted.scores else ()
    return FittedTree(tree, scores, rows)
