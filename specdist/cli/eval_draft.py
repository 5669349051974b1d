"""``specdist eval-draft``: drafts compared on a file of prompts, without a running service."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from specdist.cli.options import AsJson
from specdist.cli.output import print_json, progress_bar
from specdist.errors import ConfigError

if TYPE_CHECKING:
    from specdist.distill.eval_report import EvalReport
    from specdist.distill.eval_settings import EvalSettings

EXAMPLE = "Example: specdist eval-draft demo-draft ngram demo-draft+ngram --prompts prompts.jsonl"
FORMATS = (".json", ".md", ".html")
FILE_WIDTH = 120  # where the tables do not go to a terminal


Drafts = Annotated[
    list[str], typer.Argument(help="A model, ngram (prompt lookup alone) or MODEL+ngram (both).")
]
Prompts = Annotated[
    Path | None, typer.Option(help="JSONL: turns, messages or prompt on each line, and a category.")
]
Target = Annotated[str, typer.Option(help="The model whose answers count.")]
NumPrompts = Annotated[int | None, typer.Option(help="Use so many, spread evenly over the file.")]
AllTurns = Annotated[
    bool, typer.Option("--all-turns", help="Later turns too, behind the target's answers.")
]
MaxTokens = Annotated[int, typer.Option(help="Longest answer, in tokens.")]
Temperatures = Annotated[str, typer.Option(help="Comma-separated; 0 is greedy.")]
TopP = Annotated[float, typer.Option(help="Nucleus sampling.")]
Rule = Annotated[str, typer.Option(help="Verification rule.")]
Trees = Annotated[str, typer.Option(help="Comma-separated chain:LENGTH and tree:NODES[:DEPTH].")]
Concurrency = Annotated[int, typer.Option(help="Answers that are made together.")]
Dtype = Annotated[str, typer.Option(help="auto, float32, bfloat16 or float16.")]
Device = Annotated[str, typer.Option(help="cpu or cuda, for both models.")]
Threads = Annotated[int | None, typer.Option(min=1, help="Torch threads; all cores if left out.")]
Seed = Annotated[int, typer.Option(help="Prompt number i is answered with seed + i.")]
Out = Annotated[Path | None, typer.Option(help="Write the report to a .json, .md or .html file.")]


def eval_draft(
    drafts: Drafts,
    prompts: Prompts = None,
    target: Target = "demo",
    num_prompts: NumPrompts = None,
    all_turns: AllTurns = False,
    max_tokens: MaxTokens = 128,
    temperatures: Temperatures = "0,0.8",
    top_p: TopP = 1.0,
    rule: Rule = "coupled",
    trees: Trees = "chain:4,chain:8,tree:8,tree:16",
    concurrency: Concurrency = 8,
    dtype: Dtype = "auto",
    device: Device = "cpu",
    threads: Threads = None,
    seed: Seed = 0,
    out: Out = None,
    as_json: AsJson = False,
) -> None:
    """Compare drafts for a target: agreement, acceptance, cost and predicted speed-up.

    The target answers every prompt, plainly and with each draft, on the service's own workers
    in this process. Exits with status 1 when a greedy float32 answer differs from plain
    decoding's by more than a tie.
    """
    from specdist.distill.eval_settings import EvalSettings, parse_shapes, parse_temperatures

    values: dict[str, Any] = {
        "target": target,
        "max_tokens": max_tokens,
        "top_p": top_p,
        "rule": rule,
    }
    values |= {"concurrency": concurrency, "dtype": dtype, "device": device, "seed": seed}
    values |= {"num_threads": threads, "temperatures": parse_temperatures(temperatures)}
    settings = EvalSettings(**values, shapes=parse_shapes(trees))
    _check_out(out)
    _show(_evaluate(drafts, settings, prompts, num_prompts, all_turns), out, as_json)


def _evaluate(
    drafts: list[str],
    settings: EvalSettings,
    prompts: Path | None,
    num_prompts: int | None,
    all_turns: bool,
) -> EvalReport:
    if prompts is None:
        raise ConfigError("eval-draft needs prompts: give a JSONL file with --prompts FILE.jsonl")
    with progress_bar() as progress:  # silences the libraries' own bars, if they come after it
        from specdist.distill.eval_draft import evaluate_drafts
        from specdist.distill.eval_prompts import read_prompt_file

        file = read_prompt_file(prompts, num_prompts)
        return evaluate_drafts(drafts, settings, file, all_turns, progress)


def _check_out(out: Path | None) -> None:
    """Before hours of work, not after them."""
    if out is None:
        return
    if out.suffix not in FORMATS:
        raise ConfigError(f"out must end in {', '.join(FORMATS)}, got {str(out)!r}")
    if not out.parent.is_dir():
        raise ConfigError(f"out must lie in a folder that exists, got {str(out)!r}")


def _show(report: EvalReport, out: Path | None, as_json: bool) -> None:
    _write(report, out)
    if as_json:
        print_json(report)
    else:
        _print_tables(report)
    if report.num_errors:
        print(f"error: {report.num_errors} greedy answers differ from plain ones", file=sys.stderr)
        raise typer.Exit(1)


def _write(report: EvalReport, out: Path | None) -> None:
    from specdist.distill.eval_report import write_json
    from specdist.distill.eval_tables import to_html, to_markdown

    if out is None:
        return
    if out.suffix == ".json":
        write_json(report, out)
    else:
        text = to_markdown(report) if out.suffix == ".md" else to_html(report)
        out.write_text(text, encoding="utf-8")


def _print_tables(report: EvalReport) -> None:
    from specdist.distill.eval_tables import notes, tables

    console = Console()
    if not console.is_terminal:
        console = Console(width=FILE_WIDTH)
    for note in notes(report):
        console.print(note, highlight=False)
    for table in tables(report):
        drawn = Table(title=table.title, title_justify="left")
        for i, column in enumerate(table.columns):
            longest = max(len(row[i]) for row in table.rows)  # headers may wrap, figures not
            drawn.add_column(column, justify="right" if i else "left", min_width=longest)
        for row in table.rows:
            drawn.add_row(*row)
        console.print(drawn)
