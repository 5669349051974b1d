"""Every setting of ``specdist distill``: one frozen record, from YAML and from the command line.

Each field is an option of the command and a key of ``--config``; its help text stands with
it. Knows no torch, so that ``--help`` is quick. Read by all of ``specdist.distill`` and by
``specdist.cli.distill``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from specdist.config import from_mapping
from specdist.errors import ConfigError

PHASES = ("prompts", "answers", "train", "export")
LOSSES = ("forward_kl", "reverse_kl", "tv", "mix")
EMBEDDINGS = ("auto", "target", "own")
NUMBER_TYPES = ("auto", "float32", "bfloat16")
# What decides the answers; shards made with another value of any of these are refused.
DATA_FIELDS = (
    *("seed", "templates", "self_share", "follow_up_share", "max_prompt_tokens"),
    *("max_turn_tokens", "greedy_share", "temperatures", "max_new_tokens", "shard_answers"),
)
# What decides the weights, given the answers; a checkpoint of another value is refused.
TRAIN_FIELDS = (
    *("seed", "layers", "new", "start_from", "embeddings", "output_vocab", "loss"),
    *("prompt_weight", "on_policy_share", "on_policy_start", "on_policy_tokens", "train_dtype"),
    *("batch_tokens", "grad_accumulation", "learning_rate", "warmup_steps", "weight_decay"),
    *("max_grad_norm", "num_steps", "epochs", "held_out"),
    # the teacher decides the losses, the evaluations which step is kept as the best
    *("teacher_dtype", "eval_steps", "eval_answers"),
)


def _option(default: Any, text: str, **more: Any) -> Any:
    return field(default=default, metadata={"help": text, **more})


def flag_of(entry: dataclasses.Field[Any]) -> str:
    """The option of one field."""
    return entry.metadata.get("flag") or f"--{entry.name.replace('_', '-')}"


def shown_default(entry: dataclasses.Field[Any]) -> str:
    """The value of an option that is left out, as it would be given; "" when it has none."""
    value = entry.default
    if value is None or isinstance(value, bool):
        return ""
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)


@dataclass(frozen=True)
class DistillSettings:
    """See the help text of each field."""

    # Which models, and where
    target: str = _option("", "The target: a folder, a .gguf file, a hub id, or demo.")
    out: str = _option("", "Folder of the run: data, checkpoints, draft, report.")
    data: str | None = _option(None, "Folder of prompts and answers; OUT/data by default.")
    only: str | None = _option(None, f"Run one phase: {', '.join(PHASES)}.")
    seed: int = _option(0, "Names all random numbers of the run.")
    device: str = _option("cpu", "cpu or cuda.")
    num_threads: int | None = _option(None, "Torch threads; all cores by default.")

    # Prompts
    prompts: tuple[str, ...] = _option(
        (), "PATH[=WEIGHT]: file or folder with prompts; repeatable."
    )
    documents: tuple[str, ...] = _option(
        (), "PATH[=WEIGHT]: texts that built-in tasks (summarize, translate ...) wrap; repeatable."
    )
    templates: float = _option(1.0, "Weight of the built-in prompts beside those files; 0: none.")
    self_share: float = _option(0.25, "Share of first turns that the target writes itself.")
    follow_up_share: float = _option(0.3, "Share of prompts made from earlier answers.")
    exclude: tuple[str, ...] = _option(
        (), "File of prompts never to be used, nor anything like them; repeatable."
    )
    max_prompt_tokens: int = _option(768, "Longer prompts are dropped.", low=8)
    max_turn_tokens: int = _option(96, "Longest user turn that the target writes.", low=1)

    # Answers
    num_tokens: int = _option(2_000_000, "Answer tokens in all.", low=1)
    batch_size: int = _option(64, "Answers generated at the same time.", low=1)
    greedy_share: float = _option(0.5, "Share of answers at temperature 0.")
    temperatures: tuple[float, ...] = _option((0.5, 1.0), "Range of the other temperatures: A,B.")
    max_new_tokens: tuple[int, ...] = _option((64, 320), "Range of the longest answer: A,B.")
    shard_answers: int = _option(256, "Prompts of one data shard.", low=1)
    dtype: str = _option("auto", "Number type of the target while it answers.")
    cache_bytes: int = _option(8 << 30, "Disk for the target's hidden states; 0: none.", low=0)

    # Student
    layers: tuple[int, ...] | None = _option(None, "Start from these target layers: 0,10,20,29.")
    new: str | None = _option(None, "A fresh student: hidden=256,layers=4,heads=4[,kv_heads=..].")
    start_from: str | None = _option(None, "Start from this checkpoint.", flag="--from")
    embeddings: str = _option("auto", "target (frozen, shared), own, or auto: by the width.")
    output_vocab: str = _option(
        "auto", "Tokens that the draft can propose: a number, all, or auto."
    )

    # Training
    loss: str = _option("forward_kl", f"One of {', '.join(LOSSES)}.")
    prompt_weight: float = _option(0.1, "Share of prompt tokens that are learnt from too.")
    on_policy_share: float = _option(0.0, "Share of batches with the student's own tokens.")
    on_policy_start: float = _option(0.5, "Part of the training after which these batches begin.")
    on_policy_tokens: int = _option(8, "Own tokens behind each prefix.", low=1)
    train_dtype: str = _option("auto", "bfloat16 (autocast) or float32.")
    teacher_dtype: str = _option("auto", "Number type of the target where it is computed again.")
    batch_tokens: int = _option(4096, "Tokens of one micro-batch, padding included.", low=16)
    grad_accumulation: int = _option(1, "Micro-batches of one step.", low=1)
    learning_rate: float = _option(1e-3, "Highest learning rate.")
    warmup_steps: int = _option(50, "Steps of linear warm-up.", low=0)
    weight_decay: float = _option(0.01, "AdamW's.")
    max_grad_norm: float = _option(1.0, "Gradients are clipped to this norm.")
    num_steps: int | None = _option(None, "Steps in all; else --epochs decides.", low=1)
    epochs: float = _option(3.0, "Passes over the data.")
    max_minutes: float | None = _option(None, "Stop at a checkpoint then; go on by running again.")
    checkpoint_steps: int = _option(50, "Steps between two checkpoints.", low=1)
    eval_steps: int = _option(200, "Steps between two evaluations.", low=1)
    held_out: float = _option(0.04, "Share of prompts kept for evaluation.")
    eval_answers: int = _option(200, "Held-out answers evaluated at most.", low=1)
    data_curve: bool = _option(False, "Also train shortly on 1/4 and 1/2 of the data.")

    # Export
    slim: bool = _option(False, "Also write OUT/draft-slim, without the target's embeddings.")
    target_name: str | None = _option(None, "The target's name in the draft's config.")
    dry_run: bool = _option(False, "Say what would be done, and do nothing.")

    def __post_init__(self) -> None:
        for name in ("target", "out"):
            if not getattr(self, name):
                raise ConfigError(f"{name} must be given")
        for entry in dataclasses.fields(self):
            low, value = entry.metadata.get("low"), getattr(self, entry.name)
            if low is not None and value is not None and value < low:
                raise ConfigError(f"{entry.name} must be at least {low}, got {value}")
        self._check_choices()
        self._check_numbers()

    def _check_choices(self) -> None:
        choices = {
            "only": (None, *PHASES),
            "loss": LOSSES,
            "embeddings": EMBEDDINGS,
            "train_dtype": NUMBER_TYPES,
            "teacher_dtype": NUMBER_TYPES,
            "dtype": NUMBER_TYPES,
        }
        for name, allowed in choices.items():
            value = getattr(self, name)
            if value not in allowed:
                names = ", ".join(str(a) for a in allowed if a)
                raise ConfigError(f"{name} must be one of {names}, got {value!r}")
        students = {"layers": self.layers, "new": self.new, "from": self.start_from}
        given = [name for name, value in students.items() if value is not None]
        if len(given) > 1:
            raise ConfigError(f"give one of layers, new and from, got {' and '.join(given)}")
        vocab = self.output_vocab
        if vocab not in ("all", "auto") and not vocab.isdecimal():
            raise ConfigError(f"output_vocab must be a number, all or auto, got {vocab!r}")

    def _check_numbers(self) -> None:
        names = ("self_share", "follow_up_share", "greedy_share", "prompt_weight")
        for name in (*names, "on_policy_share", "on_policy_start"):
            _within(name, getattr(self, name), 0, 1)
        _within("held_out", self.held_out, 0.0001, 0.5)
        _within("templates", self.templates, 0, 1e6)
        for name in ("learning_rate", "max_grad_norm", "epochs"):
            _within(name, getattr(self, name), 1e-9, 1e9)
        low, high = _pair("temperatures", self.temperatures)
        _within("temperatures", low, 0.01, 2)
        _within("temperatures", high, low, 2)
        low, high = _pair("max_new_tokens", self.max_new_tokens)
        _within("max_new_tokens", low, 1, high)
        if not self.prompts and not self.documents and not self.templates and self.self_share < 1:
            raise ConfigError("templates must be above 0 when there are no prompts and documents")

    @property
    def out_folder(self) -> Path:
        """Folder of the run."""
        return Path(self.out).expanduser()

    @property
    def data_folder(self) -> Path:
        """Folder of prompts and answers."""
        return Path(self.data).expanduser() if self.data else self.out_folder / "data"

    def part(self, names: tuple[str, ...]) -> dict[str, Any]:
        """The named fields as plain data that JSON keeps."""
        values = {name: getattr(self, name) for name in names}
        return {n: list(v) if isinstance(v, tuple) else v for n, v in values.items()}

    @classmethod
    def from_values(cls, values: Mapping[str, Any]) -> DistillSettings:
        """From plain data (YAML, options): strict; lists may be written ``a,b``, - is _."""
        renamed = {str(k).replace("-", "_"): v for k, v in values.items()}
        if "from" in renamed:
            renamed["start_from"] = renamed.pop("from")
        kinds = {f.name: str(f.type) for f in dataclasses.fields(cls)}
        plain = {k: _plain(k, v, kinds.get(k, "")) for k, v in renamed.items()}
        return from_mapping(cls, plain)


def _plain(name: str, value: Any, kind: str) -> Any:
    """``"0.5,1"`` for a list of numbers; a number for a text; one entry for a list."""
    if kind.startswith("tuple[") and not isinstance(value, (list, tuple)):
        inner = kind.split("[")[1].split(",")[0]
        if inner == "str":
            return [value]
        try:
            numbers = [float(part) for part in str(value).split(",")]
        except ValueError:
            raise ConfigError(f"{name} must be numbers with commas, got {value!r}") from None
        return [int(n) if inner == "int" and n == int(n) else n for n in numbers]
    if kind.startswith("str") and isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    return value


def _within(name: str, value: float, low: float, high: float) -> None:
    if not low <= value <= high:
        raise ConfigError(f"{name} must be between {low} and {high}, got {value}")


def _pair(name: str, values: tuple[Any, ...]) -> tuple[Any, Any]:
    if len(values) not in (1, 2):
        raise ConfigError(f"{name} must be one number or two, got {list(values)}")
    return values[0], values[-1]


def check_same(there: Mapping[str, Any], now: Mapping[str, Any], what: str, advice: str) -> None:
    """Raise ConfigError naming the first field in which what is on disk differs from now."""
    for name in sorted({*there, *now}):
        if there.get(name) != now.get(name):
            raise ConfigError(
                f"{what} was made with {name} {there.get(name)!r}, now it is "
                f"{now.get(name)!r}; {advice}"
            )
