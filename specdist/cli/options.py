"""Options that several subcommands share, and how they become a request."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

import typer

AsJson = Annotated[bool, typer.Option("--json", help="Print machine-readable JSON.")]
Address = Annotated[
    str, typer.Option(help="The service's gRPC address.", envvar="SPECDIST_ADDRESS")
]
MaxTokens = Annotated[int | None, typer.Option(min=1, help="Longest answer, in tokens.")]
Temperature = Annotated[float | None, typer.Option(min=0, max=2, help="0 is greedy.")]
TopP = Annotated[float | None, typer.Option(min=0, max=1, help="Nucleus sampling.")]
TopK = Annotated[int | None, typer.Option(min=0, help="0 is off.")]
Seed = Annotated[int | None, typer.Option(help="The same seed gives the same answer.")]
Stop = Annotated[list[str] | None, typer.Option(help="Text that ends the answer; repeatable.")]
Rule = Annotated[str | None, typer.Option(help="Verification rule, the service's by default.")]
Speculate = Annotated[
    bool, typer.Option("--speculate/--no-speculate", help="Plain decoding without it.")
]
DraftTokens = Annotated[
    int | None,
    typer.Option("--num-speculative-tokens", min=0, help="Longest path that the draft proposes."),
]
Timeout = Annotated[
    float | None, typer.Option("--timeout", min=0.001, help="Give up after so many seconds.")
]
Stats = Annotated[bool, typer.Option("--stats", help="Tell on stderr what speculation did.")]
DEFAULT_ADDRESS = "127.0.0.1:9000"


@dataclass(frozen=True)
class Sampling:
    """What the options of one command say about every answer."""

    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    seed: int | None = None
    stop: tuple[str, ...] = ()
    rule: str | None = None
    speculate: bool = True
    num_speculative_tokens: int | None = None
    timeout_s: float | None = None

    def to_options(self) -> dict[str, Any]:
        """Keyword arguments of the client's calls; what was not said is left out."""
        speculation = {"rule": self.rule, "max_tokens": self.num_speculative_tokens}
        if not self.speculate:
            speculation["enabled"] = False
        names = ("max_tokens", "temperature", "top_p", "top_k", "seed", "timeout_s")
        options = {name: getattr(self, name) for name in names}
        options["stop"] = list(self.stop) or None
        options["speculation"] = {k: v for k, v in speculation.items() if v is not None} or None
        return {name: value for name, value in options.items() if value is not None}
