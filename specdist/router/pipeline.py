"""The life of each request between its client and the replicas.

Implements the ``Backend`` of ``specdist.api`` as far as requests go: resolve, admit, open
a target session and then, without the target ever waiting for it, a draft session; stream
what the target commits; close both sessions when the request is over, however it ends.
A draft that is missing, slow or lost means plain decoding, counted, and another try every
``draft_retry_s``. Knows token ids only; no text, no Ray.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator

from specdist.config import AppConfig
from specdist.errors import (
    DeadlineError,
    InternalError,
    InvalidRequestError,
    SpecdistError,
    UnavailableError,
)
from specdist.metrics.latency import RequestLatency, length_bucket
from specdist.metrics.recorder import Recorder
from specdist.protocol.answer import TokenDelta
from specdist.protocol.health import HealthReport
from specdist.protocol.request import GenerationRequest
from specdist.protocol.verdict import StepReport
from specdist.router.admission import Admission
from specdist.router.clients import DraftClient, OpenedSession, TargetClient
from specdist.router.feeds import Feeds
from specdist.router.flow import Flow
from specdist.router.held import Held, spawn, withdraw
from specdist.router.resolve import resolve
from specdist.router.session import Phase

logger = logging.getLogger(__name__)

DRAFT_OPEN_TIMEOUT_S = 10.0  # then the open is withdrawn and tried anew
LAST_VERDICT_S = 5.0  # how far the last verdict may trail the end of the open stream
HEALTH_TIMEOUT_S = 2.0


class Pipeline:
    """All requests of one router replica."""

    def __init__(
        self,
        config: AppConfig,
        targets: TargetClient,
        drafts: DraftClient,
        recorder: Recorder,
        max_model_len: int,
    ) -> None:
        self._config = config
        self._targets = targets
        self._drafts = drafts
        self._recorder = recorder
        self._max_model_len = max_model_len
        self._admission = Admission(config.router.max_waiting_requests)
        self._feeds = Feeds(targets, drafts)
        self._num_opened = 0

    async def generate(self, request: GenerationRequest) -> AsyncIterator[TokenDelta]:
        """Yield what each step committed; the last delta has a finish_reason.

        Closing the iterator, or cancelling the task that reads it, stops the work.
        """
        session_request = resolve(request, self._config, self._max_model_len)
        now = asyncio.get_running_loop().time
        arrived_s = now()
        self._admission.enter()
        flow = Flow(session_request, self._release)
        latency = RequestLatency(self._recorder, session_request.num_prompt_tokens, arrived_s)
        outcome = "cancelled"
        try:
            self._set_deadline(flow, request.timeout_s)
            await self._open_target(flow)
            latency.opened(now())
            self._recorder.count("specdist_prompt_tokens", session_request.num_prompt_tokens)
            while True:
                delta = await flow.next_delta()
                latency.chunk(len(delta.token_ids), now())
                if delta.finish_reason is not None:
                    outcome = delta.finish_reason
                    latency.finished(now())
                    self._recorder.count("specdist_prompt_tokens_cached", delta.num_cached_tokens)
                yield delta
                if delta.finish_reason is not None:
                    return
        except SpecdistError as error:
            outcome = error.grpc_status.lower()
            raise
        except GeneratorExit:  # the reader has enough: a stop string, or it left between chunks
            outcome = "closed" if outcome == "cancelled" else outcome
            latency.finished(now())
            raise
        finally:
            flow.cancel()
            self._release(flow)
            self._admission.leave(now() - arrived_s)
            self._count_end(flow, outcome)

    def _count_end(self, flow: Flow, outcome: str) -> None:
        self._recorder.count("specdist_requests", outcome=outcome)
        self._recorder.count("specdist_late_verdicts", flow.session.num_late_verdicts)
        self._recorder.count("specdist_target_sessions_lost", flow.session.num_targets_lost)
        bucket = length_bucket(flow.session.num_prompt_tokens)
        counts = flow.session.counts
        for name, number in (
            ("drafts", counts.num_spec_steps),
            ("draft_tokens", counts.num_draft_tokens),
            ("accepted_tokens", counts.num_accepted_tokens),
            ("generation_tokens", counts.num_generated_tokens),
        ):
            self._recorder.count(f"specdist_request_{name}", number, length_bucket=bucket)

    async def health(self) -> HealthReport:
        """Ready when a target replica answers; drafts are optional."""
        targets, drafts = await asyncio.gather(_count(self._targets), _count(self._drafts))
        if targets == 0:
            message = "no target replica answers"
        elif drafts == 0:
            message = "no draft replica answers: plain decoding"
        else:
            message = ""
        return HealthReport(targets > 0, message, num_targets=targets, num_drafts=drafts)

    def stats(self) -> dict[str, float]:
        """Requests in flight, as gauges."""
        return {
            "num_requests_running": self._num_opened,
            "num_requests_waiting": self._admission.num_in_flight - self._num_opened,
        }

    def _set_deadline(self, flow: Flow, timeout_s: float | None) -> None:
        limit_s = self._config.router.max_answer_s
        allowed_s = limit_s if timeout_s is None else min(timeout_s, limit_s)
        error = DeadlineError(f"the request was not answered within {allowed_s:g} s")
        if allowed_s <= 0:
            raise error
        flow.timer = asyncio.get_running_loop().call_later(allowed_s, flow.fail, error)

    # -- the target ------------------------------------------------------------------

    async def _open_target(self, flow: Flow) -> None:
        """Find a replica that takes the session as it stands; then look for a draft."""
        timeout_s = self._config.router.open_timeout_s
        opening = spawn(_open(self._targets, flow))
        failed = spawn(flow.next_delta())  # only an error can come this early
        try:
            await asyncio.wait(
                {opening, failed}, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED
            )
            if failed.done():
                failed.result()
            if not opening.done():
                raise UnavailableError(f"no target took the request within {timeout_s:g} s")
            opened = opening.result()
        except BaseException:
            withdraw(self._targets, opening, flow.session_id)
            raise
        finally:
            failed.cancel()
        flow.target = Held(self._targets, opened, flow.session_id)
        flow.session.opened(opened.replica_id)
        self._num_opened += 1
        self._feeds.add_target(flow, opened.replica_id)
        spawn(self._watch_target(flow, flow.target))
        if flow.speculate:
            flow.draft_task = spawn(self._keep_draft(flow))

    async def _watch_target(self, flow: Flow, target: Held) -> None:
        """Notice when the target is lost, or ends the session without a last verdict."""
        await asyncio.wait({target.ended})
        if flow.session.is_over or target.ended.cancelled():
            return
        error = target.error()
        if isinstance(error, SpecdistError):
            flow.target_lost(target.replica_id, error)
            return
        await asyncio.sleep(LAST_VERDICT_S)
        flow.fail(InternalError(f"request {flow.session_id}: the last verdict is missing"))

    # -- the draft -------------------------------------------------------------------

    async def _keep_draft(self, flow: Flow) -> None:
        """Have a draft work for this request, again and again, until it is over."""
        while True:
            try:
                event = await self._draft_once(flow)
            except InvalidRequestError as error:
                logger.info("request %s: no draft: %s", flow.session_id, error.message)
                self._recorder.count("specdist_draft_sessions", event="refused")
                return
            if flow.session.is_over:  # the draft ended with the answer; its client still reads
                return
            self._recorder.count("specdist_draft_sessions", event=event)
            await asyncio.sleep(self._config.router.draft_retry_s)

    async def _draft_once(self, flow: Flow) -> str:
        """Open a draft session from the committed tokens and wait until it is lost."""
        base_len = flow.session.committed_len
        opening = spawn(_open(self._drafts, flow))
        try:
            async with asyncio.timeout(DRAFT_OPEN_TIMEOUT_S):
                await asyncio.wait({opening})
        except TimeoutError:
            withdraw(self._drafts, opening, flow.session_id)
            return "failed"
        except asyncio.CancelledError:
            withdraw(self._drafts, opening, flow.session_id)
            raise
        try:
            opened = opening.result()
        except InvalidRequestError:
            raise
        except SpecdistError as error:
            logger.debug("request %s: no draft: %r", flow.session_id, error)
            return "failed"
        await self._use_draft(flow, Held(self._drafts, opened, flow.session_id), base_len)
        return "lost"

    async def _use_draft(self, flow: Flow, draft: Held, base_len: int) -> None:
        """Connect a draft with the request's target until one of the three ends."""
        target_id = flow.session.target_id or ""
        flow.draft_gone.clear()
        gone = spawn(flow.draft_gone.wait())
        try:
            missed = flow.session.draft_attached(draft.replica_id, base_len)
            self._feeds.add_draft(flow, draft.replica_id, target_id)
            if missed is not None:
                report = StepReport(target_id, (missed,))
                self._feeds.observe(draft.replica_id, target_id, report)
            self._recorder.count("specdist_draft_sessions", event="attached")
            await asyncio.wait({draft.ended, gone}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            gone.cancel()
            flow.session.draft_lost(draft.replica_id)
            self._feeds.remove_draft(flow, draft.replica_id, target_id)
            draft.release(ask=flow.session.phase is not Phase.FINISHED)

    # -- the end ---------------------------------------------------------------------

    def _release(self, flow: Flow) -> None:
        """Stop all work for a request; safe to call again."""
        if flow.timer is not None:
            flow.timer.cancel()
        if flow.draft_task is not None:
            flow.draft_task.cancel()
        target, flow.target = flow.target, None
        if target is not None:
            self._num_opened -= 1
            self._feeds.remove_target(flow, target.replica_id)
            target.release(ask=flow.session.phase is not Phase.FINISHED)


async def _open(client: TargetClient | DraftClient, flow: Flow) -> OpenedSession:
    return await client.open(flow.session.request_to_open())


async def _count(client: TargetClient | DraftClient) -> int:
    """Replicas that answer now."""
    try:
        async with asyncio.timeout(HEALTH_TIMEOUT_S):
            return await client.count_alive()
    except (SpecdistError, TimeoutError):
        return 0
