"""From logits to the law p that tokens are drawn from: every processor, in one order.

    grammar -> logit_bias -> penalties -> min_tokens -> temperature -> top_k -> top_p -> min_p

What the grammar forbids has probability 0 from there on, so that truncation counts and
weighs allowed tokens only; min_tokens gives way where the grammar leaves nothing but the
end. Plain decoding, verification and the draft all use this one function, each row with the
tokens of its own path. Knows no trees, no noise and no rule. Called by the workers and by
``rules.coupled``.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from specdist.protocol.request import SamplingParams
from specdist.speculation.constraint import Constraint
from specdist.speculation.masking import NEG_INF, mask_rows

# Nats below the peak: how far the nucleus is looked for before the whole row is sorted.
_NUCLEUS_WIDTHS = (8.0, 16.0, math.inf)


class SamplingState:
    """What the processors of one session remember: its settings and its tokens so far."""

    def __init__(
        self,
        params: SamplingParams,
        prompt_tokens: Iterable[int] = (),
        eos_token_ids: Iterable[int] = (),
        answer_tokens: Iterable[int] = (),
        constraint: Constraint | None = None,
    ) -> None:
        """``constraint``: what the answer must match, still standing at its beginning."""
        self.params = params
        self.prompt_tokens = frozenset(prompt_tokens)
        self.eos_token_ids = frozenset(eos_token_ids)
        self.counts: Counter[int] = Counter()
        self.num_generated = 0
        self.constraint = constraint
        self._penalised: tuple[list[int], list[int]] | None = None
        self.commit(answer_tokens)

    def commit(self, tokens: Iterable[int]) -> None:
        """Take in tokens that were decided."""
        tokens = tuple(tokens)
        if self.constraint is not None:
            self.constraint.commit(tokens)
        for token in tokens:
            self.counts[token] += 1
            self.num_generated += 1
        self._penalised = None

    @property
    def is_greedy(self) -> bool:
        """Temperature 0: the likeliest token, no randomness."""
        return self.params.temperature == 0

    @property
    def has_penalties(self) -> bool:
        p = self.params
        return p.repetition_penalty != 1 or p.presence_penalty != 0 or p.frequency_penalty != 0

    @property
    def adjusts_logits(self) -> bool:
        """Some processor before the temperature may change a row."""
        bans_stop = self.num_generated < self.params.min_tokens
        is_constrained = self.constraint is not None
        return bool(self.params.logit_bias) or self.has_penalties or bans_stop or is_constrained

    @property
    def shapes_law(self) -> bool:
        """Temperature or truncation may change a row."""
        p = self.params
        return p.temperature != 1 or p.top_k > 0 or p.top_p < 1 or p.min_p > 0

    def penalised(self) -> tuple[list[int], list[int]]:
        """Token ids that a penalty touches, and how often each stands in the answer."""
        if self._penalised is None:
            ids: set[int] = set(self.counts)
            if self.params.repetition_penalty != 1:
                ids |= self.prompt_tokens
            ordered = sorted(ids)
            self._penalised = ordered, [self.counts[token] for token in ordered]
        return self._penalised


def log_probs(
    logits: Tensor, state: SamplingState, paths: Sequence[Sequence[int]] | None = None
) -> Tensor:
    """log p of every row after all processors: [n, vocab] float32, -inf outside the support.

    ``logits``: [n, vocab]; ``paths[i]``: tokens between the committed ones and row i's
    next token (None: none anywhere). Temperature 0 gives 0 at the argmax (lowest id first)
    and -inf elsewhere. FloatingPointError names a row with NaN, +inf or no token left.
    """
    if state.is_greedy:
        adjusted = adjusted_logits(logits, state, paths)
        one_hot = torch.full_like(adjusted, NEG_INF)
        return one_hot.scatter_(1, adjusted.argmax(dim=1, keepdim=True), 0.0)
    return torch.log_softmax(scores(logits, state, paths), dim=-1)


def scores(
    logits: Tensor, state: SamplingState, paths: Sequence[Sequence[int]] | None = None
) -> Tensor:
    """``log_probs`` up to a constant per row, which sampling by Gumbel-max does not need.

    Saves the softmax; with default settings it is the logits themselves. Must not be
    written to. For temperature 0 use ``adjusted_logits`` and its argmax.
    """
    rows = adjusted_logits(logits, state, paths)
    if not state.shapes_law:
        return rows
    # On a CPU one row fits the cache and a batch of them does not: four times faster.
    chunks = torch.split(rows, 1 if rows.device.type == "cpu" else max(len(rows), 1))
    return torch.cat([_shaped(chunk, state.params) for chunk in chunks])


def adjusted_logits(
    logits: Tensor, state: SamplingState, paths: Sequence[Sequence[int]] | None = None
) -> Tensor:
    """Logits after grammar, bias, penalties and min_tokens: [n, vocab] float32.

    Not to be written to.
    """
    if logits.dim() != 2:
        raise ValueError(f"logits must be [rows, vocab], got shape {tuple(logits.shape)}")
    paths = [()] * len(logits) if paths is None else paths
    if len(paths) != len(logits):
        raise ValueError(f"one path per row is needed, got {len(paths)} for {len(logits)} rows")
    rows = logits.float()
    check_rows(rows)
    if not state.adjusts_logits:
        return rows
    rows = rows.clone() if rows is logits else rows
    if state.constraint is not None:
        mask_rows(rows, state.constraint, paths)
    _add_bias(rows, state.params)
    if state.has_penalties:
        _penalise(rows, state, paths)
    _ban_stop_tokens(rows, state, paths)
    check_rows(rows)
    return rows


def raw_logprobs(
    logits: Tensor, constraint: Constraint | None = None, paths: Sequence[Sequence[int]] = ()
) -> Tensor:
    """Log probabilities as reported to clients: the model's own, before any other processor.

    Under a grammar they are taken over the tokens that it allows after ``paths``.
    """
    rows = logits.float()
    check_rows(rows)
    if constraint is not None:
        rows = rows.clone() if rows is logits else rows
        mask_rows(rows, constraint, paths)
        check_rows(rows)
    return torch.log_softmax(rows, dim=-1)


def check_rows(rows: Tensor) -> None:
    """FloatingPointError if a row holds NaN or +inf, or only -inf."""
    peaks = rows.amax(dim=-1)
    finite = torch.isfinite(peaks)
    if not bool(finite.all()):
        row = int(torch.nonzero(~finite)[0])
        raise FloatingPointError(
            f"row {row} of the logits must have a finite largest value, got {float(peaks[row])}"
        )


def _shaped(rows: Tensor, params: SamplingParams) -> Tensor:
    """Temperature and truncation: [n, vocab] to [n, vocab]."""
    if params.temperature != 1:
        # The peak first: a tiny temperature then cannot overflow.
        rows = (rows - rows.amax(dim=-1, keepdim=True)) / params.temperature
    if 0 < params.top_k < rows.shape[1]:
        kth = torch.topk(rows, params.top_k, dim=-1).values[:, -1:]
        rows = rows.masked_fill(rows < kth, NEG_INF)
    if params.top_p < 1:
        rows = torch.stack([_nucleus(row, params.top_p) for row in rows])
    if params.min_p > 0:
        floor = rows.amax(dim=-1, keepdim=True) + math.log(params.min_p)
        rows = rows.masked_fill(rows < floor, NEG_INF)
    return rows


def _add_bias(rows: Tensor, params: SamplingParams) -> None:
    for token, _ in params.logit_bias:
        if not 0 <= token < rows.shape[1]:
            raise ValueError(f"logit_bias token must be in 0..{rows.shape[1] - 1}, got {token}")
    if params.logit_bias:
        tokens, biases = zip(*params.logit_bias, strict=True)
        rows[:, list(tokens)] += torch.tensor(biases, dtype=rows.dtype, device=rows.device)


def _penalise(rows: Tensor, state: SamplingState, paths: Sequence[Sequence[int]]) -> None:
    """Committed tokens for all rows at once, then the tokens of each row's own path."""
    ids, counts = state.penalised()
    on_paths = []
    for i, path in enumerate(paths):
        if path:  # from the untouched values: a token may be committed and on the path
            tally = Counter(path)
            tokens = list(tally)
            total = [state.counts[token] + tally[token] for token in tokens]
            on_paths.append((i, tokens, _penalty(rows[i, tokens], total, state.params)))
    if ids:
        rows[:, ids] = _penalty(rows[:, ids], counts, state.params)
    for i, tokens, values in on_paths:
        rows[i, tokens] = values


