"""What the page's tests talk to: scripted answers, and a real pair of models in one process.

Both are backends of the real HTTP application. The last message of the conversation
chooses the script, so that a test reads as what a visitor types.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from specdist.api.model_card import ModelCard
from specdist.config import LOSSLESS_RULES
from specdist.distill.offline_pair import Answer, OfflinePair
from specdist.errors import OverloadedError
from specdist.protocol.answer import TokenDelta
from specdist.protocol.health import HealthReport
from specdist.protocol.request import GenerationRequest, SessionRequest
from specdist.speculation.stats import SpeculationStats
from tests.unit.api.fakes import EOS, entry

T = TypeVar("T")

SAME = "the quick brown fox jumps over the lazy dog. Ω one two three, ha ha ha"
OTHER = "the quick brown fox jumps under the lazy dog. Ω one two three, ha ha ha"
BUSY = "3 requests are waiting, which is all that is allowed"
# (candidates, accepted) of each step, again and again: prefill, all kinds, plain again.
STEPS = ((0, 0), (4, 3), (4, 1), (3, 3), (6, 0), (0, 0))
FAILS_AFTER = 3


class ScriptedPair:
    """Answers with SAME; "differ", "break", "busy" and "endless" in the prompt do as they say."""

    def __init__(
        self, card: ModelCard, pause_s: float = 0.004, plain_pause_s: float = 0.012
    ) -> None:
        self._card = card
        self._pause_s, self._plain_pause_s = pause_s, plain_pause_s
        self.requests: list[GenerationRequest] = []
        self.num_open = 0
        self.report = HealthReport(True, "", 1, 1)

    async def generate(self, request: GenerationRequest) -> AsyncIterator[TokenDelta]:
        """Play the script."""
        self.requests.append(request)
        self.num_open += 1
        try:
            async for delta in self._play(request, self.prompt(request).split("user\n")[-1]):
                yield delta
        finally:
            self.num_open -= 1

    def prompt(self, request: GenerationRequest) -> str:
        """The whole conversation as the model reads it."""
        return self._card.tokenizer.decode(list(request.prompt_token_ids))

    async def _play(self, request: GenerationRequest, asked: str) -> AsyncIterator[TokenDelta]:
        speculates = request.speculation.enabled
        if "busy" in asked:
            raise OverloadedError(BUSY)
        text = OTHER if "differ" in asked and not speculates else SAME
        ids = [*self._card.tokenizer.encode(text), EOS]
        if "endless" in asked:
            ids = ids[:-1] * 1000
        for number, delta in enumerate(scripted(request, ids[: request.sampling.max_tokens])):
            if "break" in asked and number == FAILS_AFTER:
                raise RuntimeError("a mistake of the backend")
            await asyncio.sleep(self._pause_s if speculates else self._plain_pause_s)
            yield delta

    async def health(self) -> HealthReport:
        """What the test has set."""
        return self.report

    async def metrics_text(self) -> str:
        """No metrics."""
        return ""


def scripted(request: GenerationRequest, ids: Sequence[int]) -> Iterator[TokenDelta]:
    """The tokens in steps of STEPS; one by one without speculation."""
    stats, at, number = SpeculationStats(), 0, 0
    while at < len(ids):
        drafted, accepted = STEPS[number % len(STEPS)] if request.speculation.enabled else (0, 0)
        tokens = tuple(ids[at : at + accepted + 1])
        at, number = at + len(tokens), number + 1
        kept = min(accepted, len(tokens))
        stats.observe(drafted, kept, len(tokens))
        num_logprobs = request.num_logprobs
        yield TokenDelta(
            tokens,
            kept,
            drafted,
            () if num_logprobs is None else tuple(entry(t, num_logprobs) for t in tokens),
            ("stop" if tokens[-1] == EOS else "length") if at >= len(ids) else None,
            seed=request.sampling.seed or 0,
            summary=stats.to_summary(),
        )


class RealPair:
    """A target and a draft, really computing, stepped together in a thread of their own."""

    def __init__(self, pair: OfflinePair, draft_steps: int | None = None) -> None:
        self._pair, self._draft_steps = pair, draft_steps
        self._thread = ThreadPoolExecutor(1)

    async def generate(self, request: GenerationRequest) -> AsyncIterator[TokenDelta]:
        """Step the pair until this answer is complete."""
        session = resolved(request)
        answer = await self._do(lambda: self._pair.open(session))
        stats, num_told = SpeculationStats(), 0
        try:
            while answer.finish_reason is None or num_told < len(answer.verdicts):
                if num_told == len(answer.verdicts):
                    await self._do(lambda: self._pair.step(self._draft_steps))
                    continue
                yield delta_of(answer, num_told, session, stats)
                num_told += 1
        finally:
            self._pair.target.close([session.session_id])
            self._pair.draft.close([session.session_id])

    async def _do(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)

    async def health(self) -> HealthReport:
        """Always there."""
        return HealthReport(True, "", 1, 1)

    async def metrics_text(self) -> str:
        """No metrics."""
        return ""


def resolved(request: GenerationRequest) -> SessionRequest:
    """What the router would make of it."""
    return SessionRequest(
        session_id=request.request_id,
        committed=request.prompt_token_ids,
        num_prompt_tokens=len(request.prompt_token_ids),
        sampling=request.sampling,
        rule=request.speculation.rule or "coupled",
        speculate=request.speculation.enabled,
        max_speculative_tokens=request.speculation.max_tokens,
        num_logprobs=request.num_logprobs,
    )


def delta_of(
    answer: Answer, number: int, session: SessionRequest, stats: SpeculationStats
) -> TokenDelta:
    """One verdict as the router hands it on."""
    verdict = answer.verdicts[number]
    stats.observe(verdict.num_draft_tokens, verdict.num_accepted, len(verdict.tokens))
    return TokenDelta(
        verdict.tokens,
        verdict.num_accepted,
        verdict.num_draft_tokens,
        verdict.logprobs,
        verdict.finish_reason,
        seed=session.sampling.seed or 0,
        num_cached_tokens=verdict.num_cached_tokens,
        rule=session.rule,
        lossless=session.rule in LOSSLESS_RULES,
        summary=stats.to_summary(),
    )
