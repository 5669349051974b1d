"""The student: a transformers model with logits over some tokens only, ready to be trained.

Three beginnings: layers of the target, a smaller fresh model of the same family, or a
checkpoint. Works with any decoder family whose layers stand in one list. Knows no data.
Called by ``training`` and ``estimate``; trained by ``train``, written by ``export``.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors import safe_open
from safetensors.torch import load_file
from torch import Tensor, nn

from specdist.distill.logit_rule import rule_of
from specdist.distill.settings import DistillSettings
from specdist.distill.teacher import Teacher
from specdist.engine.loader import OUTPUT_IDS
from specdist.errors import ConfigError, ModelError
from specdist.models.resolve import resolve_model

NEW_FIELDS = {
    "hidden": "hidden_size",
    "layers": "num_hidden_layers",
    "heads": "num_attention_heads",
    "kv_heads": "num_key_value_heads",
    "ffn": "intermediate_size",
    "head_dim": "head_dim",
}
WEIGHTS = "model.safetensors"


class Student(nn.Module):
    """The model, which tokens its head's rows stand for, and what of it is trained."""

    output_token_ids: Tensor | None  # int64 [outputs], sorted; None: all tokens

    def __init__(self, model: Any, output_token_ids: Tensor | None, frozen: bool) -> None:
        super().__init__()
        self.model = model
        self.config = model.config
        self.rule = rule_of(model.config.get_text_config())
        self.register_buffer("output_token_ids", output_token_ids)
        self.has_target_embeddings = frozen
        model.requires_grad_(True)
        model.get_input_embeddings().requires_grad_(not frozen)

    def states(self, inputs: Tensor) -> Tensor:
        """Last hidden states.  # [batch, length] -> [batch, length, width]

        Right padding needs no mask: under causal attention nothing looks at it.
        """
        output = self.model.base_model(input_ids=inputs, use_cache=False)
        states: Tensor = output.last_hidden_state
        return states

    def logits(self, states: Tensor) -> Tensor:
        """Logits over the outputs.  # [rows, width] -> [rows, outputs] float32"""
        return self.rule.apply(self.model.get_output_embeddings()(states).float())

    @property
    def num_outputs(self) -> int:
        """Rows of the head."""
        return int(self.model.get_output_embeddings().weight.shape[0])

    @property
    def max_len(self) -> int:
        """The longest sequence that the model can read."""
        return int(self.config.get_text_config().max_position_embeddings)

    def trained(self) -> list[tuple[str, nn.Parameter]]:
        """Names and parameters that training changes."""
        return [(n, p) for n, p in self.model.named_parameters() if p.requires_grad]


