"""The draft's model card, made from the record of its run.

What a user of the draft must know to judge it. Reads plain records; knows no model. Called
by ``pipeline``.
"""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from specdist.distill.agreement import CHAINS, DEPTHS, TOP_SIZES, Figures, kinds_of

LIMITS = (
    "It imitates this target on prompts like those above; elsewhere fewer of its tokens are "
    "accepted. Answers stay exact: the target decides. The figures compare laws on the target's "
    "own answers; speed was not measured, see `specdist eval-draft`. Tokens outside of its outputs "
    "it never proposes: the column covered bounds what it can reach."
)


def model_card(provenance: Mapping[str, Any], figures: Mapping[str, Figures]) -> str:
    """README.md of the draft."""
    name = provenance["target"]["name"]
    parts = [
        "---\ntags: [speculative-decoding, draft]\n---",
        f"# Draft for {name}",
        _paragraph(
            f"A draft model for speculative decoding: it proposes tokens, {name} decides. Not "
            "useful on its own. Made by `specdist distill`; this card is generated."
        ),
        "## What it is",
        _paragraph(_what(provenance["student"])),
        "## How it was made",
        f"    {provenance['command']}",
        _paragraph(_how(provenance)),
        "## Figures",
        _paragraph(
            f"On the {provenance['data']['held_out']:,} held-out answers. Definitions stand in "
            "`specdist/distill/agreement.py`."
        ),
        _table(figures),
        *([_paragraph(_chains(figures["all"]))] if "chain5" in figures["all"] else []),
        "## Learning curve",
        "Held-out figures while training (tokens seen, prompts included).",
        _curve(provenance["curve"]),
        *_data_curve(provenance["data_curve"]),
        "## Limits",
        _paragraph(LIMITS),
        "## Versions",
        _paragraph(", ".join(f"{n} {v}" for n, v in provenance["versions"].items()) + "."),
        "Hashes of data and weights are in `provenance.json`.",
    ]
    return "\n\n".join(parts) + "\n"


def _paragraph(text: str) -> str:
    return textwrap.fill(text, 100, break_long_words=False, break_on_hyphens=False)


def _what(student: Mapping[str, Any]) -> str:
    sizes = student["parameters"]
    return (
        f"{student['family']} with {student['layers']} layers and hidden size "
        f"{student['hidden']}: {sizes['total']:,} parameters, {sizes['per_token']:,} of them used "
        f"for each token. It began as {student['origin']}; its embeddings are "
        f"{student['embeddings']}. It can propose {student['outputs']:,} of the "
        f"{student['vocab']:,} tokens."
    )


def _how(provenance: Mapping[str, Any]) -> str:
    data, training = provenance["data"], provenance["training"]
    return (
        f"{data['answers']:,} answers of the target ({data['answer_tokens']:,} answer tokens, "
        f"{data['tokens']:,} with their prompts), {data['greedy_share']:.0%} of them greedy; "
        f"{data['held_out']:,} more were held out by a hash of their prompt's origin. Trained for "
        f"{training['step']:,} steps ({training['tokens']:,} tokens) with the loss "
        f"{provenance['settings']['loss']}; the best step by held-out loss is "
        f"{training['best_step']:,}. Prompt files: {_sources(data['sources'])}. Excluded: "
        f"{_sources(data['exclude'])}."
    )


def _sources(names: Sequence[str]) -> str:
    return ", ".join(f"`{Path(n).name}`" for n in names) or "none"


def _table(figures: Mapping[str, Figures]) -> str:
    tops = " / ".join(map(str, TOP_SIZES))
    rows = [
        f"| | positions | top {tops} | 1 - TV (t = 1) | 1 - TV (t = 0.7) | covered |",
        "|---|---|---|---|---|---|",
    ]
    names = [n for n in ("all", "greedy") if n in figures] + kinds_of(figures)
    for name in names:
        f = figures[name]
        hits = " / ".join(f"{f[f'top{k}']:.3f}" for k in TOP_SIZES)
        rows.append(
            f"| {name} | {f['positions']:,.0f} | {hits} | {f['overlap1']:.3f} | "
            f"{f['overlap0.7']:.3f} | {f['covered']:.3f} |"
        )
    return "\n".join(rows)


def _chains(figures: Figures) -> str:
    lengths = ", ".join(f"{figures[f'chain{k}']:.2f} ({k})" for k in CHAINS)
    depths = ", ".join(f"{figures[f'depth{d}']:.3f}" for d in DEPTHS)
    return (
        f"Greedy chains on greedy answers, exact: mean acceptance length {lengths} "
        f"(tokens drafted); share of positions from which at least 1, 2, ... tokens are accepted: "
        f"{depths}."
    )


def _curve(rows: Sequence[Mapping[str, Any]]) -> str:
    table = ["| step | tokens | loss | top 1 | 1 - TV |", "|---|---|---|---|---|"]
    shown = rows if len(rows) <= 12 else [*rows[:: max(1, len(rows) // 10)], rows[-1]]
    for row in shown:
        f = row["figures"]["all"]
        table.append(
            f"| {row['step']:,} | {row['tokens']:,} | {f['loss']:.3f} | {f['top1']:.3f} | "
            f"{f['overlap1']:.3f} |"
        )
    return "\n".join(table)


def _data_curve(points: Sequence[Mapping[str, Any]]) -> list[str]:
    if not points:
        return []
    table = ["| answer tokens | steps | loss | top 1 | 1 - TV |", "|---|---|---|---|---|"]
    for point in points:
        f = point["figures"]["all"]
        table.append(
            f"| {point['answer_tokens']:,} | {point['steps']:,} | {f['loss']:.3f} | "
            f"{f['top1']:.3f} | {f['overlap1']:.3f} |"
        )
    return ["Short trainings on parts of the data, equally many steps each:", "\n".join(table)]
