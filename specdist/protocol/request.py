"""What a client asks for, after the API has checked it and turned text into token ids.

Made by ``specdist.api``, read by the router and both workers. Knows no text.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class StructuredOutput:
    """What the whole answer must match: pure data, and the key under which it is compiled."""

    kind: str  # "json_schema", "regex" or "choice"
    text: str  # the schema as JSON, the pattern, or the list of choices as JSON


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How the target's law is shaped; the draft uses the same values."""

    max_tokens: int | None = None  # None: whatever the context still holds
    temperature: float = 1.0  # 0 is greedy
    top_p: float = 1.0
    top_k: int = 0  # 0: off
    min_p: float = 0.0
    seed: int | None = None  # None: the router draws one and tells it in the answer
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    min_tokens: int = 0
    ignore_eos: bool = False
    stop_token_ids: tuple[int, ...] = ()
    logit_bias: tuple[tuple[int, float], ...] = ()
    structured_output: StructuredOutput | None = None


@dataclass(frozen=True, slots=True)
class SpeculationParams:
    """What a client may say about speculation for one request."""

    enabled: bool = True
    max_tokens: int | None = None  # caps num_speculative_tokens for this request
    rule: str | None = None  # None: the deployment's default rule


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """One answer to generate: the API's input to the router."""

    request_id: str
    prompt_token_ids: tuple[int, ...]
    sampling: SamplingParams = field(default_factory=SamplingParams)
    speculation: SpeculationParams = field(default_factory=SpeculationParams)
    num_logprobs: int | None = None  # None: no logprobs; 0: the chosen token's only
    timeout_s: float | None = None  # what is left of the client's deadline


@dataclass(frozen=True, slots=True)
class SessionRequest:
    """One session on a target or draft replica: every default is resolved.

    ``committed`` holds the prompt and, when a session is continued elsewhere,
    the tokens decided so far; ``num_prompt_tokens`` tells where the answer began.
    """

    session_id: str
    committed: tuple[int, ...]
    num_prompt_tokens: int
    sampling: SamplingParams  # max_tokens and seed are set
    rule: str
    speculate: bool = True
    max_speculative_tokens: int | None = None
    num_logprobs: int | None = None
    target_id: str = ""  # for the draft: the replica its trees go to
