"""Speculation on gives the tokens of speculation off, greedy and sampled, seen from outside."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from openai import OpenAI

from specdist.client import Answer, Client
from tests.e2e.rig import MODEL, OFF, REFERENCES, Reference, join, together

PROMPTS = pytest.mark.parametrize("reference", REFERENCES.values(), ids=REFERENCES)
LAWS = pytest.mark.parametrize("temperature", [0.7, 1.0])
SAMPLED_PROMPTS: tuple[Any, ...] = (
    "Once upon a time",
    "The capital of France is",
    [{"role": "user", "content": "Say hi."}],
    "def add(a, b):",
    "1, 2, 3, 4, 5,",
    "ha ha ha ha ha ha",
    "Dear Sir or Madam,",
    "Water boils at",
)


def greedy(client: Client, reference: Reference, **options: Any) -> Answer:
    """The greedy answer through gRPC."""
    limit = reference.max_tokens
    return client.generate(reference.client_prompt, max_tokens=limit, temperature=0, **options)


@PROMPTS
def test_greedy_through_grpc(client: Client, reference: Reference) -> None:
    off = greedy(client, reference, speculation=OFF)
    assert off.token_ids == reference.token_ids
    assert off.speculation.num_draft_tokens == 0
    on = greedy(client, reference)
    assert (on.token_ids, on.text) == (off.token_ids, off.text)
    assert on.finish_reason == off.finish_reason
    stream = partial(client.stream, reference.client_prompt, max_tokens=reference.max_tokens)
    streamed = join(stream(temperature=0))
    assert (streamed.token_ids, streamed.text) == (off.token_ids, off.text)
    assert streamed.last.finish_reason == off.finish_reason


@PROMPTS
def test_greedy_through_openai(openai_client: OpenAI, client: Client, reference: Reference) -> None:
    text = client.detokenize(reference.token_ids)
    for speculation in ({"enabled": True}, OFF):
        ask = _openai_call(openai_client, reference, speculation)
        answer = ask(stream=False)
        assert _openai_text(answer.choices[0]) == text
        assert answer.usage.completion_tokens == len(reference.token_ids)
        parts = [_openai_text(c.choices[0]) for c in ask(stream=True) if c.choices]
        assert "".join(parts) == text


def test_greedy_whatever_the_longest_path(client: Client) -> None:
    """Paths of 1 to 8 tokens at once; candidates are verified in these answers."""
    limits = range(1, 9)
    answers = together(
        [
            partial(greedy, client, reference, speculation={"max_tokens": limit})
            for limit in limits
            for reference in (REFERENCES["P-COUNT"], REFERENCES["P-OHM"])
        ]
    )
    for count, ohm, limit in zip(answers[::2], answers[1::2], limits, strict=True):
        assert count.token_ids == REFERENCES["P-COUNT"].token_ids
        assert ohm.token_ids == REFERENCES["P-OHM"].token_ids
        for answer in (count, ohm):
            assert len(answer.speculation.acceptance_histogram) <= limit + 1
    assert sum(a.speculation.num_draft_tokens for a in answers) > 0
    assert sum(a.speculation.num_accepted_tokens for a in answers) > 0


def test_reference_prompts_are_speculated_on(client: Client) -> None:
    answers = [greedy(client, reference) for reference in REFERENCES.values()]
    assert [a.token_ids for a in answers] == [r.token_ids for r in REFERENCES.values()]
    assert sum(a.speculation.num_draft_tokens for a in answers) > 0


@LAWS
def test_sampled_same_seed_same_tokens(client: Client, temperature: float) -> None:
    """All eight together with and without candidates; three of them also alone."""
    calls = [
        partial(_sampled, client, prompt, temperature, seed)
        for seed, prompt in enumerate(SAMPLED_PROMPTS)
    ]
    plain = together([partial(call, speculation=OFF) for call in calls])
    batched = together(calls)
    alone = [call() for call in calls[:3]]
    plain_alone = [call(speculation=OFF) for call in calls[:3]]
    expected = [a.token_ids for a in plain]
    assert len(set(expected)) == len(calls)
    assert [a.token_ids for a in batched] == expected
    assert [a.token_ids for a in alone] == expected[:3]
    assert [a.token_ids for a in plain_alone] == expected[:3]
    for speculated in (batched, alone):
        assert sum(a.speculation.num_draft_tokens for a in speculated) > 0
        assert all(a.speculation.lossless for a in speculated)


def test_sampled_http_and_grpc_agree(client: Client, openai_client: OpenAI) -> None:
    whole = _sampled(client, "Once upon a time", 1.0, 5)
    other = openai_client.completions.create(
        model=MODEL,
        prompt="Once upon a time",
        max_tokens=32,
        temperature=1.0,
        top_p=0.9,
        seed=5,
        extra_body={"ignore_eos": True},
    )
    assert other.choices[0].text == whole.text
    assert other.model_extra is not None and other.model_extra["seed"] == whole.seed == 5


def _sampled(client: Client, prompt: Any, temperature: float, seed: int, **options: Any) -> Answer:
    return client.generate(
        prompt,
        max_tokens=32,
        ignore_eos=True,
        temperature=temperature,
        top_p=0.9,
        seed=seed,
        **options,
    )


def _openai_call(
    openai_client: OpenAI, reference: Reference, speculation: dict[str, Any]
) -> Callable[..., Any]:
    common = {
        "model": MODEL,
        "max_tokens": reference.max_tokens,
        "temperature": 0,
        "extra_body": {"speculation": speculation},
    }
    if reference.is_chat:
        messages = reference.client_prompt
        return partial(openai_client.chat.completions.create, messages=messages, **common)
    return partial(openai_client.completions.create, prompt=reference.prompt, **common)


def _openai_text(choice: Any) -> str:
    """The text of a choice of either endpoint, whole or streamed."""
    part = getattr(choice, "delta", None) or getattr(choice, "message", None)
    return (part.content if part is not None else choice.text) or ""
