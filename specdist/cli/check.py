"""``specdist check``: will this pair of models work, before anything is started?"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from specdist.cli.options import AsJson
from specdist.cli.output import print_json, progress_bar
from specdist.config import AppConfig, EngineConfig
from specdist.errors import ConfigError, ModelError

if TYPE_CHECKING:
    from specdist.models.memory import MemoryNeed
    from specdist.models.pair import PairReport

EXAMPLE = "Example: specdist check --config serve_config.yaml"


def check(
    config: Annotated[
        Path | None, typer.Option(help="A serve_config.yaml; the defaults when left out.")
    ] = None,
    target: Annotated[str | None, typer.Option(help="Another target than configured.")] = None,
    draft: Annotated[str | None, typer.Option(help="Another draft than configured.")] = None,
    as_json: AsJson = False,
) -> None:
    """Check that a draft, a target and this machine fit.

    Compares vocabularies, special tokens and context lengths, and estimates memory. Reads no
    weights; models that are not there yet are fetched.
    """
    from specdist.models import check_pair, resolve_model
    from specdist.models.memory import memory_need

    settings = read_settings(config)
    ours = _with_model(settings.target, target)
    theirs = _with_model(settings.draft, draft)
    with progress_bar() as progress:
        target_folder = resolve_model(ours.model, progress)
        draft_folder = resolve_model(theirs.model, progress)
    report = check_pair(target_folder, draft_folder, ours.max_model_len, theirs.max_model_len)
    needs = [memory_need(target_folder, ours), memory_need(draft_folder, theirs)]
    if ours.device == theirs.device:
        _check_both_fit(ours.device, needs)
    if as_json:
        print_json({"pair": report, "target_memory": needs[0], "draft_memory": needs[1]})
    else:
        _print_report(report, needs)


def _with_model(engine: EngineConfig, model: str | None) -> EngineConfig:
    return dataclasses.replace(engine, model=model) if model else engine


def read_settings(path: Path | None) -> AppConfig:
    """The application's ``args`` in a Ray Serve config; raises ConfigError."""
    if path is None:
        return AppConfig()
    import yaml

    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
        applications = content["applications"]
        args = applications[0].get("args") or {}
    except (OSError, yaml.YAMLError) as error:
        raise ConfigError(f"cannot read {path}: {error}") from error
    except (TypeError, KeyError, IndexError, AttributeError):
        raise ConfigError(f"{path} is no Ray Serve config: it has no applications") from None
    return AppConfig.from_mapping(args)


def _check_both_fit(device: str, needs: list[MemoryNeed]) -> None:
    total, free = sum(need.total_bytes for need in needs), needs[0].free_bytes
    if total > free:
        raise ModelError(
            f"both models on {device} need {total / 2**30:.2f} GiB with their KV caches, "
            f"{free / 2**30:.2f} GiB are free"
        )


def _print_report(report: PairReport, needs: list[MemoryNeed]) -> None:
    print(f"vocabulary: {report.vocab_size} shared token ids")
    print(f"draft can propose: {report.num_draft_outputs} of them")
    print(f"context: target {report.target_max_len}, draft {report.draft_max_len} tokens")
    for name, need in zip(("target", "draft"), needs, strict=True):
        print(
            f"{name} memory: {need.weights_bytes / 2**30:.2f} GiB weights, "
            f"{need.kv_cache_bytes / 2**30:.2f} GiB KV cache for {need.num_kv_tokens} tokens"
        )
    for warning in report.warnings:
        print(f"warning: {warning}")
    print("the pair fits")
