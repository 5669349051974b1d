"""OUT/report.html: the run's curves in one file, pictures embedded.

Loss and agreement while training, acceptance by depth, figures by kind of prompt, and the
data curve. Reads plain records; knows no model. Called by ``pipeline``.
"""

from __future__ import annotations

import base64
import html
import io
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from specdist.distill.agreement import DEPTHS, TOP_SIZES, Figures, kinds_of
from specdist.errors import ConfigError

Rows = Sequence[Mapping[str, Any]]
STYLE = "body{font:15px sans-serif;max-width:60em;margin:2em auto}img{max-width:100%}"
STYLE += "pre{white-space:pre-wrap;background:#f4f4f4;padding:1em}"


def html_report(provenance: Mapping[str, Any], losses: Rows, figures: Mapping[str, Figures]) -> str:
    """The page as text."""
    evaluations: Rows = provenance["curve"]
    pictures = [("Loss", _picture(lambda axes: _losses(axes, losses, evaluations)))]
    if evaluations:
        pictures.append(("Agreement", _picture(lambda axes: _agreement(axes, evaluations))))
    if "depth1" in figures["all"]:
        pictures.append(("Acceptance by depth", _picture(lambda axes: _depths(axes, figures))))
    pictures.append(("Kinds of prompt", _picture(lambda axes: _kinds(axes, figures))))
    if provenance["data_curve"]:
        points: Rows = provenance["data_curve"]
        pictures.append(("Data", _picture(lambda axes: _data(axes, points))))
    body = "\n".join(
        f'<h2>{title}</h2>\n<img alt="{title}" src="data:image/png;base64,{image}">'
        for title, image in pictures
    )
    name = html.escape(f"Draft for {provenance['target']['name']}")
    command = html.escape(provenance["command"])
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{name}</title>\n'
        f"<style>{STYLE}</style></head>\n<body><h1>{name}</h1>\n<pre>{command}</pre>\n"
        f"{_summary(figures['all'])}\n{body}\n</body></html>\n"
    )


def _summary(figures: Figures) -> str:
    parts = [f"top {k}: {figures[f'top{k}']:.3f}" for k in TOP_SIZES]
    parts += [f"1 - TV: {figures['overlap1']:.3f} (t = 1), {figures['overlap0.7']:.3f} (t = 0.7)"]
    if "chain5" in figures:
        parts.append(f"mean acceptance length of greedy chains of 5: {figures['chain5']:.2f}")
    return f"<p>{'; '.join(parts)}; {figures['positions']:,.0f} held-out positions.</p>"


def check_matplotlib() -> None:
    """Raise ConfigError where there is no matplotlib: before hours of work, not after."""
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise ConfigError("the report needs matplotlib: pip install 'specdist[distill]'") from None


def _picture(draw: Callable[[Any], None]) -> str:
    """A drawing as base64 PNG."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 4), layout="constrained")
    axes = figure.subplots()
    draw(axes)
    axes.grid(alpha=0.3)
    stream = io.BytesIO()
    figure.savefig(stream, format="png", dpi=90)
    return base64.b64encode(stream.getvalue()).decode()


def _losses(axes: Any, losses: Rows, evaluations: Rows) -> None:
    axes.plot([r["tokens"] for r in losses], [r["loss"] for r in losses], label="training")
    held_out = [r["figures"]["all"]["loss"] for r in evaluations]
    axes.plot([r["tokens"] for r in evaluations], held_out, marker="o", label="held out")
    _label(axes, "training tokens seen", "loss")


def _agreement(axes: Any, evaluations: Rows) -> None:
    tokens = [r["tokens"] for r in evaluations]
    for name in (*(f"top{k}" for k in TOP_SIZES), "overlap1"):
        values = [r["figures"]["all"][name] for r in evaluations]
        axes.plot(tokens, values, marker="o", label="1 - TV" if name == "overlap1" else name)
    axes.set_ylim(0, 1)
    _label(axes, "training tokens seen", "share of held-out positions")


def _depths(axes: Any, figures: Mapping[str, Figures]) -> None:
    for name in [n for n in ("all", *kinds_of(figures)) if "depth1" in figures[n]][:9]:
        values = [figures[name][f"depth{d}"] for d in DEPTHS]
        axes.plot(DEPTHS, values, marker="o", label=name)
    axes.set_ylim(0, 1)
    _label(axes, "depth", "accepted at least so deep (greedy answers)")


def _kinds(axes: Any, figures: Mapping[str, Figures]) -> None:
    names = ["all", *kinds_of(figures)]
    places = range(len(names))
    axes.bar([p - 0.2 for p in places], [figures[n]["top1"] for n in names], 0.4, label="top 1")
    overlaps = [figures[n]["overlap1"] for n in names]
    axes.bar([p + 0.2 for p in places], overlaps, 0.4, label="1 - TV")
    axes.set_xticks(list(places), names, rotation=45, ha="right")
    axes.set_ylim(0, 1)
    _label(axes, "", "share")


def _data(axes: Any, points: Rows) -> None:
    amounts = [p["answer_tokens"] for p in points]
    for name in ("top1", "top4", "overlap1"):
        axes.plot(amounts, [p["figures"]["all"][name] for p in points], marker="o", label=name)
    axes.set_xscale("log")
    _label(axes, "answer tokens in the data, equally many steps", "share of held-out positions")


def _label(axes: Any, across: str, up: str) -> None:
    axes.set_xlabel(across)
    axes.set_ylabel(up)
    axes.legend()
