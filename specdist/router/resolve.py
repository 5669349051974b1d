"""From what a client asked to what a session needs: every default filled in.

Used by ``specdist.router.pipeline`` before anything is opened.
"""

from __future__ import annotations

import dataclasses
import secrets

from specdist.config import LOSSLESS_RULES, RULES, AppConfig
from specdist.errors import InvalidRequestError
from specdist.protocol.request import GenerationRequest, SessionRequest

SEED_BITS = 32


def resolve(request: GenerationRequest, config: AppConfig, max_model_len: int) -> SessionRequest:
    """The session of a request; raises InvalidRequestError naming what does not fit."""
    num_prompt_tokens = len(request.prompt_token_ids)
    if num_prompt_tokens == 0:
        raise InvalidRequestError("the prompt must have at least 1 token, got 0", param="prompt")
    room = max_model_len - num_prompt_tokens
    if room < 1:
        raise InvalidRequestError(
            f"the prompt has {num_prompt_tokens} tokens and the context holds {max_model_len}, "
            "prompt and answer together",
            param="prompt",
            code="context_length_exceeded",
        )
    speculation = request.speculation
    sampling = request.sampling
    seed = sampling.seed if sampling.seed is not None else secrets.randbits(SEED_BITS)
    return SessionRequest(
        session_id=f"{request.request_id}-{secrets.token_hex(4)}",
        committed=request.prompt_token_ids,
        num_prompt_tokens=num_prompt_tokens,
        sampling=dataclasses.replace(
            sampling, seed=seed, max_tokens=_max_tokens(request, config, room)
        ),
        rule=_rule(speculation.rule, config),
        speculate=speculation.enabled and config.speculation.mode != "off",
        max_speculative_tokens=speculation.max_tokens,
        num_logprobs=request.num_logprobs,
    )


def _max_tokens(request: GenerationRequest, config: AppConfig, room: int) -> int:
    """What the client said; else the default, but never beyond the context."""
    asked = request.sampling.max_tokens
    if asked is None:
        return min(room, config.router.default_max_tokens or room)
    if not 1 <= asked <= room:
        raise InvalidRequestError(
            f"max_tokens must be between 1 and {room} (what the context holds beside the "
            f"prompt's {len(request.prompt_token_ids)} tokens), got {asked}",
            param="max_tokens",
            code="context_length_exceeded" if asked > room else None,
        )
    return asked


def _rule(name: str | None, config: AppConfig) -> str:
    if name is None:
        return config.rules.default
    allowed = RULES if config.rules.allow_lossy else LOSSLESS_RULES
    if name not in allowed:
        raise InvalidRequestError(
            f"speculation.rule must be one of {', '.join(allowed)}, got {name!r}",
            param="speculation.rule",
        )
    return name
