"""``specdist distill``: a target in, a draft for it out.

The options are the fields of ``specdist.distill.settings``; ``--config`` takes the same
names from a YAML file, and options override it.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from specdist.cli.options import AsJson
from specdist.cli.output import print_json
from specdist.cli.work_bar import work_bar
from specdist.distill.settings import DistillSettings, flag_of, shown_default
from specdist.errors import ConfigError

EXAMPLE = "Example: specdist distill --target demo --out my-draft --num-tokens 500000"
Config = Annotated[
    Path | None, typer.Option(help="A YAML file with the same names; options override it.")
]


def run_distill(config: Path | None, as_json: bool, **given: Any) -> None:
    """Make a draft model for a target: prompts, answers, training, export.

    Run the same command again to go on after an interruption.
    """
    settings = read_settings(config, given)
    with work_bar() as progress:
        from specdist.distill.pipeline import Pipeline  # after the bar has silenced others

        result = Pipeline(settings, progress).run()
    if as_json:
        print_json(result)
        return
    for name, value in result.items():
        print(f"{name}: {value}")


def read_settings(config: Path | None, given: Mapping[str, Any]) -> DistillSettings:
    """The file's settings, overridden by the options that were given; raises ConfigError."""
    values = read_config(config) if config else {}
    values |= {name: value for name, value in given.items() if value not in (None, [], ())}
    return DistillSettings.from_values(values)


def read_config(path: Path) -> dict[str, Any]:
    """The mapping in a YAML file; raises ConfigError."""
    import yaml

    try:
        values = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, yaml.YAMLError) as error:
        raise ConfigError(f"cannot read {path}: {error}") from error
    if not isinstance(values, dict):
        raise ConfigError(f"{path} must hold settings by name, got {type(values).__name__}")
    return {str(k).replace("-", "_"): v for k, v in values.items()}


def _parameter(entry: dataclasses.Field[Any]) -> inspect.Parameter:
    """One field of the settings as an option that may be left out."""
    flag = flag_of(entry)
    kinds = {"bool": bool, "int": int, "float": float, "tuple[str": list[str]}
    kind: Any = next((k for name, k in kinds.items() if str(entry.type).startswith(name)), str)
    if kind is bool:
        flag = f"{flag}/--no-{flag.removeprefix('--')}"
    default = shown_default(entry)
    text = entry.metadata["help"] + (f" [{default}]" if default else "")
    option = typer.Option(flag, help=text, show_default=False)
    annotation = Annotated[kind | None, option]
    return inspect.Parameter(
        entry.name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation
    )


def command() -> Callable[..., None]:
    """The subcommand, its options made from the settings."""

    def distill(config: Config = None, as_json: AsJson = False, **given: Any) -> None:
        run_distill(config, as_json, **given)

    own = [
        inspect.Parameter(
            "config", inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Config
        ),
        inspect.Parameter(
            "as_json", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=AsJson
        ),
    ]
    parameters = [*(_parameter(f) for f in dataclasses.fields(DistillSettings)), *own]
    distill.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    distill.__annotations__ = {p.name: p.annotation for p in parameters}
    distill.__doc__ = run_distill.__doc__
    return distill
