"""The settings of a distillation: from YAML, from options, and what is wrong with them."""

from __future__ import annotations

import dataclasses
import shlex
from typing import Any

import pytest

from specdist.distill.run_record import command_line
from specdist.distill.settings import DistillSettings, check_same, flag_of, shown_default
from specdist.errors import ConfigError

BOTH = {"target": "t", "out": "o"}


def test_names_with_dashes_and_lists_as_text() -> None:
    settings = DistillSettings.from_values(
        {
            **BOTH,
            "num-tokens": 500,
            "layers": "0,3",
            "temperatures": "0.2,0.8",
            "max_new_tokens": 32,
            "prompts": "a.jsonl=2",
            "output_vocab": 512,
        }
    )
    assert settings.num_tokens == 500
    assert settings.layers == (0, 3)
    assert settings.temperatures == (0.2, 0.8)
    assert settings.max_new_tokens == (32,)
    assert settings.prompts == ("a.jsonl=2",)
    assert settings.output_vocab == "512"


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"target": "t"}, "out must be given"),
        ({**BOTH, "num_token": 5}, "did you mean 'num_tokens'"),
        ({**BOTH, "num_tokens": 0}, "num_tokens must be at least 1, got 0"),
        ({**BOTH, "loss": "kl"}, "loss must be one of forward_kl"),
        ({**BOTH, "layers": "0", "new": "hidden=8"}, "one of layers, new and from"),
        ({**BOTH, "layers": "a"}, "layers must be numbers with commas, got 'a'"),
        ({**BOTH, "temperatures": "0.9,0.5"}, "temperatures must be between 0.9 and 2, got 0.5"),
        ({**BOTH, "max_new_tokens": "9,8"}, "max_new_tokens must be between 1 and 8, got 9"),
        ({**BOTH, "max_new_tokens": "1,2,3"}, "max_new_tokens must be one number or two"),
        ({**BOTH, "self_share": 1.5}, "self_share must be between 0 and 1, got 1.5"),
        ({**BOTH, "held_out": 0.0}, "held_out must be between"),
        ({**BOTH, "output_vocab": "some"}, "output_vocab must be a number, all or auto"),
        ({**BOTH, "templates": 0.0, "self_share": 0.5}, "templates must be above 0"),
        ({**BOTH, "only": "answer"}, "only must be one of prompts, answers"),
    ],
)
def test_what_is_wrong_is_named(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        DistillSettings.from_values(values)


def test_the_differing_field_is_named() -> None:
    with pytest.raises(ConfigError, match="x was made with seed 1, now it is 2; do y"):
        check_same({"a": 1, "seed": 1}, {"a": 1, "seed": 2}, "x", "do y")
    check_same({"a": [1]}, {"a": [1]}, "x", "y")


def test_options_and_their_defaults_as_they_are_shown() -> None:
    fields = {entry.name: entry for entry in dataclasses.fields(DistillSettings)}
    assert [flag_of(fields[n]) for n in ("num_tokens", "start_from")] == ["--num-tokens", "--from"]
    wanted = {
        "seed": "0",
        "on_policy_share": "0.0",
        "temperatures": "0.5,1.0",
        "loss": "forward_kl",
    }
    wanted |= {"out": "", "layers": "", "prompts": "", "slim": ""}
    assert {name: shown_default(fields[name]) for name in wanted} == wanted


def test_the_command_of_a_run_repeats_it() -> None:
    settings = DistillSettings(
        **{"target": "my models/t", "out": "o", "seed": 7, "slim": True, "only": "train"},
        **{"prompts": ("a b.txt=2", "c.txt"), "layers": (0, 3), "start_from": None},
    )
    command = command_line(settings)
    assert shlex.split(command) == [
        *("specdist", "distill", "--target", "my models/t", "--out", "o", "--seed", "7"),
        *("--prompts", "a b.txt=2", "--prompts", "c.txt", "--layers", "0,3", "--slim"),
    ]
