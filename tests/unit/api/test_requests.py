"""Bodies and messages to protocol requests: defaults, limits, refusals by name."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from specdist.api import openai_requests
from specdist.api.model_card import ModelCard
from specdist.api.openai_requests import read_chat, read_completion
from specdist.config import RulesConfig
from specdist.errors import InvalidRequestError, ModelNotFoundError
from specdist.protocol.request import SamplingParams, SpeculationParams

HI = [{"role": "user", "content": "ha"}]


def completion(card: ModelCard, **body: Any):
    return read_completion(card, {"prompt": "ha ha", **body}).answers[0]


def chat(card: ModelCard, **body: Any):
    return read_chat(card, {"messages": HI, **body}).answers[0]


def room(card: ModelCard, prompt: str = "ha ha") -> int:
    return card.max_model_len - len(card.tokenizer.encode(prompt))


def test_every_default_is_resolved(card: ModelCard) -> None:
    plain = completion(card)
    assert plain.generation.sampling == SamplingParams(max_tokens=16)
    assert plain.generation.speculation == SpeculationParams()
    assert (plain.generation.num_logprobs, plain.stop) == (None, ())
    assert plain.skip_special_tokens is True
    answer = chat(card)
    prompt = answer.generation.prompt_token_ids
    assert answer.generation.sampling.max_tokens == card.max_model_len - len(prompt)
    assert answer.request_id.startswith("chatcmpl-")


def test_the_operator_may_set_the_default_limit(card: ModelCard) -> None:
    capped = dataclasses.replace(card, default_max_tokens=9)
    assert completion(capped).generation.sampling.max_tokens == 9
    assert chat(capped).generation.sampling.max_tokens == 9
    assert chat(capped, max_tokens=30).generation.sampling.max_tokens == 30


def test_everything_supported_arrives(card: ModelCard) -> None:
    answer = chat(
        card,
        model="test-model",
        max_completion_tokens=20,
        temperature=0,
        top_p=0.5,
        top_k=7,
        min_p=0.25,
        seed=-3,
        stop=["x", "y"],
        stop_token_ids=[5],
        stream=True,
        stream_options={"include_usage": True},
        logprobs=True,
        top_logprobs=3,
        logit_bias={"5": -100, "6": 1.5},
        presence_penalty=-2,
        frequency_penalty=2,
        repetition_penalty=1.5,
        min_tokens=2,
        ignore_eos=True,
        skip_special_tokens=False,
        user="me",
        speculation={"enabled": False, "max_tokens": 3, "rule": "rejection"},
    )
    assert answer.generation.sampling == SamplingParams(
        max_tokens=20,
        temperature=0.0,
        top_p=0.5,
        top_k=7,
        min_p=0.25,
        seed=-3,
        presence_penalty=-2.0,
        frequency_penalty=2.0,
        repetition_penalty=1.5,
        min_tokens=2,
        ignore_eos=True,
        stop_token_ids=(5,),
        logit_bias=((5, -100.0), (6, 1.5)),
    )
    assert answer.generation.speculation == SpeculationParams(False, 3, "rejection")
    assert (answer.stop, answer.skip_special_tokens) == (("x", "y"), False)
    assert answer.generation.num_logprobs == 3


@pytest.mark.parametrize(
    ("body", "param", "message"),
    [
        ({"temperature": 2.5}, "temperature", "temperature must be between 0 and 2, got 2.5"),
        ({"temperature": "hot"}, "temperature", 'must be a number, got "hot"'),
        ({"temperature": True}, "temperature", "must be a number, got true"),
        ({"max_tokens": 0}, "max_tokens", "max_tokens must be at least 1, got 0"),
        ({"max_tokens": 5.0}, "max_tokens", "must be an integer, got 5.0"),
        ({"max_tokens": 2, "min_tokens": 3}, "min_tokens", "at most max_tokens, 2, got 3"),
        ({"top_p": -0.1}, "top_p", "between 0 and 1"),
        ({"top_k": -2}, "top_k", "at least -1"),
        ({"min_p": float("nan")}, "min_p", "between 0 and 1"),
        ({"seed": 2**63}, "seed", "between"),
        ({"repetition_penalty": 0}, "repetition_penalty", "above 0"),
        ({"presence_penalty": 3}, "presence_penalty", "between -2 and 2"),
        ({"stop": 5}, "stop", "a string or a list of strings"),
        ({"stop": ["x"] * 17}, "stop", "at most 16 strings"),
        ({"stop": ["x", ""]}, "stop[1]", "1 to 1024 characters"),
        ({"stop": ["\ud800"]}, "stop[0]", "lone surrogates"),
        ({"stop_token_ids": [10**6]}, "stop_token_ids[0]", "a token id between 0"),
        ({"stop_token_ids": "2"}, "stop_token_ids", "a list of token ids"),
        ({"logit_bias": {"x": 1}}, "logit_bias", 'must be an integer, got "x"'),
        ({"logit_bias": {"5": 101}}, "logit_bias[5]", "between -100 and 100"),
        ({"logit_bias": []}, "logit_bias", "an object"),
        ({"stream": "yes"}, "stream", "true or false"),
        ({"stream_options": {}}, "stream_options", "unless stream is true"),
        ({"user": 5}, "user", "a string"),
        ({"speculation": True}, "speculation", "an object"),
        ({"speculation": {"rule": "magic"}}, "speculation.rule", "one of coupled, rejection"),
        ({"speculation": {"rule": "typical"}}, "speculation.rule", "lossy"),
        ({"speculation": {"max_tokens": -1}}, "speculation.max_tokens", "at least 0"),
        ({"speculation": {"gamma": 1}}, "speculation.gamma", "unknown field"),
        ({"temprature": 1}, "temprature", "did you mean temperature?"),
        ({"\ud800": 1}, "\ud800", "unknown field"),
    ],
)
def test_what_is_wrong_is_named(
    card: ModelCard, body: dict[str, Any], param: str, message: str
) -> None:
    for read in (completion, chat):
        with pytest.raises(InvalidRequestError) as caught:
            read(card, **body)
        assert caught.value.param == param
        assert message in caught.value.message


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("n", 2),
        ("n", True),
        ("best_of", 2),
        ("echo", True),
        ("suffix", "x"),
        ("tools", [{"type": "function"}]),
        ("prompt_logprobs", 1),
        ("audio", {}),
        ("functions", [{}]),
        ("store", True),
        ("reasoning_effort", "low"),
    ],
)
def test_what_is_not_supported_is_refused_by_name(card: ModelCard, name: str, value: Any) -> None:
    """B062, B065: a clear 400, never silence."""
    for read in (completion, chat):
        with pytest.raises(InvalidRequestError, match="not supported") as caught:
            read(card, **{name: value})
        assert (caught.value.param, caught.value.code) == (name, "unsupported_parameter")


def test_values_that_ask_for_nothing_pass(card: ModelCard) -> None:
    body: dict[str, Any] = dict.fromkeys(openai_requests.UNSUPPORTED)
    body |= {name: v[0] for name, v in openai_requests.UNSUPPORTED.items() if v}
    body |= {"temperature": None, "seed": None, "stop": None, "logit_bias": None}
    assert completion(card, **body).generation.sampling == SamplingParams(max_tokens=16)


def test_small_equivalences(card: ModelCard) -> None:
    def sampling(**body: Any) -> SamplingParams:
        return completion(card, **body).generation.sampling

    assert (sampling(top_p=0).top_p, sampling(top_p=0).top_k) == (1.0, 1)
    assert sampling(top_k=-1).top_k == sampling(top_k=10**6).top_k == 0
    assert sampling(temperature=None).temperature == 1.0  # B044: not greedy
    assert completion(card, stop="x").stop == ("x",)
    off = completion(card, speculation={"max_tokens": 0}).generation.speculation
    assert off == SpeculationParams(enabled=False)


def test_lossy_rules_only_where_allowed(card: ModelCard) -> None:
    lossy = dataclasses.replace(card, rules=RulesConfig(allow_lossy=True))
    asked = completion(lossy, speculation={"rule": "typical"}).generation.speculation
    assert asked.rule == "typical"


def test_the_model_is_checked(card: ModelCard) -> None:
    with pytest.raises(ModelNotFoundError, match="test-model") as caught:
        completion(card, model="gpt-4")
    assert (caught.value.param, caught.value.code) == ("model", "model_not_found")


def test_the_two_names_of_the_limit(card: ModelCard) -> None:
    assert chat(card, max_tokens=5, max_completion_tokens=5).generation.sampling.max_tokens == 5
    with pytest.raises(InvalidRequestError, match="max_completion_tokens, 6, got 5"):
        chat(card, max_tokens=5, max_completion_tokens=6)
    with pytest.raises(InvalidRequestError, match="unknown field"):
        completion(card, max_completion_tokens=6)


def test_forms_of_a_prompt(card: ModelCard) -> None:
    def prompts(value: Any) -> list[tuple[int, ...]]:
        answers = read_completion(card, {"prompt": value}).answers
        return [a.generation.prompt_token_ids for a in answers]

    ids = tuple(card.tokenizer.encode("ha"))
    assert prompts("ha") == prompts(["ha"]) == prompts(list(ids)) == prompts([list(ids)]) == [ids]
    assert prompts(["ha", "ha"]) == [ids, ids]
    assert prompts([[5], [6, 7]]) == [(5,), (6, 7)]
    assert prompts("a") == [tuple(card.tokenizer.encode("a"))]  # B075
    assert prompts("<|im_end|><|im_end|>") == [(2, 2)]  # B076: EOS in a prompt is a token
    assert prompts([0]) == [(0,)]


@pytest.mark.parametrize("value", [None, 5, [], {}, [5, "x"], [[5], "x"], [None], [1.5]])
def test_other_forms_of_a_prompt_are_refused(card: ModelCard, value: Any) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        read_completion(card, {"prompt": value})
    assert caught.value.param == "prompt"


@pytest.mark.parametrize("value", ["", [[]], ["ha", ""]])
def test_an_empty_prompt_is_refused(card: ModelCard, value: Any) -> None:
    with pytest.raises(InvalidRequestError, match="at least one token"):
        read_completion(card, {"prompt": value})


@pytest.mark.parametrize("num_tokens", [126, 127])
def test_a_long_prompt_leaves_its_room(card: ModelCard, num_tokens: int) -> None:
    """B070, B071: the default limit is what the context still holds."""
    answer = read_completion(card, {"prompt": [5] * num_tokens}).answers[0]
    assert answer.generation.sampling.max_tokens == 128 - num_tokens
    asked = read_completion(card, {"prompt": [5] * num_tokens, "max_tokens": 100}).answers[0]
    assert asked.generation.sampling.max_tokens == 128 - num_tokens  # B072: cut to the room


@pytest.mark.parametrize("prompt", [[5] * 128, [5] * 129, "ha " * 10**6])
def test_a_prompt_without_room_is_refused(card: ModelCard, prompt: Any) -> None:
    """B072, B115: 400 context_length_exceeded, quickly, also for megabytes of text."""
    with pytest.raises(InvalidRequestError, match="at most 127 tokens") as caught:
        read_completion(card, {"prompt": prompt})
    assert caught.value.code == "context_length_exceeded"
    if isinstance(prompt, str):
        with pytest.raises(InvalidRequestError, match="at most 127 tokens"):
            read_chat(card, {"messages": [{"role": "user", "content": prompt}]})


def test_logprobs_without_alternatives(card: ModelCard) -> None:
    """B064: 0 and true alone ask for the chosen token's log probability."""
    assert completion(card, logprobs=0).generation.num_logprobs == 0
    assert chat(card, logprobs=True).generation.num_logprobs == 0
    assert chat(card, logprobs=False).generation.num_logprobs is None
    with pytest.raises(InvalidRequestError, match="between 0 and 20"):
        completion(card, logprobs=21)
    with pytest.raises(InvalidRequestError, match="unless logprobs is true"):
        chat(card, top_logprobs=2)


def test_request_ids(card: ModelCard) -> None:
    """The client sees its own id; the backend's is unique all the same."""
    body = {"prompt": ["ha", "ha"]}
    first, second = read_completion(card, body, "mine").answers
    assert first.request_id == second.request_id == "mine"
    assert first.generation.request_id != second.generation.request_id
    with pytest.raises(InvalidRequestError, match="printable ASCII"):
        read_completion(card, body, "a b")
