"""Chat messages and gRPC messages to protocol requests; wrong ones are named."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from specdist.api.generated import specdist_pb2 as pb
from specdist.api.grpc_convert import prepare
from specdist.api.model_card import ModelCard
from specdist.api.openai_requests import read_chat, read_completion
from specdist.errors import InvalidRequestError


def completion(card: ModelCard, **body: Any):
    return read_completion(card, {"prompt": "ha ha", **body}).answers[0]


def test_messages_of_every_role(card: ModelCard) -> None:
    messages = [
        {"role": "developer", "content": "be brief"},
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        {"role": "assistant", "content": "c", "tool_calls": None, "refusal": None},
        {"role": "user", "content": "", "name": "me"},
    ]
    prompt = read_chat(card, {"messages": messages}).answers[0].generation.prompt_token_ids
    text = card.tokenizer.decode(prompt, skip_special_tokens=False)
    assert "<|im_start|>system\nbe brief<|im_end|>" in text
    assert "<|im_start|>user\na\nb<|im_end|>" in text
    assert text.endswith("<|im_start|>user\n<|im_end|>\n<|im_start|>assistant\n")


@pytest.mark.parametrize(
    ("messages", "param", "message"),
    [
        (None, "messages", "a list of messages"),
        ([], "messages", "at least one message"),
        (["x"], "messages[0]", "an object"),
        ([{"role": "god", "content": "x"}], "messages[0].role", "one of system, developer"),
        ([{"role": "user"}], "messages[0].content", "a string, got null"),
        ([{"role": "user", "content": []}], "messages[0].content", "text parts"),
        ([{"role": "user", "content": "\udfff"}], "messages[0].content", "surrogates"),
        ([{"role": "user", "content": "x", "to": 1}], "messages[0].to", "unknown field"),
        (
            [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}],
            "messages[0].content[0].type",
            '"text"',
        ),
        (
            [{"role": "assistant", "content": "", "tool_calls": [{}]}],
            "messages[0].tool_calls",
            "not supported",
        ),
        ([{"role": "tool", "content": "x"}], "messages", "no tools here"),
    ],
)
def test_wrong_messages_are_named(card: ModelCard, messages: Any, param: str, message: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        read_chat(card, {"messages": messages})
    assert caught.value.param == param
    assert message in caught.value.message


def test_grpc_and_http_give_the_same_request(card: ModelCard) -> None:
    message = pb.GenerateRequest(
        prompt="ha ha",
        sampling=pb.SamplingParams(
            max_tokens=9, temperature=0.7, top_p=0.9, seed=3, stop=["x"], logit_bias={5: 1.5}
        ),
        speculation=pb.SpeculationParams(max_tokens=2),
        logprobs=2,
    )
    http = completion(
        card,
        max_tokens=9,
        temperature=0.7,
        top_p=0.9,
        seed=3,
        stop=["x"],
        logit_bias={"5": 1.5},
        speculation={"max_tokens": 2},
        logprobs=2,
    )
    ours = prepare(card, message, 1.5, "mine")
    assert ours.request_id == "mine"
    assert ours.generation.timeout_s == 1.5
    same = dataclasses.replace(
        ours.generation, request_id=http.generation.request_id, timeout_s=None
    )
    assert (same, ours.stop) == (http.generation, http.stop)


@pytest.mark.parametrize(
    ("message", "param"),
    [
        (pb.GenerateRequest(), "input"),
        (pb.GenerateRequest(prompt=""), "prompt"),
        (pb.GenerateRequest(token_ids=pb.TokenIds(ids=[10**6])), "token_ids.ids[0]"),
        (pb.GenerateRequest(chat=pb.ChatMessages()), "chat.messages"),
        (pb.GenerateRequest(prompt="x", logprobs=21), "logprobs"),
        (
            pb.GenerateRequest(prompt="x", sampling=pb.SamplingParams(temperature=3)),
            "sampling.temperature",
        ),
        (
            pb.GenerateRequest(prompt="x", sampling=pb.SamplingParams(max_tokens=0)),
            "sampling.max_tokens",
        ),
        (
            pb.GenerateRequest(prompt="x", speculation=pb.SpeculationParams(rule="x")),
            "speculation.rule",
        ),
        (pb.GenerateRequest(prompt="x", model="y"), "model"),
    ],
)
def test_grpc_errors_name_the_field(
    card: ModelCard, message: pb.GenerateRequest, param: str
) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        prepare(card, message, None, None)
    assert caught.value.param == param
