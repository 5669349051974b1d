"""An evaluation as tables: one layout for the terminal, Markdown and HTML.

Every figure is defined in docs/eval_draft.md. Knows no terminal. Called by the command line.
"""

from __future__ import annotations

import html
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from specdist.distill.eval_agreement import HIT_SIZES, Agreement
from specdist.distill.eval_report import DraftReport, EvalReport, Run

MOST_NAMES = 5
STYLE = (
    "body{font:15px system-ui,sans-serif;margin:2em;max-width:75em}"
    "table{border-collapse:collapse;margin:1em 0}"
    "td,th{border:1px solid #ccc;padding:.25em .6em;text-align:right}"
    "td:first-child,th:first-child{text-align:left}"
)


@dataclass(frozen=True)
class Table:
    """Cells as text; the first column names the row."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def tables(report: EvalReport) -> list[Table]:
    """The ranking first, then what it rests on."""
    found = [_ranking(report), _agreement(report), _acceptance(report), _by_depth(report)]
    found += [_categories(report), _differences(report)]
    return [table for table in found if table.rows]


def notes(report: EvalReport) -> list[str]:
    """One line on what was measured, and whatever a reader must know of it."""
    prompts, settings, environment = report.prompts, report.settings, report.environment
    lines = [
        f"Target {report.target}, {prompts.num_prompts} prompts of {prompts.path} "
        f"(SHA-256 {prompts.sha256[:12]}), up to {settings['max_tokens']} tokens, rule "
        f"{settings['rule']}, top_p {settings['top_p']:g}, {environment['dtype']} on "
        f"{environment['device']}, {environment['num_threads']} threads; a target step of one "
        f"row takes {report.target_step_ms:.2f} ms."
    ]
    if prompts.skipped:
        some = ", ".join(prompts.skipped[:MOST_NAMES])
        more = ", ..." if len(prompts.skipped) > MOST_NAMES else ""
        lines.append(
            f"Left out, too long for the target's context: {len(prompts.skipped)} ({some}{more})."
        )
    for draft in report.drafts:
        lines += [f"{draft.name}: {warning}." for warning in draft.warnings]
        for run in draft.runs:
            reasons = ", ".join(f"{n} x {reason}" for reason, n in run.trouble.items())
            if reasons:
                lines.append(f"{draft.name}, {_where(run)}: drafting was hindered: {reasons}.")
    if report.num_errors:
        lines.append(f"{report.num_errors} greedy answers differ from plain decoding's: an error.")
    return lines


def _ranking(report: EvalReport) -> Table:
    columns = ["draft", "shared", "hidden", "draft step ms", "of a target step"]
    columns += [f"best tree at t={t:g}: length" for t in report.settings["temperatures"]]
    by_name = {draft.name: draft for draft in report.drafts}
    rows = []
    for number, place in enumerate(report.ranking, 1):
        cost = by_name[place.draft].cost
        cells = [f"{number}. {place.draft}", f"{place.speed_up_shared:.2f}"]
        cells += [f"{place.speed_up_hidden:.2f}"]
        cells += [f"{cost.step_ms:.2f}", f"{cost.ratio_to_target_step:.2f}"] if cost else ["-", "-"]
        for best in place.best:
            cells.append(f"{best.shape}: {best.mean_acceptance_length:.2f}")
        rows.append(tuple(cells))
    return Table("Ranking by predicted speed-up", tuple(columns), tuple(rows))


def _agreement(report: EvalReport) -> Table:
    laws: list[float] = []
    rows = []
    for draft in report.drafts:
        for at in draft.agreement:
            laws = list(at.overall.overlap)
            rows.append((draft.name, f"{at.temperature:g}", *_agreement_cells(at.overall)))
    columns = ("draft", "answers at t", "positions", *(f"top-{k}" for k in HIT_SIZES))
    columns += (*(f"1-TV t={t:g}" for t in laws), "covered")
    return Table("Agreement with the target", columns, tuple(rows))


def _agreement_cells(agreement: Agreement) -> Iterator[str]:
    yield str(agreement.num_positions)
    for value in (*agreement.hit.values(), *agreement.overlap.values(), agreement.covered):
        yield f"{value:.3f}"


def _acceptance(report: EvalReport) -> Table:
    columns = ("draft", "t", "tree", "length", "rate", "tokens/step", "draft ms/step")
    rows = []
    for draft in report.drafts:
        for run in draft.runs:
            figures, predicted = run.overall, run.overall.predicted
            rows.append(
                (
                    draft.name,
                    f"{run.temperature:g}",
                    run.shape,
                    f"{figures.mean_acceptance_length:.2f}",
                    f"{figures.draft_acceptance_rate:.2f}",
                    f"{predicted.tokens_per_step:.2f}",
                    f"{predicted.draft_ms_per_step:.2f}",
                    f"{predicted.speed_up_shared:.2f}",
                    f"{predicted.speed_up_hidden:.2f}",
                )
            )
    title = "Mean acceptance length, acceptance rate, predicted speed-up"
    return Table(title, (*columns, "shared", "hidden"), tuple(rows))


def _by_depth(report: EvalReport) -> Table:
    runs = [(draft.name, run) for draft in report.drafts for run in draft.runs]
    deepest = max((len(run.overall.acceptance_by_depth) for _, run in runs), default=0)
    rows = []
    for name, run in runs:
        shares = [f"{share:.2f}" for share in run.overall.acceptance_by_depth]
        shares += ["-"] * (deepest - len(shares))
        rows.append((name, f"{run.temperature:g}", run.shape, *shares))
    columns = ("draft", "t", "tree", *(str(depth) for depth in range(1, deepest + 1)))
    return Table("Acceptance by depth: share of all verified drafts", columns, tuple(rows))


def _categories(report: EvalReport) -> Table:
    columns = ("draft", "t", "tree", "category", "prompts", "top-1", "length", "tokens/step")
    rows: list[tuple[str, ...]] = []
    if len(report.prompts.categories) > 1:
        for draft in report.drafts:
            for temperature in report.settings["temperatures"]:
                rows += _category_rows(draft, draft.best_run(temperature))
    title = "By category, each draft with its best tree"
    return Table(title, (*columns, "shared", "hidden"), tuple(rows))


def _category_rows(draft: DraftReport, run: Run) -> Iterator[tuple[str, ...]]:
    agreement = {at.temperature: at for at in draft.agreement}.get(run.temperature)
    for category, figures in run.categories.items():
        yield (
            draft.name,
            f"{run.temperature:g}",
            run.shape,
            category,
            str(figures.num_prompts),
            f"{agreement.categories[category].hit[1]:.3f}" if agreement else "-",
            f"{figures.mean_acceptance_length:.2f}",
            f"{figures.predicted.tokens_per_step:.2f}",
            f"{figures.predicted.speed_up_shared:.2f}",
            f"{figures.predicted.speed_up_hidden:.2f}",
        )


def _differences(report: EvalReport) -> Table:
    """One row for each place: a close decision falls the same way in many runs."""
    places: dict[tuple[str, ...], int] = {}
    for run in (run for draft in report.drafts for run in draft.runs):
        for d in run.differences:
            place = (d.prompt, f"{run.temperature:g}", str(d.position), f"{d.gap:.2g}")
            places[place] = places.get(place, 0) + 1
    rows = tuple((*place, str(count)) for place, count in places.items())
    columns = ("prompt", "t", "answer token", "gap of the two best", "runs")
    return Table("Answers that differ from plain decoding's", columns, rows)


def _where(run: Run) -> str:
    return f"{run.shape} at t={run.temperature:g}"


def to_markdown(report: EvalReport) -> str:
    """Notes and tables."""
    parts = ["\n".join(f"- {note}" for note in notes(report))]
    parts += [f"## {table.title}\n\n{_markdown_table(table)}" for table in tables(report)]
    return "\n\n".join(parts) + "\n"


def _markdown_table(table: Table) -> str:
    lines = [table.columns, ("---",) * len(table.columns), *table.rows]
    return "\n".join("| " + " | ".join(c.replace("|", "\\|") for c in row) + " |" for row in lines)


def to_html(report: EvalReport) -> str:
    """The same on one page that needs nothing else."""
    body = ["<h1>Drafts compared</h1>", "<ul>"]
    body += [f"<li>{html.escape(note)}</li>" for note in notes(report)] + ["</ul>"]
    for table in tables(report):
        body += [f"<h2>{html.escape(table.title)}</h2>", "<table>"]
        body += [_html_row("th", table.columns), *(_html_row("td", row) for row in table.rows)]
        body.append("</table>")
    head = f'<meta charset="utf-8"><title>Drafts compared</title><style>{STYLE}</style>'
    return (
        f"<!doctype html>\n<html><head>{head}</head><body>\n"
        + "\n".join(body)
        + "\n</body></html>\n"
    )


def _html_row(tag: str, cells: Sequence[str]) -> str:
    return "<tr>" + "".join(f"<{tag}>{html.escape(c)}</{tag}>" for c in cells) + "</tr>"
