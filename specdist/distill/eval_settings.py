"""What ``specdist eval-draft`` is asked: drafts, shapes of trees, and how the target answers.

Reads the command line's short forms (``chain:4``, ``tree:16:8``, ``NAME+ngram``) and refuses
what cannot be measured. Knows no model and loads no torch. Called by ``eval_draft`` and the
command line.
"""

from __future__ import annotations

from dataclasses import dataclass

from specdist.config import DRAFTERS, DTYPES, RULES, AppConfig, EngineConfig, SpeculationConfig
from specdist.config import RulesConfig as Rules
from specdist.errors import ConfigError
from specdist.protocol.request import SamplingParams

NGRAM = "ngram"
SHAPE_FORMS = "chain:LENGTH or tree:NODES[:DEPTH]"
DEFAULT_DEPTH = SpeculationConfig().num_speculative_tokens


@dataclass(frozen=True, slots=True)
class TreeShape:
    """How many candidates a target step verifies, and how deep they reach."""

    kind: str  # chain or tree
    num_nodes: int
    depth: int

    @classmethod
    def parse(cls, text: str) -> TreeShape:
        """``chain:4``, ``tree:16`` (as deep as the service's default) or ``tree:16:8``."""
        kind, *numbers = text.strip().split(":")
        sizes = [int(n) if n.isdecimal() else 0 for n in numbers]
        if (kind, len(sizes)) not in {("chain", 1), ("tree", 1), ("tree", 2)} or min(sizes) < 1:
            raise ConfigError(
                f"trees must be a list of {SHAPE_FORMS} with numbers from 1, got {text!r}"
            )
        if kind == "chain":
            return cls(kind, sizes[0], sizes[0])
        return cls(kind, sizes[0], min(sizes[-1] if len(sizes) == 2 else DEFAULT_DEPTH, sizes[0]))

    @property
    def name(self) -> str:
        """The short form; the depth stands in it unless it is the service's default."""
        usual = self.kind == "chain" or self.depth == min(DEFAULT_DEPTH, self.num_nodes)
        return f"{self.kind}:{self.num_nodes}" + ("" if usual else f":{self.depth}")

    def speculation(self, drafters: tuple[str, ...]) -> SpeculationConfig:
        """The service's settings: nothing chooses sizes, no tree grows ahead, nothing waits."""
        return SpeculationConfig(
            mode="fixed" if self.kind == "chain" else "tree",
            num_speculative_tokens=self.depth,
            max_tree_nodes=self.num_nodes,
            drafters=drafters,
            draft_ahead=False,
            max_wait_s=0.0,
        )


@dataclass(frozen=True, slots=True)
class DraftSpec:
    """One draft as it was named: a model, prompt lookup, or both in one tree."""

    name: str
    model: str | None  # None: no model drafts
    has_ngram: bool

    @classmethod
    def parse(cls, text: str) -> DraftSpec:
        """``ngram``, ``MODEL`` or ``MODEL+ngram``."""
        model, plus, rest = text.rpartition("+")
        if text == NGRAM:
            return cls(text, None, True)
        if plus and rest == NGRAM and model not in ("", NGRAM):
            return cls(text, model, True)
        if not text or text.endswith(f"+{NGRAM}"):
            raise ConfigError(f"a draft must be a model, ngram or MODEL+ngram, got {text!r}")
        return cls(text, text, False)

    @property
    def drafters(self) -> tuple[str, ...]:
        """The names that the settings of speculation use."""
        used = {"draft_model": self.model is not None, NGRAM: self.has_ngram}
        return tuple(name for name in DRAFTERS if used[name])


@dataclass(frozen=True, slots=True)
class EvalSettings:
    """How the target answers and how drafts are tried."""

    target: str = "demo"
    max_tokens: int = 128
    temperatures: tuple[float, ...] = (0.0, 0.8)
    top_p: float = 1.0
    rule: str = "coupled"
    shapes: tuple[TreeShape, ...] = ()
    concurrency: int = 8
    dtype: str = "auto"
    device: str = "cpu"
    num_threads: int | None = None  # torch threads; None: all cores
    seed: int = 0  # prompt number i is answered with seed + i

    def __post_init__(self) -> None:
        for name in ("max_tokens", "concurrency"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} must be at least 1, got {getattr(self, name)}")
        if not self.temperatures or not all(0 <= t <= 2 for t in self.temperatures):
            raise ConfigError(f"temperatures must be numbers from 0 to 2, got {self.temperatures}")
        if len({*self.temperatures}) < len(self.temperatures):
            raise ConfigError(f"temperatures must differ from each other, got {self.temperatures}")
        if not 0 < self.top_p <= 1:
            raise ConfigError(f"top_p must be above 0 and at most 1, got {self.top_p}")
        for name, allowed in (("rule", RULES), ("dtype", DTYPES)):
            if getattr(self, name) not in allowed:
                raise ConfigError(
                    f"{name} must be one of {', '.join(allowed)}, got {getattr(self, name)!r}"
                )
        if not self.shapes or len({*self.shapes}) < len(self.shapes):
            names = ", ".join(s.name for s in self.shapes)
            raise ConfigError(f"trees must be different shapes, at least one, got {names!r}")

    def check_drafts(self, drafts: tuple[DraftSpec, ...]) -> None:
        """Refuse an empty or double list, and prompt lookup under rules that cannot use it."""
        from specdist.speculation.rules.registry import get_rule  # loads torch: not for --help

        names = [draft.name for draft in drafts]
        if not names or len({*names}) < len(names):
            raise ConfigError(f"drafts must be different ones, at least one, got {names}")
        lookup = [draft.name for draft in drafts if draft.has_ngram]
        if lookup and get_rule(self.rule).needs_draft_probs:
            raise ConfigError(
                f"rule {self.rule!r} admits only candidates drawn from a draft model's law: "
                f"it cannot be used with {lookup[0]!r}"
            )

    def sampling(self, temperature: float, seed: int = 0) -> SamplingParams:
        """What a client would ask for."""
        return SamplingParams(
            max_tokens=self.max_tokens, temperature=temperature, top_p=self.top_p, seed=seed
        )

    @property
    def engine(self) -> EngineConfig:
        """Either model's engine; its cache is sized when the prompts are known."""
        return EngineConfig(
            device=self.device,
            dtype=self.dtype,
            num_threads=self.num_threads,
            max_num_sequences=self.concurrency,
        )

    def app(self, speculation: SpeculationConfig) -> AppConfig:
        """The settings that both workers read."""
        return AppConfig(
            target=self.engine,
            draft=self.engine,
            speculation=speculation,
            rules=Rules(allow_lossy=True),  # the rule is this command's own argument
        )


def parse_shapes(text: str) -> tuple[TreeShape, ...]:
    """A comma-separated list of shapes."""
    return tuple(TreeShape.parse(part) for part in text.split(","))


def parse_temperatures(text: str) -> tuple[float, ...]:
    """A comma-separated list of numbers."""
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        raise ConfigError(f"temperatures must be numbers such as 0,0.8, got {text!r}") from None
