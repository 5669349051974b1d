"""``specdist models``: fetch models into the cache and show what is there."""

from __future__ import annotations

from typing import Annotated

import typer

from specdist.cli.options import AsJson
from specdist.cli.output import print_json, progress_bar

app = typer.Typer(
    help="Fetch models and show what is in the cache.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


@app.command(epilog="Example: specdist models pull demo demo-draft")
def pull(
    names: Annotated[
        list[str],
        typer.Argument(help="demo, demo-draft, a hub id owner/name, a folder or a .gguf file"),
    ],
    verify: Annotated[
        bool, typer.Option("--verify", help="Read every cached file again and check its SHA-256.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Download and convert models unless they are there; mend what is damaged."""
    from specdist.models import resolve_model

    with progress_bar() as progress:
        folders = {name: resolve_model(name, progress, verify) for name in names}
    if as_json:
        print_json([{"name": name, "folder": folder} for name, folder in folders.items()])
        return
    for name, folder in folders.items():
        print(f"{name}: {folder}")


@app.command("list", epilog="Example: specdist models list --verify")
def list_models(
    verify: Annotated[
        bool, typer.Option("--verify", help="Check the SHA-256 of every file too.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Show the demo pair: whether it is in the cache, where, and how large."""
    from specdist.models.demo import list_states

    states = list_states(verify)
    if as_json:
        print_json(states)
        return
    for state in states:
        status = "ready" if state.ready else f"not ready: {state.problem}"
        print(f"{state.name:<12}{state.num_bytes / 1e6:>8.1f} MB  {state.folder}  {status}")
