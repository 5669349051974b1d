"""Every setting of specdist: frozen, typed, checked strictly when read from a mapping.

``AppConfig.from_mapping`` is what the ``args`` of serve_config.yaml go through. An
unknown key is an error that names the nearest known one; a value of the wrong type or
out of range names the setting, the value and what is allowed. Knows no torch, no Ray.
"""

from __future__ import annotations

import dataclasses
import difflib
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from specdist.errors import ConfigError

T = TypeVar("T")

LOSSLESS_RULES = ("coupled", "rejection", "traversal")
RULES = (*LOSSLESS_RULES, "typical")
MODES = ("adaptive", "tree", "fixed", "off")
DTYPES = ("auto", "float32", "bfloat16", "float16")
DRAFTERS = ("draft_model", "ngram")


def from_mapping(kind: type[T], values: Mapping[str, Any], where: str = "") -> T:
    """Build a settings dataclass from plain data; every problem is a ConfigError."""
    if not isinstance(values, Mapping):
        raise ConfigError(f"{where or 'settings'} must be a mapping, got {values!r}")
    hints = typing.get_type_hints(kind)
    known = [f.name for f in dataclasses.fields(kind)]  # type: ignore[arg-type]
    for key in values:
        if key not in known:
            near = difflib.get_close_matches(str(key), known, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else f"; known: {', '.join(known)}"
            raise ConfigError(f"unknown setting {_dotted(where, key)!r}{hint}")
    converted = {k: _convert(hints[k], v, _dotted(where, k)) for k, v in values.items()}
    try:
        return kind(**converted)
    except ConfigError as error:
        raise ConfigError(f"{where}: {error.message}" if where else error.message) from None


def _dotted(where: str, key: object) -> str:
    return f"{where}.{key}" if where else str(key)


def _convert(kind: Any, value: Any, where: str) -> Any:
    origin = typing.get_origin(kind)
    if origin in (typing.Union, types.UnionType):
        if value is None:
            return None
        inner = next(a for a in typing.get_args(kind) if a is not type(None))
        return _convert(inner, value, where)
    if dataclasses.is_dataclass(kind):
        return from_mapping(typing.cast(type, kind), value, where)
    if origin is tuple:
        if not isinstance(value, (list, tuple)):
            raise ConfigError(f"{where} must be a list, got {value!r}")
        inner = typing.get_args(kind)[0]
        return tuple(_convert(inner, v, f"{where}[{i}]") for i, v in enumerate(value))
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if not isinstance(value, kind) or (kind is not bool and isinstance(value, bool)):
        raise ConfigError(f"{where} must be of type {kind.__name__}, got {value!r}")
    return value


def _at_least(name: str, value: float | None, low: float) -> None:
    if value is not None and not value >= low:
        raise ConfigError(f"{name} must be at least {low}, got {value}")


def _one_of(name: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise ConfigError(f"{name} must be one of {', '.join(allowed)}, got {value!r}")


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """One model on one device."""

    model: str = "demo"  # "demo", "demo-draft", a local folder or a hub id
    device: str = "cpu"
    dtype: str = "auto"  # auto: bfloat16 where the device multiplies it natively, else float32
    num_threads: int | None = None  # torch threads; None: all cores
    block_size: int = 16  # tokens per KV block
    kv_cache_bytes: int | None = None  # None: kv_cache_fraction of the free memory
    kv_cache_fraction: float = 0.25
    max_model_len: int | None = None  # None: what the model's config says
    max_num_sequences: int = 64  # sequences that hold KV at the same time
    max_step_tokens: int = 512  # token rows in one forward pass
    max_prefill_chunk: int = 256  # prompt tokens of one sequence in one forward pass
    prefix_cache: bool = True

    def __post_init__(self) -> None:
        _one_of("dtype", self.dtype, DTYPES)
        for name in ("num_threads", "block_size", "max_model_len", "max_num_sequences"):
            _at_least(name, getattr(self, name), 1)
        for name in ("kv_cache_bytes", "max_step_tokens", "max_prefill_chunk"):
            _at_least(name, getattr(self, name), 1)
        if not 0 < self.kv_cache_fraction <= 0.95:
            raise ConfigError(
                f"kv_cache_fraction must be above 0 and at most 0.95, got {self.kv_cache_fraction}"
            )


@dataclass(frozen=True, slots=True)
class SpeculationConfig:
    """How candidates are made and how many; tunable at run time through user_config."""

    mode: str = "adaptive"
    num_speculative_tokens: int = 5  # longest path proposed (gamma)
    max_tree_nodes: int = 16  # candidates per verification, root excluded
    max_children: int = 4  # widest a node may branch
    drafters: tuple[str, ...] = DRAFTERS
    ngram_max: int = 4  # longest suffix that prompt lookup matches
    ngram_min: int = 2
    draft_ahead: bool = True  # grow the tree while the target verifies
    draft_ahead_nodes: int = 16  # nodes grown beyond what was offered
    max_wait_s: float = 0.25  # the target never waits longer for candidates on their way
    noise_trust: float = 1.0  # lambda in log q + lambda * noise at start; fitted online

    def __post_init__(self) -> None:
        _one_of("mode", self.mode, MODES)
        for drafter in self.drafters:
            _one_of("drafters", drafter, DRAFTERS)
        for name in ("num_speculative_tokens", "max_tree_nodes", "max_children", "ngram_min"):
            _at_least(name, getattr(self, name), 1)
        _at_least("ngram_max", self.ngram_max, self.ngram_min)
        for name in ("draft_ahead_nodes", "max_wait_s", "noise_trust"):
            _at_least(name, getattr(self, name), 0)


@dataclass(frozen=True, slots=True)
class RulesConfig:
    """Which verification rules a request may ask for."""

    default: str = "coupled"
    allow_lossy: bool = False
    typical_epsilon: float = 0.3
    typical_delta: float = 0.09

    def __post_init__(self) -> None:
        _one_of("default", self.default, RULES)
        if self.default not in LOSSLESS_RULES and not self.allow_lossy:
            raise ConfigError(f"default rule {self.default!r} is lossy: set allow_lossy to use it")


@dataclass(frozen=True, slots=True)
class RouterConfig:
    """One request's life outside the models."""

    max_waiting_requests: int = 256  # requests in flight per router replica before refusing
    max_answer_s: float = 600.0  # the longest a request may take
    open_timeout_s: float = 60.0  # waiting for a target replica to take a session
    draft_retry_s: float = 1.0  # pause before a lost draft is tried again
    default_max_tokens: int | None = None  # None: what the context still holds

    def __post_init__(self) -> None:
        _at_least("max_waiting_requests", self.max_waiting_requests, 1)
        _at_least("default_max_tokens", self.default_max_tokens, 1)
        for name in ("max_answer_s", "open_timeout_s", "draft_retry_s"):
            _at_least(name, getattr(self, name), 0.001)


@dataclass(frozen=True, slots=True)
class AppConfig:
    """The whole application: the ``args`` of serve_config.yaml."""

    served_model_name: str = "smollm2-135m-instruct"
    target: EngineConfig = field(default_factory=EngineConfig)
    draft: EngineConfig = field(default_factory=lambda: EngineConfig(model="demo-draft"))
    speculation: SpeculationConfig = field(default_factory=SpeculationConfig)
    rules: RulesConfig = field(default_factory=RulesConfig)
    router: RouterConfig = field(default_factory=RouterConfig)

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> AppConfig:
        """Check and build the settings; raises ConfigError."""
        config = from_mapping(cls, values)
        if "draft" in values and "model" not in values["draft"]:
            draft = dataclasses.replace(config.draft, model="demo-draft")
            config = dataclasses.replace(config, draft=draft)
        return config
