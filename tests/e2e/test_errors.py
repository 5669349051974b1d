"""Requests that are wrong or come too late: a clear error each, and service goes on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx
import pytest

from specdist.bench.served import ServedApp
from specdist.client import Client
from specdist.errors import DeadlineError, InvalidRequestError, ModelNotFoundError
from tests.e2e.rig import OFF, REFERENCES, post, wait_until_idle

NUMS = REFERENCES["P-NUMS"]
COMPLETIONS = "/v1/completions"
CHAT = "/v1/chat/completions"
MESSAGES = [{"role": "user", "content": "Say hi."}]
CONTEXT = 8192

WRONG_BODIES: dict[str, tuple[str, dict[str, Any], int, str]] = {
    "unknown field": (COMPLETIONS, {"prompt": "a", "temprature": 1}, 400, "temprature"),
    "unsupported field": (COMPLETIONS, {"prompt": "a", "suffix": "b"}, 400, "suffix"),
    "unsupported in chat": (CHAT, {"messages": MESSAGES, "tools": [{}]}, 400, "tools"),
    "temperature": (COMPLETIONS, {"prompt": "a", "temperature": 3}, 400, "temperature"),
    "max_tokens": (COMPLETIONS, {"prompt": "a", "max_tokens": 0}, 400, "max_tokens"),
    "a wrong type": (COMPLETIONS, {"prompt": "a", "top_p": "all"}, 400, "top_p"),
    "a token id": (COMPLETIONS, {"prompt": [49152]}, 400, "prompt[0]"),
    "no prompt": (COMPLETIONS, {}, 400, "prompt"),
    "no messages": (CHAT, {"messages": []}, 400, "messages"),
    "a rule": (
        COMPLETIONS,
        {"prompt": "a", "speculation": {"rule": "typical"}},
        400,
        "speculation.rule",
    ),
    "inside speculation": (
        COMPLETIONS,
        {"prompt": "a", "speculation": {"max_token": 2}},
        400,
        "speculation.max_token",
    ),
    "wrong model": (COMPLETIONS, {"prompt": "a", "model": "gpt-4"}, 404, "model"),
    "too long": (COMPLETIONS, {"prompt": [28] * CONTEXT}, 400, "prompt"),
}

WRONG_CALLS: dict[str, tuple[Any, dict[str, Any], str]] = {
    "temperature": ("a", {"temperature": 3.0}, "sampling.temperature"),
    "max_tokens": ("a", {"max_tokens": 0}, "sampling.max_tokens"),
    "top_p": ("a", {"top_p": 1.5}, "sampling.top_p"),
    "stop": ("a", {"stop": [""]}, "sampling.stop[0]"),
    "logprobs": ("a", {"logprobs": 21}, "logprobs"),
    "a rule": ("a", {"speculation": {"rule": "typical"}}, "speculation.rule"),
    "a token id": ([49152], {}, "token_ids"),
    "no prompt": ("", {}, "prompt"),
    "too long": ([28] * CONTEXT, {}, "token_ids"),
}


def assert_served(client: Client) -> None:
    """The next request works."""
    answer = client.generate(NUMS.prompt, max_tokens=3, temperature=0)
    assert answer.token_ids == NUMS.token_ids[:3]


@pytest.mark.parametrize(
    ("path", "body", "status", "param"), WRONG_BODIES.values(), ids=WRONG_BODIES
)
@pytest.mark.parametrize("stream", [False, True])
def test_wrong_body(
    app: ServedApp, path: str, body: dict[str, Any], status: int, param: str, stream: bool
) -> None:
    response = post(app, path, {**body, "stream": stream})
    assert response.status_code == status, response.text
    error = response.json()["error"]
    assert error["param"] == param
    assert param.split("[")[0].split(".")[-1] in error["message"]
    assert error["type"] == "invalid_request_error"


@pytest.mark.parametrize("body", [b"{", b"", b"[]", b'{"prompt": NaN}', b"\xff"])
def test_malformed_json(app: ServedApp, body: bytes) -> None:
    response = post(app, COMPLETIONS, body)
    assert response.status_code == 400, response.text
    assert "JSON" in response.json()["error"]["message"]


def test_no_such_endpoint(app: ServedApp) -> None:
    assert httpx.get(f"{app.http_url}/v1/nothing").status_code == 404
    assert httpx.get(app.http_url + COMPLETIONS).status_code == 405


@pytest.mark.parametrize(("prompt", "options", "param"), WRONG_CALLS.values(), ids=WRONG_CALLS)
@pytest.mark.parametrize("method", ["generate", "stream"])
def test_wrong_call(
    client: Client, prompt: Any, options: dict[str, Any], param: str, method: str
) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        _call(client, method)(prompt, **options)
    assert not isinstance(caught.value, ModelNotFoundError)
    assert caught.value.param is not None and caught.value.param.startswith(param)
    assert caught.value.message


@pytest.mark.parametrize("method", ["generate", "stream"])
def test_wrong_model_over_grpc(client: Client, method: str) -> None:
    with pytest.raises(ModelNotFoundError, match="gpt-4") as caught:
        _call(client, method)("a", model="gpt-4")
    assert caught.value.param == "model"


def test_service_after_errors(app: ServedApp, client: Client) -> None:
    assert_served(client)
    assert post(app, COMPLETIONS, {"prompt": "1, 2,", "max_tokens": 1}).status_code == 200


def test_deadline_in_the_middle(app: ServedApp, client: Client) -> None:
    """B118: what came is right, and nothing goes on."""
    length = 48
    plain = client.generate(
        NUMS.prompt, max_tokens=length, ignore_eos=True, temperature=0, speculation=OFF
    )
    received: list[int] = []
    with pytest.raises(DeadlineError):
        for chunk in client.stream(
            NUMS.prompt, max_tokens=400, ignore_eos=True, temperature=0, timeout_s=1.0
        ):
            received += chunk.token_ids
    shared = min(len(received), length)
    assert tuple(received[:shared]) == plain.token_ids[:shared]
    wait_until_idle(app, 5.0)
    assert_served(client)


def test_deadline_of_a_whole_answer(app: ServedApp, client: Client) -> None:
    with pytest.raises(DeadlineError):
        client.generate(NUMS.prompt, max_tokens=400, ignore_eos=True, timeout_s=1.0)
    wait_until_idle(app, 5.0)
    assert_served(client)


def _call(client: Client, method: str) -> Callable[..., Any]:
    if method == "generate":
        return client.generate
    return lambda *args, **options: list(client.stream(*args, **options))
