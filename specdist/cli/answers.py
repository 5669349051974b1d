"""One answer from the service, streamed to stdout or collected for JSON."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from specdist.cli.output import print_json
from specdist.errors import InternalError

if TYPE_CHECKING:
    from specdist.client import Chunk, Client

Prompt = str | Sequence[dict[str, str]]


def stream_answer(client: Client, prompt: Prompt, options: dict[str, Any]) -> tuple[str, Chunk]:
    """Print an answer as it arrives; returns its text and the last chunk."""
    text, last = "", None
    for chunk in client.stream(prompt, **options):
        sys.stdout.write(chunk.text)
        sys.stdout.flush()
        text += chunk.text
        last = chunk
    print()
    if last is None or last.finish_reason is None:
        raise InternalError("the answer ended without a finish reason")
    return text, last


def print_answer_json(client: Client, prompt: Prompt, options: dict[str, Any]) -> str:
    """Print a whole answer with its statistics as one JSON object; returns its text."""
    answer = client.generate(prompt, **options)
    print_json(answer)
    return answer.text


def print_statistics(last: Chunk) -> None:
    """One line on stderr about tokens, the seed and what speculation did."""
    if last.usage is None or last.speculation is None:
        return
    stats = last.speculation
    print(
        f"[{last.finish_reason}; {last.usage.prompt_tokens} prompt and "
        f"{last.usage.completion_tokens} answer tokens; seed {last.seed}; "
        f"rule {stats.rule}; {stats.num_accepted_tokens} of {stats.num_draft_tokens} draft "
        f"tokens accepted; {stats.mean_acceptance_length:.2f} tokens per verified draft]",
        file=sys.stderr,
    )
