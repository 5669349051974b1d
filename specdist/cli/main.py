"""The ``specdist`` console script: its subcommands, and one place where errors end.

Every subcommand is a function in a module of its own and imports what is heavy inside,
so that ``--help`` is quick. Only commands that work are registered.
"""

from __future__ import annotations

import sys

import typer

from specdist.cli import chat, check, distill, eval_draft, generate, models
from specdist.cli.output import json_is_wanted, print_error
from specdist.errors import SpecdistError

app = typer.Typer(
    name="specdist",
    help="Speculative decoding as a distributed service.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
app.add_typer(models.app, name="models")
app.command("generate", epilog=generate.EXAMPLE)(generate.generate)
app.command("chat", epilog=chat.EXAMPLE)(chat.chat)
app.command("check", epilog=check.EXAMPLE)(check.check)
app.command("eval-draft", epilog=eval_draft.EXAMPLE)(eval_draft.eval_draft)
app.command("distill", epilog=distill.EXAMPLE)(distill.command())


def main() -> None:
    """Run the command line; a known error becomes one line and exit status 1."""
    try:
        app()
    except SpecdistError as error:
        print_error(error, as_json=json_is_wanted(sys.argv))
        raise SystemExit(1) from None


if __name__ == "__main__":
    main()