def build_student(
    settings: DistillSettings, teacher: Teacher, output_token_ids: Tensor | None
) -> Student:
    """The student that the settings ask for, in float32, on the teacher's device.

    ``output_token_ids``: the outputs, None for all tokens. A checkpoint keeps its own
    when ``output_vocab`` is auto.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(settings.seed)
        if settings.start_from is not None:
            student = _from_checkpoint(settings, teacher, output_token_ids)
        else:
            student = _from_target(settings, teacher, output_token_ids)
    return student.to(teacher.device)


def layer_numbers(settings: DistillSettings, config: Any) -> tuple[int, ...]:
    """The target's layers to start from: those asked for, else four, evenly spread."""
    total = config.num_hidden_layers
    if settings.layers is None:
        count = min(4, max(1, total // 2))
        return tuple(round(i * (total - 1) / max(1, count - 1)) for i in range(count))
    wrong = [i for i in settings.layers if not 0 <= i < total]
    if wrong:
        raise ConfigError(f"layers must be from 0 to {total - 1}, got {wrong[0]}")
    return settings.layers


def student_config(settings: DistillSettings, target: Any) -> Any:
    """The config of a student that does not come from a checkpoint."""
    config = copy.deepcopy(target)
    config.tie_word_embeddings = False
    if settings.new is None:
        _keep_layers(config, layer_numbers(settings, target))
        return config
    sizes = parse_new(settings.new)
    if "layers" in sizes:
        numbers = [i % target.num_hidden_layers for i in range(sizes["layers"])]
        _keep_layers(config, numbers)
    hidden = sizes.get("hidden", target.hidden_size)
    heads = sizes.get("heads", target.num_attention_heads)
    if hidden % heads and "head_dim" not in sizes:
        raise ConfigError(f"new: hidden {hidden} must be a multiple of heads {heads}")
    groups = max(1, target.num_attention_heads // (target.num_key_value_heads or 1))
    ratio = target.intermediate_size / target.hidden_size
    sizes.setdefault("kv_heads", max(1, heads // groups))
    sizes.setdefault("ffn", max(32, round(hidden * ratio / 32) * 32))
    sizes.setdefault("head_dim", hidden // heads)
    if heads % sizes["kv_heads"]:
        raise ConfigError(f"new: heads {heads} must be a multiple of kv_heads {sizes['kv_heads']}")
    for name, value in sizes.items():
        if hasattr(config, NEW_FIELDS[name]) and name != "layers":
            setattr(config, NEW_FIELDS[name], value)
    return config


def parse_new(text: str) -> dict[str, int]:
    """``hidden=256,layers=4,heads=4`` as numbers."""
    sizes: dict[str, int] = {}
    for part in text.split(","):
        name, _, value = part.strip().partition("=")
        if name not in NEW_FIELDS or not value.isdecimal() or int(value) < 1:
            raise ConfigError(f"new must be NAME=NUMBER of {', '.join(NEW_FIELDS)}, got {part!r}")
        sizes[name] = int(value)
    return sizes


def _keep_layers(config: Any, numbers: Sequence[int]) -> None:
    """Fewer layers; every list with an entry for each layer goes with them."""
    total = config.num_hidden_layers
    for name, value in config.to_dict().items():
        if isinstance(value, list) and len(value) == total:
            setattr(config, name, [value[i] for i in numbers])
    config.num_hidden_layers = len(numbers)


def _from_target(settings: DistillSettings, teacher: Teacher, ids: Tensor | None) -> Student:
    config = student_config(settings, teacher.config)
    frozen = shares_embeddings(settings, config, teacher)
    model = new_model(config, ids)
    copied = settings.new is None
    if copied:
        _copy_layers(model, teacher.model, layer_numbers(settings, teacher.config))
    same_width = config.hidden_size == teacher.width
    if same_width:
        head = teacher.head.weight if ids is None else teacher.head.weight[ids]
        model.get_output_embeddings().weight.data.copy_(head)
        model.get_input_embeddings().weight.data.copy_(_embeddings(teacher))
    else:
        reduced = principal_rows(_embeddings(teacher), config.hidden_size)
        model.get_input_embeddings().weight.data.copy_(reduced)
    return Student(model, ids, frozen)


def shares_embeddings(settings: DistillSettings, config: Any, teacher: Teacher) -> bool:
    """Whether the student looks tokens up in the target's own, frozen embeddings."""
    fits = config.hidden_size == _embeddings(teacher).shape[1]
    if settings.embeddings == "target" and not fits:
        raise ConfigError(
            f"embeddings target needs a student of width {_embeddings(teacher).shape[1]}, "
            f"got {config.hidden_size}"
        )
    return fits and settings.embeddings != "own"


def _embeddings(teacher: Teacher) -> Tensor:
    weight: Tensor = teacher.model.get_input_embeddings().weight
    return weight


def new_model(config: Any, ids: Tensor | None) -> Any:
    """A fresh model in float32 whose head has one row for each output."""
    model: Any = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    if ids is not None:
        old = model.get_output_embeddings()
        head = nn.Linear(old.in_features, len(ids), bias=old.bias is not None)
        nn.init.normal_(head.weight, std=getattr(config, "initializer_range", 0.02))
        model.set_output_embeddings(head)
    return model


def layer_list(model: Any) -> nn.ModuleList:
    """The model's layers, wherever its family keeps them."""
    total = model.config.get_text_config().num_hidden_layers
    for module in model.base_model.modules():
        if isinstance(module, nn.ModuleList) and len(module) == total:
            return module
    raise ModelError(f"{type(model).__name__} keeps its layers in no list: use --new")


@torch.no_grad()
def _copy_layers(model: Any, target: Any, numbers: Sequence[int]) -> None:
    """Layers by number, and all that stands outside of the layers (norms)."""
    mine, theirs = layer_list(model), layer_list(target)
    for layer, number in zip(mine, numbers, strict=True):
        layer.load_state_dict(theirs[number].state_dict())
    inside = {id(p) for p in mine.parameters()}
    known = dict(target.base_model.named_parameters())
    for name, parameter in model.base_model.named_parameters():
        if id(parameter) not in inside and name in known:
            parameter.copy_(known[name])


@torch.no_grad()
def principal_rows(embeddings: Tensor, width: int) -> Tensor:
    """Embeddings in fewer dimensions that keep the most of their differences."""
    rows = embeddings.float()
    _, axes = torch.linalg.eigh(rows.T @ rows)
    most = min(width, rows.shape[1])
    reduced = rows @ axes[:, -most:]
    return torch.nn.functional.pad(reduced, (0, width - most))


# -- from a checkpoint ----------------------------------------------------------------------


def read_checkpoint(folder: Path) -> tuple[Any, Tensor | None]:
    """A trainable model out of a folder, and its outputs; None: all tokens."""
    config = transformers.AutoConfig.from_pretrained(folder, trust_remote_code=False)
    weights = folder / WEIGHTS
    ids = None
    if weights.is_file():
        with safe_open(weights, framework="pt") as file:
            ids = file.get_tensor(OUTPUT_IDS) if OUTPUT_IDS in file.keys() else None  # noqa: SIM118
    if ids is None:
        model: Any = transformers.AutoModelForCausalLM.from_pretrained(
            folder, dtype=torch.float32, use_safetensors=True, trust_remote_code=False
        )
        return model, None
    model = new_model(config, ids)
    state: Mapping[str, Tensor] = {
        name: value.float() for name, value in load_file(weights).items() if name != OUTPUT_IDS
    }
    model.load_state_dict(state, strict=True)
    return model, ids


def _from_checkpoint(settings: DistillSettings, teacher: Teacher, ids: Tensor | None) -> Student:
    model, own = read_checkpoint(resolve_model(settings.start_from or ""))
    config = model.config.get_text_config()
    if config.vocab_size < teacher.config.vocab_size:
        raise ConfigError(
            f"from: {settings.start_from} has {config.vocab_size} tokens, "
            f"the target {teacher.config.vocab_size}"
        )
    frozen = shares_embeddings(settings, config, teacher)
    if frozen:
        model.get_input_embeddings().weight.data.copy_(_embeddings(teacher))
    if settings.output_vocab == "auto":
        return Student(model, own, frozen)
    return Student(_with_outputs(model, own, ids, teacher), ids, frozen)


@torch.no_grad()
def _with_outputs(model: Any, own: Tensor | None, ids: Tensor | None, teacher: Teacher) -> Any:
    """The same model with other outputs: rows that both have are kept, others the target's."""
    old = model.get_output_embeddings()
    total = teacher.config.vocab_size
    wanted = torch.arange(total) if ids is None else ids
    known = torch.arange(old.out_features) if own is None else own
    head = nn.Linear(old.in_features, len(wanted), bias=old.bias is not None)
    if head.in_features == teacher.width:
        head.weight.copy_(teacher.head.weight[wanted])
    place = {int(token): row for row, token in enumerate(known)}
    shared = [(row, place[int(t)]) for row, t in enumerate(wanted) if int(t) in place]
    to, source = (torch.tensor(side, dtype=torch.int64) for side in zip(*shared, strict=True))
    head.weight[to] = old.weight[source]
    if head.bias is not None:
        head.bias[to] = old.bias[source]
    model.set_output_embeddings(head)
    model.config.tie_word_embeddings = False
    return model
