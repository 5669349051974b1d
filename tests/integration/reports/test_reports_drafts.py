"""Group H and its kin on tiny models: drafts that lie, break, are late or short of context."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from specdist.engine.loader import prepare
from specdist.errors import InvalidRequestError
from specdist.protocol.candidates import CandidateTree, DraftRow
from tests.integration.reports.real_target import pair_open
from tests.integration.reports.rigs import (
    EOS,
    broken,
    chain,
    check_accounts,
    drain,
    fixed,
    oracle,
    scripted,
)
from tests.integration.reports.test_reports_cache import LONG, off, rate, text
from tests.integration.reports.test_reports_memory import count
from tests.pair import Pair, request
from tests.tiny_models import build_tiny

VOCAB = 97


def test_b012_b013_draft_offers_the_end(tiny: Any) -> None:
    """B013: a draft that always ends is refuted and goes on; B012: nothing after a real end."""
    prompt = text(14)
    (plain,) = off(tiny, [prompt], max_tokens=16, ignore_eos=True)
    assert EOS not in plain
    pair = scripted(tiny, lambda _, committed: [EOS, EOS])
    (answer,) = pair.generate([prompt], max_tokens=16)
    assert answer.tokens == plain and len(answer.verdicts) == 16
    assert all(v.num_draft_tokens for v in answer.verdicts[1:-1])
    # The end in the middle of an accepted run: ids, KV and counts stop there.
    stop = plain[9]
    at = plain.index(stop) + 1
    pair = scripted(tiny, oracle(8, [*prompt, *plain]))
    (answer,) = pair.generate([prompt], max_tokens=16, stop_token_ids=(stop,))
    assert (answer.tokens, answer.finish_reason) == (plain[:at], "stop")
    check_accounts(pair, answer, 16)
    (next_turn,) = pair.generate([[*prompt, *answer.tokens, *text(20, 3)]], max_tokens=8)
    assert next_turn.verdicts[0].num_cached_tokens <= len(prompt) + at
    assert next_turn.tokens == off(tiny, [[*prompt, *plain[:at], *text(20, 3)]], max_tokens=8)[0]


@pytest.mark.parametrize("gamma", [1, 8, 16])
@pytest.mark.parametrize("max_tokens", [1, 2, 7])
def test_b016_exactly_max_tokens(tiny: Any, gamma: int, max_tokens: int) -> None:
    """B016: a block that crosses the cap is cut; as many logprobs as tokens."""
    prompt = text(14)
    (plain,) = off(tiny, [prompt], max_tokens=20, ignore_eos=True)
    pair = scripted(tiny, oracle(gamma, [*prompt, *plain]))
    (answer,) = pair.generate([prompt], max_tokens=max_tokens, ignore_eos=True, num_logprobs=0)
    assert (answer.tokens, answer.finish_reason) == (plain[:max_tokens], "length")
    logprobs = [entry for v in answer.verdicts for entry in v.logprobs]
    assert [entry.token_id for entry in logprobs] == answer.tokens
    check_accounts(pair, answer, max_tokens)


@pytest.mark.parametrize("num_prompt", [60, 61, 62, 63])
def test_b070_b071_context_ends_mid_draft(num_prompt: int) -> None:
    """B070, B071: 64 tokens in all, gamma 8; the target's limit and the model's own."""
    model = prepare(build_tiny("llama", vocab_size=VOCAB, layers=2, seed=1, max_len=64))
    prompt = text(num_prompt)
    pair = Pair(
        model,
        model,
        speculation=fixed(8),
        target={"max_model_len": 64},
        draft={"max_model_len": 64},
    )
    (answer,) = pair.generate([prompt], max_tokens=100, ignore_eos=True)
    assert (len(answer.tokens), answer.finish_reason) == (64 - num_prompt, "length")
    plain = Pair(model, None, target={"max_model_len": 64})
    assert answer.tokens == plain.generate([prompt], max_tokens=100, ignore_eos=True)[0].tokens


@pytest.mark.parametrize("settings", [fixed(8), fixed(8, draft_ahead=True)], ids=["sync", "ahead"])
@pytest.mark.parametrize("num_prompt", [40, 62, 63, 64, 90])
def test_b070_short_draft_context(tiny: Any, num_prompt: int, settings: Any) -> None:
    """B070, D-SHORT: beyond 64 tokens the answer goes on without the draft."""
    (plain,) = off(tiny, [text(num_prompt)], max_tokens=40, ignore_eos=True)
    pair = Pair(tiny, tiny, speculation=settings, draft={"max_model_len": 64})
    (answer,) = pair.generate([text(num_prompt)], max_tokens=40, ignore_eos=True)
    assert answer.tokens == plain
    assert bool(answer.num_draft_tokens) == (num_prompt < 62) or num_prompt in (62, 63)
    (other,) = pair.generate([text(20)], max_tokens=12, ignore_eos=True)
    assert rate(other) == 1.0


@pytest.mark.parametrize("num_prompt", [64, 65])
def test_b072_prompt_without_room(tiny: Any, num_prompt: int) -> None:
    """B072: 64 leaves no room in 64; refused before it reaches the engine, nothing is kept."""
    pair = Pair(tiny, tiny, speculation=fixed(8), target={"max_model_len": 64})
    with pytest.raises(InvalidRequestError, match=f"has {num_prompt}") as caught:
        pair.target.open(request("s0", text(num_prompt)), "r0")
    assert caught.value.code == "context_length_exceeded"
    drain(pair)
    assert not pair.target.is_open("s0") and pair.target_engine.usage().num_held == 0


Fault = Callable[[str, list[int]], CandidateTree]


def tree(tokens: Sequence[int], parents: Sequence[int], scores: Sequence[float] = ()) -> Fault:
    def propose(session_id: str, committed: list[int]) -> CandidateTree:
        return CandidateTree(
            session_id, len(committed), tuple(tokens), tuple(parents), tuple(scores)
        )

    return propose


FAULTS = {
    "padding_id": tree([VOCAB, 5], [-1, 0]),
    "negative_id": tree([-1], [-1]),
    "parent_after_child": tree([5, 6], [1, -1]),
    "fewer_parents": tree([5, 6], [-1]),
    "fewer_scores": tree([5, 6], [-1, 0], [0.5]),
    "nan_scores": tree([5, 6], [-1, 0], [float("nan")] * 2),
    "twins": tree([5, 5], [-1, -1], [0.5, 0.4]),
    "nothing": tree([], []),
    "from_the_future": lambda i, c: CandidateTree(i, len(c) + 3, (5,), (-1,)),
    "from_nowhere": lambda i, c: CandidateTree(i, 0, (5,), (-1,)),
    "unknown_session": lambda i, c: CandidateTree("nobody", len(c), (5,), (-1,)),
}


@pytest.mark.parametrize("rule", ["coupled", "rejection"])
@pytest.mark.parametrize("fault", FAULTS)
def test_b001_b104_faulty_offers_cost_nothing(tiny: Any, fault: str, rule: str) -> None:
    """B001, B005, B104: ids beyond the vocabulary and broken trees never reach the model."""
    prompts = [text(14), text(9, 1)]
    plain = off(tiny, prompts, max_tokens=8)
    pair = scripted(tiny, FAULTS[fault])
    answers = pair.generate(prompts, max_tokens=8, rule=rule)
    assert [a.tokens for a in answers] == plain


@pytest.mark.parametrize("rule", ["rejection", "traversal"])
def test_b104_missing_law_is_counted_and_rejected(tiny: Any, rule: str) -> None:
    """B104: candidates without the law they were drawn from: rejected, and in the metrics."""
    pair = scripted(tiny, lambda _, committed: [5, 6])
    (answer,) = pair.generate([text(14)], max_tokens=8, rule=rule, temperature=1.0, seed=4)
    assert len(answer.tokens) == 8 and answer.num_accepted == 0
    drafts = sum(v.num_draft_tokens > 0 for v in answer.verdicts)
    assert drafts == 6
    assert count(pair, "specdist_spec_decode_num_missing_draft_rows") == drafts
    nan = (DraftRow(-1, (5, 6), (float("nan"), 0.5)),)
    pair = scripted(tiny, lambda i, c: chain(i, len(c), [5], draft_rows=nan))
    (answer,) = pair.generate([text(14)], max_tokens=8, rule=rule, temperature=1.0, seed=4)
    assert answer.num_accepted == 0 and count(pair, "specdist_spec_decode_num_missing_draft_rows")


@pytest.mark.parametrize("rule", ["coupled", "rejection"])
@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_b003_nan_draft_goes_on_without_it(tiny: Any, rule: str, temperature: float) -> None:
    """B003, D-NAN: NaN in the draft's logits is counted once, the answer is plain."""
    options = {"max_tokens": 12, "temperature": temperature, "seed": 9}
    pair = Pair(tiny, broken(tiny), speculation=fixed(4))
    (answer,) = pair.generate([text(14)], rule=rule, **options)
    plain = Pair(tiny, None).generate([text(14)], rule=rule, speculate=False, **options)
    assert answer.tokens == plain[0].tokens
    assert count(pair, "specdist_draft_trouble", "draft") == 1


def test_nan_target_fails_its_own_session(tiny: Any) -> None:
    """B099, D-NAN on the other side: an error that names the row; the replica serves on."""
    pair = Pair(broken(tiny), None)
    (answer,) = pair.generate([text(14)], max_tokens=4)
    assert answer.finish_reason == "error" and "nan" in answer.verdicts[-1].error
    pair.target.step()
    assert pair.target_engine.usage().num_held == 0


def test_b114_first_token_does_not_wait_for_the_draft(tiny: Any) -> None:
    """B114: a draft that has not answered yet delays no token."""
    pair = Pair(tiny, tiny, speculation=fixed(4), target={**LONG, "max_prefill_chunk": 128})
    (answer,) = pair_open(pair, [text(400)], max_tokens=4)
    for _ in range(4):
        pair.target.step()  # the draft has not been stepped at all
    assert len(answer.tokens) == 1 and answer.verdicts[0].num_draft_tokens == 0
    for _ in range(3):
        pair.target.step()
    assert answer.finish_reason == "length"
    assert answer.tokens == off(tiny, [text(400)], max_tokens=4)[0]
