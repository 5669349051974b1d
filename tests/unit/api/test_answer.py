"""Token deltas to text deltas: ends, cuts and counts, whatever the steps are."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from specdist.api.answer import TextDelta, text_deltas
from specdist.api.model_card import ModelCard
from specdist.api.validation import PreparedRequest
from specdist.errors import DeadlineError, InternalError, OverloadedError
from specdist.protocol.answer import TokenDelta
from specdist.protocol.request import GenerationRequest, SamplingParams
from tests.unit.api.fakes import EOS, ScriptedBackend

STEPS = [(1,), (2,), (3, 1), (9,), (17,)]
COUNTING = "1, 2, 3, 4, 5, 6"


def prepared(
    stop: tuple[str, ...] = (), skip: bool = True, timeout_s: float | None = None, **sampling
) -> PreparedRequest:
    sampling.setdefault("max_tokens", 40)
    request = GenerationRequest(
        "r1", (5, 6, 7), SamplingParams(**sampling), num_logprobs=2, timeout_s=timeout_s
    )
    return PreparedRequest("r1", request, stop, skip)


async def collect(
    backend: ScriptedBackend, request: PreparedRequest, card: ModelCard
) -> list[TextDelta]:
    return [d async for d in text_deltas(backend, request, card)]


def text_of(deltas: list[TextDelta]) -> str:
    return "".join(d.text for d in deltas)


def ids_of(deltas: list[TextDelta]) -> list[int]:
    return [i for d in deltas for i in d.token_ids]


def check_consistent(deltas: list[TextDelta]) -> None:
    """B016, B012, B110: as many logprobs as tokens; no part above the whole."""
    last = deltas[-1]
    usage, summary = last.totals.usage, last.totals.summary
    num_tokens = len(ids_of(deltas))
    assert usage.completion_tokens == num_tokens == summary.num_generated_tokens
    assert [e.token_id for d in deltas for e in d.logprobs] == ids_of(deltas)
    assert usage.accepted_prediction_tokens == summary.num_accepted_tokens
    assert usage.accepted_prediction_tokens + usage.rejected_prediction_tokens <= num_tokens
    assert sum(d.num_accepted for d in deltas) == usage.accepted_prediction_tokens
    assert sum(i * n for i, n in enumerate(summary.acceptance_histogram)) == (
        summary.num_accepted_tokens
    )
    assert [d.finish_reason for d in deltas[:-1]] == [None] * (len(deltas) - 1)


@pytest.mark.parametrize("steps", STEPS)
async def test_eos_is_counted_and_not_shown(card: ModelCard, steps: tuple[int, ...]) -> None:
    """P-COUNT: EOS is a token of the answer without text; B011: nothing after it."""
    ids = [*card.tokenizer.encode(COUNTING), EOS]
    backend = ScriptedBackend(ids, steps)
    deltas = await collect(backend, prepared(), card)
    assert (text_of(deltas), deltas[-1].finish_reason) == (COUNTING, "stop")
    assert ids_of(deltas) == ids
    check_consistent(deltas)


@pytest.mark.parametrize("steps", STEPS)
async def test_nothing_after_eos_even_from_a_careless_backend(
    card: ModelCard, steps: tuple[int, ...]
) -> None:
    ids = [*card.tokenizer.encode(COUNTING), EOS]
    backend = ScriptedBackend([*ids, 65, 66, 67], steps, obedient=False)
    deltas = await collect(backend, prepared(), card)
    assert (text_of(deltas), ids_of(deltas)) == (COUNTING, ids)
    assert backend.num_closed == 1
    check_consistent(deltas)


@pytest.mark.parametrize("steps", STEPS)
@pytest.mark.parametrize("obedient", [True, False])
async def test_max_tokens_is_exact(card: ModelCard, steps: tuple[int, ...], obedient: bool) -> None:
    """B016: exactly max_tokens tokens, logprobs and usage."""
    backend = ScriptedBackend(range(60, 90), steps, obedient=obedient)
    deltas = await collect(backend, prepared(max_tokens=7), card)
    assert ids_of(deltas) == list(range(60, 67))
    assert deltas[-1].finish_reason == "length"
    check_consistent(deltas)


@pytest.mark.parametrize("steps", STEPS)
async def test_stop_token_ids_end_the_answer(card: ModelCard, steps: tuple[int, ...]) -> None:
    ids = card.tokenizer.encode("a b")
    backend = ScriptedBackend([*ids, 50, 51], steps, obedient=False)
    deltas = await collect(backend, prepared(stop_token_ids=(50,)), card)
    assert (text_of(deltas), ids_of(deltas)) == ("a b", [*ids, 50])
    assert deltas[-1].finish_reason == "stop"


async def test_ignore_eos_goes_on(card: ModelCard) -> None:
    ids = [*card.tokenizer.encode("ab"), EOS, *card.tokenizer.encode("cd")]
    request = prepared(ignore_eos=True, max_tokens=len(ids))
    assert text_of(await collect(ScriptedBackend(ids, (9,)), request, card)) == "abcd"
    shown = prepared(ignore_eos=True, max_tokens=len(ids), skip=False)
    assert text_of(await collect(ScriptedBackend(ids, (2,)), shown, card)) == "ab<|im_end|>cd"


@pytest.mark.parametrize("steps", STEPS)
async def test_stop_string_cuts_text_ids_and_logprobs_alike(
    card: ModelCard, steps: tuple[int, ...]
) -> None:
    """B017, B018: the token that completes the stop is the last one, in any step."""
    encode = card.tokenizer.encode
    backend = ScriptedBackend([*encode(" hah ha ha ha ha ha")], steps)
    deltas = await collect(backend, prepared((" ha ha ha",)), card)
    assert (text_of(deltas), deltas[-1].finish_reason) == (" hah", "stop")
    assert ids_of(deltas) == encode(" hah ha ha ha")
    assert backend.num_closed == 1
    check_consistent(deltas)
    early = await collect(ScriptedBackend(encode(COUNTING), steps), prepared(("2",)), card)
    assert text_of(early) == "1, "
    check_consistent(early)


@pytest.mark.parametrize("steps", STEPS)
async def test_several_stops_and_blanks(card: ModelCard, steps: tuple[int, ...]) -> None:
    """B020: the second of several stop strings, with its leading blank."""
    backend = ScriptedBackend(card.tokenizer.encode(" brown fox jumps"), steps)
    stop = ("a very long stop string that never occurs", " fox")
    assert text_of(await collect(backend, prepared(stop), card)) == " brown"


@pytest.mark.parametrize("steps", STEPS)
async def test_a_failed_match_comes_out_in_order(card: ModelCard, steps: tuple[int, ...]) -> None:
    """B021, B031: what waited for a stop is shown before what follows."""
    ids = card.tokenizer.encode(COUNTING)
    backend = ScriptedBackend([*ids, EOS], steps)
    deltas = await collect(backend, prepared((", 3, 5", "6, 7")), card)
    assert (text_of(deltas), deltas[-1].finish_reason) == (COUNTING, "stop")


async def test_a_stop_does_not_end_the_answer_before_min_tokens(card: ModelCard) -> None:
    ids = card.tokenizer.encode("1, 2, 1, 2")
    half = len(ids) // 2
    request = prepared(("2",), min_tokens=half + 2)
    deltas = await collect(ScriptedBackend(ids, (2,)), request, card)
    assert text_of(deltas) == "1, 2, 1, "


@pytest.mark.parametrize("steps", STEPS)
async def test_offsets_count_characters(card: ModelCard, steps: tuple[int, ...]) -> None:
    ids = card.tokenizer.encode("aΩ b")
    deltas = await collect(ScriptedBackend([*ids, EOS], steps), prepared(), card)
    assert [o for d in deltas for o in d.offsets] == [0, 1, 1, 2, 3, 4][: len(ids) + 1]


async def test_an_incomplete_character_at_the_end_is_shown(card: ModelCard) -> None:
    ids = card.tokenizer.encode("🦙")[:2]
    deltas = await collect(ScriptedBackend(ids), prepared(max_tokens=2), card)
    assert text_of(deltas) == card.tokenizer.decode(ids) == "\ufffd"


async def test_totals_carry_seed_cache_and_rule(card: ModelCard) -> None:
    ids = [60, 61, 62, EOS]
    totals = (await collect(ScriptedBackend(ids, (2,)), prepared(), card))[-1].totals
    assert (totals.seed, totals.rule, totals.lossless) == (77, "coupled", True)
    assert totals.usage.cached_tokens == 3
    assert totals.summary.num_stale_trees == 1
    given = (await collect(ScriptedBackend(ids), prepared(seed=-5), card))[-1].totals
    assert given.seed == -5


async def test_a_backend_that_breaks_off_is_an_error(card: ModelCard) -> None:
    """B137: never a silent end."""
    with pytest.raises(InternalError, match="broke off"):
        await collect(ScriptedBackend([60, 61]), prepared(), card)
    backend = ScriptedBackend([60, 61, 62], fail_after=1, failure=OverloadedError("full"))
    with pytest.raises(OverloadedError):
        await collect(backend, prepared(), card)
    assert backend.num_open == 0


class OneDelta(ScriptedBackend):
    """Yields the delta it is given."""

    def _deltas(self, request: GenerationRequest):
        return iter([self.delta])


@pytest.mark.parametrize(
    ("delta", "message"),
    [
        (TokenDelta((60, 61), finish_reason="stop"), "2 tokens came with 0 logprobs"),
        (TokenDelta((), finish_reason="error"), "ended with 'error'"),
    ],
)
async def test_a_delta_that_makes_no_sense_is_an_error(
    card: ModelCard, delta: TokenDelta, message: str
) -> None:
    backend = OneDelta()
    backend.delta = delta
    with pytest.raises(InternalError, match=message):
        await collect(backend, prepared(), card)


async def test_an_end_without_tokens(card: ModelCard) -> None:
    backend = OneDelta()
    backend.delta = TokenDelta((), finish_reason="length")
    (only,) = await collect(backend, prepared(), card)
    assert (only.text, only.finish_reason, only.totals.usage.total_tokens) == ("", "length", 3)


async def test_the_deadline_ends_the_request(card: ModelCard) -> None:
    backend = ScriptedBackend(range(60, 90), pause_s=0.05)
    with pytest.raises(DeadlineError):
        await collect(backend, prepared(timeout_s=0.12), card)
    assert backend.num_open == 0


async def test_the_backend_is_free_before_the_end_is_told(card: ModelCard) -> None:
    backend = ScriptedBackend(card.tokenizer.encode(COUNTING), (2,))
    async for delta in text_deltas(backend, prepared(("3",)), card):
        assert backend.num_open == (0 if delta.finish_reason else 1)


async def test_closing_the_stream_closes_the_backend(card: ModelCard) -> None:
    backend = ScriptedBackend(range(60, 90), pause_s=0.01)
    deltas = text_deltas(backend, prepared(), card)
    await anext(deltas)
    assert backend.num_open == 1
    await deltas.aclose()
    assert backend.num_open == 0
    task = asyncio.create_task(collect(backend, prepared(), card))
    await asyncio.sleep(0.03)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert backend.num_open == 0


@pytest.mark.parametrize("steps", STEPS)
async def test_reference_answers_of_the_demo_pair(
    demo_target_folder: Path, steps: tuple[int, ...]
) -> None:
    """P-COUNT with its EOS, P-OHM and P-LLAMA cut inside and behind characters."""
    card = ModelCard.load(demo_target_folder, name="demo", max_model_len=8192)
    count = [33, 28, 216, 34, 28, 216, 35, 28, 216, 36, 28, 216, 37, 28, 216, 38, 28, 216, 39]
    count += [28, 216, 40, 28, 216, 41, 28, 216, 33, 32, 2]
    for ids, text, reason in (
        (count, "1, 2, 3, 4, 5, 6, 7, 8, 9, 10", "stop"),
        ([5664, 119] * 6, " Ω" * 6, "length"),
        ([5664, 119, 5664], " Ω \ufffd", "length"),
        ([15107, 116, 243], " 🦙", "length"),
    ):
        request = prepared(max_tokens=40 if reason == "stop" else len(ids))
        deltas = await collect(ScriptedBackend(ids, steps), request, card)
        assert (text_of(deltas), ids_of(deltas), deltas[-1].finish_reason) == (text, ids, reason)
        check_consistent(deltas)
