"""``specdist generate``: one prompt, one answer, streamed from a running service."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from specdist.cli import options as opts
from specdist.cli.answers import print_answer_json, print_statistics, stream_answer

EXAMPLE = 'Example: specdist generate "The capital of France is" --max-tokens 16 --temperature 0'


def generate(
    prompt: Annotated[str, typer.Argument(help="The text to continue; - reads it from stdin.")],
    address: opts.Address = opts.DEFAULT_ADDRESS,
    max_tokens: opts.MaxTokens = 128,
    temperature: opts.Temperature = None,
    top_p: opts.TopP = None,
    top_k: opts.TopK = None,
    seed: opts.Seed = None,
    stop: opts.Stop = None,
    rule: opts.Rule = None,
    speculate: opts.Speculate = True,
    num_speculative_tokens: opts.DraftTokens = None,
    timeout: opts.Timeout = None,
    stats: opts.Stats = False,
    as_json: opts.AsJson = False,
) -> None:
    """Continue a text."""
    from specdist.client import Client

    sampling = opts.Sampling(
        max_tokens=max_tokens,
        temperature=temperature,
        top_p=top_p,
        top_k=top_k,
        seed=seed,
        stop=tuple(stop or ()),
        rule=rule,
        speculate=speculate,
        num_speculative_tokens=num_speculative_tokens,
        timeout_s=timeout,
    )
    text = sys.stdin.read() if prompt == "-" else prompt
    with Client(address) as client:
        if as_json:
            print_answer_json(client, text, sampling.to_options())
            return
        _, last = stream_answer(client, text, sampling.to_options())
    if stats:
        print_statistics(last)
