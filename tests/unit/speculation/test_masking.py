"""A law cut to what a grammar allows: in the right order, on every path, and at the end."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import pytest
import torch

from specdist.protocol.request import SamplingParams
from specdist.speculation.constraint import AllowedTokens, ConstraintError, num_admitted
from specdist.speculation.draft_sampling import (
    draw_without_replacement,
    rank_children,
    ranking_log_probs,
)
from specdist.speculation.masking import has_candidates, mask_rows
from specdist.speculation.noise import Noise
from specdist.speculation.rules.coupled import verify_logits
from specdist.speculation.sampling import SamplingState, adjusted_logits, log_probs, raw_logprobs
from specdist.speculation.tree import Tree

VOCAB, EOS = 8, 2
INF = float("inf")


class Language:
    """A finite set of answers as a constraint: the definition, by looking at all of them."""

    def __init__(self, *answers: Sequence[int]) -> None:
        self._answers = [tuple(a) for a in answers]
        self._committed: tuple[int, ...] = ()

    def commit(self, tokens: Iterable[int]) -> None:
        self._committed += tuple(tokens)

    def allowed(self, path: Sequence[int]) -> AllowedTokens | None:
        text = (*self._committed, *path)
        begun = [(*a, EOS) for a in self._answers if a[: len(text)] == text]
        follows = {whole[len(text)] for whole in begun}
        if not follows:
            return None
        mask = np.zeros(VOCAB, dtype=np.bool_)
        mask[list(follows)] = True
        return mask


def state(
    *answers: Sequence[int], committed: Sequence[int] = (), **params: object
) -> SamplingState:
    return SamplingState(
        SamplingParams(**params),  # type: ignore[arg-type]
        prompt_tokens=[1],
        eos_token_ids=[EOS],
        answer_tokens=committed,
        constraint=Language(*answers),
    )


def support(law: torch.Tensor) -> list[list[int]]:
    return [torch.nonzero(torch.isfinite(row)).squeeze(1).tolist() for row in law]


def rows(*wanted: Sequence[float]) -> torch.Tensor:
    return torch.tensor([[*row, *[0.0] * (VOCAB - len(row))] for row in wanted])


def test_each_row_has_the_mask_of_its_own_path() -> None:
    language = state([3, 4], [3, 5], [6])
    paths = [(), (3,), (6,), (3, 4), (7,)]
    law = log_probs(torch.zeros(5, VOCAB), language, paths)
    assert support(law) == [[3, 6], [4, 5], [EOS], [EOS], list(range(VOCAB))]
    torch.testing.assert_close(law.exp().sum(dim=1), torch.ones(5))


def test_committed_tokens_move_the_grammar_on() -> None:
    """A session that is taken up elsewhere replays its answer."""
    moved = state([3, 4], [3, 5], committed=[3])
    assert support(log_probs(torch.zeros(1, VOCAB), moved)) == [[4, 5]]
    moved.commit([5])
    assert support(log_probs(torch.zeros(1, VOCAB), moved)) == [[EOS]]


def test_the_logits_themselves_stay_as_they_are() -> None:
    logits = torch.randn(2, VOCAB)
    before = logits.clone()
    language = state([3], [4])
    log_probs(logits, language, [(), (3,)])
    raw_logprobs(logits, language.constraint, [(), (3,)])
    assert torch.equal(logits, before)


@pytest.mark.parametrize("temperature", [0.0, 0.7, 1.0])
@pytest.mark.parametrize(
    "truncation", [{}, {"top_k": 2}, {"top_p": 0.5}, {"min_p": 0.5}, {"top_k": 1, "top_p": 0.1}]
)
def test_truncation_counts_allowed_tokens_only(
    temperature: float, truncation: dict[str, float]
) -> None:
    """The forbidden tokens are far likelier, and still take no place and no mass."""
    language = state([3], [4], [5], temperature=temperature, **truncation)
    logits = rows([9.0, 9.0, 9.0, 2.0, 1.0, 0.0, 9.0, 9.0])
    law = log_probs(logits, language)[0]
    alone = SamplingState(SamplingParams(temperature=temperature, **truncation))  # type: ignore
    wanted = log_probs(logits[:, 3:6], alone)[0]
    torch.testing.assert_close(law[3:6], wanted)
    assert support(law[None]) == [[3 + i for i in support(wanted[None])[0]]]


def test_penalties_and_bias_move_allowed_tokens_only() -> None:
    language = state(
        [3, 3], [3, 4], committed=[3], repetition_penalty=2.0, frequency_penalty=1.0,
        logit_bias=((4, -50.0), (7, 100.0)),
    )  # fmt: skip
    got = adjusted_logits(rows([0, 0, 0, 4.0, 1.0]), language)[0].tolist()
    assert got == [-INF, -INF, -INF, 1.0, -49.0, -INF, -INF, -INF]


def test_a_forced_token_is_certain_even_if_the_model_cannot_say_it() -> None:
    language = state([3])
    impossible = rows([0, 0, 0, -INF])
    assert log_probs(impossible, language)[0].tolist() == [-INF] * 3 + [0.0] + [-INF] * 4
    assert raw_logprobs(impossible, language.constraint, [()])[0, 3] == 0.0


def test_min_tokens_holds_the_end_back_while_something_else_may_follow() -> None:
    language = state([3], [3, 4], min_tokens=5)
    law = log_probs(torch.zeros(3, VOCAB), language, [(), (3,), (3, 4)])
    assert support(law) == [[3], [4], [EOS]]  # it gives way only where the grammar ends
    free = state([3], [3, 4], min_tokens=1)
    assert support(log_probs(torch.zeros(1, VOCAB), free, [(3,)])) == [[EOS, 4]]


def test_min_tokens_holds_stop_tokens_back_too() -> None:
    language = state([3, 4], [4], min_tokens=2, stop_token_ids=(4,))
    law = log_probs(torch.zeros(2, VOCAB), language, [(), (3,)])
    assert support(law) == [[3], [4]]


def test_reported_logprobs_are_over_what_is_allowed() -> None:
    logits = torch.randn(1, VOCAB)
    table = raw_logprobs(logits, Language([3], [5]), [()])
    assert support(table) == [[3, 5]]
    wanted = torch.log_softmax(logits[:, [3, 5]], dim=-1)
    torch.testing.assert_close(table[:, [3, 5]], wanted)


def test_a_model_without_any_allowed_token_is_an_error_of_that_row() -> None:
    nothing = rows([0, 0, 0, -INF, -INF])
    with pytest.raises(FloatingPointError, match="row 0"):
        log_probs(nothing, state([3], [4]))
    with pytest.raises(FloatingPointError, match="row 0"):
        raw_logprobs(nothing, Language([3], [4]), [()])


def test_tokens_beyond_the_grammars_vocabulary_are_forbidden() -> None:
    wide = torch.zeros(1, VOCAB + 3)
    mask_rows(wide, Language([3], [4]), [()])
    assert support(wide) == [[3, 4]]
    narrow = torch.zeros(1, 4)
    mask_rows(narrow, Language([3], [4]), [()])
    assert support(narrow) == [[3]]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_coupled_follows_allowed_tokens_through_the_tree(temperature: float) -> None:
    """What is drawn is what plain decoding draws, one masked row after the other."""
    language = ([3, 5, 6], [3, 5, 7], [4, 6])
    logits = torch.randn(1 + 5, VOCAB, generator=torch.Generator().manual_seed(3)) * 3
    tree = Tree((3, 4, 5, 7, 0), (-1, -1, 0, 2, -1))
    noise = Noise(11)
    result = verify_logits(tree, logits, state(*language, temperature=temperature), noise, 5)
    plain = state(*language, temperature=temperature)
    tokens = [*(tree.tokens[i] for i in result.path), result.next_token]
    node = -1
    for i, token in enumerate(tokens):
        row = logits[node + 1 : node + 2]
        alone = verify_logits(Tree(), row, plain, noise, 5 + i)
        assert alone.next_token == token
        plain.commit([token])
        node = result.path[i] if i < len(result.path) else node
    assert len(result.path) >= 1


def test_a_draft_proposes_only_what_may_follow() -> None:
    language = state([3, 6], [4, 6], [5, 6], temperature=0.8)
    logits = torch.randn(2, VOCAB)
    laws = ranking_log_probs(logits, language, [(), (3,)])
    ranked = rank_children(laws, Noise(1), [4, 5], 1.0, 4)
    usable = torch.isfinite(ranked.scores)
    assert sorted(ranked.token_ids[0][usable[0]].tolist()) == [3, 4, 5]
    assert ranked.token_ids[1][usable[1]].tolist() == [6]
    draw = draw_without_replacement(log_probs(logits[:1], language)[0], 4, Noise(1), 4, 0)
    assert sorted(draw.token_ids) == [3, 4, 5]


def test_which_rows_a_draft_can_use() -> None:
    language = Language([3], [4], [6, 7])
    some, none = rows([0, 0, 0, -INF, 1.0]), rows([0, 0, 0, -INF, -INF, 0, -INF])
    assert has_candidates(some[0], language, ())
    assert not has_candidates(none[0], language, ())
    assert has_candidates(none[0], language, (6,))  # certain, whatever the draft can say
    assert not has_candidates(some[0], language, (5,))  # no path
    assert has_candidates(torch.full((VOCAB,), torch.nan), language, ())  # noticed by the law


def test_the_admitted_part_of_a_run() -> None:
    language = Language([3, 4], [3, 4, 5])
    assert [num_admitted(language, run) for run in ([], [4], [3, 4, 5, EOS, 1], [3, 5])] == [
        *(0, 0, 4, 1),
    ]


class Broken(Language):
    def allowed(self, path: Sequence[int]) -> AllowedTokens | None:
        raise ConstraintError("too complex")


def test_a_broken_grammar_is_no_silent_freedom() -> None:
    broken = SamplingState(SamplingParams(), constraint=Broken([3]))
    with pytest.raises(ConstraintError):
        log_probs(torch.zeros(1, VOCAB), broken)
    with pytest.raises(ConstraintError):
        verify_logits(Tree(), torch.zeros(1, VOCAB), broken, Noise(1), 3)