def _penalty(values: Tensor, counts: Sequence[int], params: SamplingParams) -> Tensor:
    """``values``: [..., m] logits of tokens seen; ``counts``: how often each is in the answer."""
    count = torch.tensor(counts, dtype=values.dtype, device=values.device)
    factor = params.repetition_penalty
    if factor != 1:
        values = torch.where(values < 0, values * factor, values / factor)
    return values - params.frequency_penalty * count - params.presence_penalty * (count > 0)


def _ban_stop_tokens(rows: Tensor, state: SamplingState, paths: Sequence[Sequence[int]]) -> None:
    stop = state.eos_token_ids | frozenset(state.params.stop_token_ids)
    banned = [token for token in stop if token < rows.shape[1]]
    for i, path in enumerate(paths):
        if state.num_generated + len(path) < state.params.min_tokens:
            before = rows[i, banned]
            rows[i, banned] = NEG_INF
            if state.constraint is not None and not bool(torch.isfinite(rows[i]).any()):
                rows[i, banned] = before  # the grammar ends here: nothing else may follow


def _nucleus(row: Tensor, top_p: float) -> Tensor:
    """The smallest set of likeliest tokens with mass ``top_p``; ties go to the lowest id.

    Sorts only tokens near the peak; they are the whole nucleus once their share of the
    total mass reaches ``top_p``.
    """
    peak = row.max()
    total = (row - peak).exp().sum(dtype=torch.float64)
    for width in _NUCLEUS_WIDTHS:
        ids = torch.nonzero(row > peak - width).squeeze(1)
        values, order = torch.sort(row[ids], descending=True, stable=True)
        mass = (values - peak).double().exp().cumsum(0) / total
        num_kept = int(torch.searchsorted(mass, top_p)) + 1
        if num_kept <= len(ids):
            break
    kept = ids[order[:num_kept]]
    result = torch.full_like(row, NEG_INF)
    result[kept] = row[kept]
    return result
