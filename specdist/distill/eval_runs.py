"""The measurements of an evaluation: a target with its prompts, and what drafts do for it.

Answers the prompts plainly once for each temperature, then with every draft and shape, on the
service's own workers. Puts nothing in words. Called by ``eval_draft`` and by
``benchmarks/offline_vs_served.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial

from specdist.api.tokenizer import Tokenizer
from specdist.config import SpeculationConfig
from specdist.distill import eval_prompts
from specdist.distill.eval_acceptance import (
    Difference,
    MeasuredPair,
    ObservedEngine,
    acceptance,
    difference,
)
from specdist.distill.eval_agreement import AgreementSums, Answered, add_answer
from specdist.distill.eval_cost import measure_cost
from specdist.distill.eval_models import Checked, load_engine
from specdist.distill.eval_prompts import EvalPrompt, Fitted
from specdist.distill.eval_report import AgreementReport, Run
from specdist.distill.eval_settings import DraftSpec, EvalSettings, TreeShape
from specdist.distill.offline_pair import Answer, OfflinePair
from specdist.errors import InternalError
from specdist.models.progress import Progress
from specdist.protocol.request import SessionRequest
from specdist.speculation.cost_model import CostModel

LAW_TEMPERATURE = 1.0  # overlaps are told at this one too: the models' own laws
TREE_SLACK = 4  # a growing tree has rows of nodes that are not offered


class TargetRuns:
    """The target, its prompts and its plain answers."""

    def __init__(
        self, settings: EvalSettings, target: Checked, fitted: Fitted, progress: Progress
    ) -> None:
        self.settings = settings
        self.prompts: list[EvalPrompt] = []
        self.plain: dict[float, list[Answered]] = {}
        self._fitted = fitted
        self._progress = progress
        self.engine = self.load(target, is_draft=False)
        progress("step cost of the target", 0, 1)
        self.cost = measure_cost(self.engine)
        progress("step cost of the target", 1, 1)

    def load(self, model: Checked, is_draft: bool) -> ObservedEngine:
        """An engine with room for ``concurrency`` of the longest answers."""
        config, settings = self.settings.engine, self.settings
        widest = max(shape.num_nodes for shape in settings.shapes)
        each = self._fitted.num_tokens + TREE_SLACK * widest + 2 * config.block_size
        num_tokens = settings.concurrency * each + config.max_step_tokens
        return load_engine(model, settings, num_tokens, is_draft)

    def prepare(self, tokenizer: Tokenizer, all_turns: bool) -> None:
        """Encode the prompts and let the target answer them, at each temperature."""
        conversations = self._fitted.conversations
        self.prompts = eval_prompts.first_prompts(conversations, tokenizer)
        if all_turns:
            self.prompts += eval_prompts.later_prompts(conversations, tokenizer, self._reply)
        for temperature in self.settings.temperatures:
            phase = f"plain answers at temperature {temperature:g}"
            answers = self._answer_plain(self.prompts, temperature, phase)
            self.plain[temperature] = [
                Answered(p.name, p.category, p.token_ids, tuple(a.tokens))
                for p, a in zip(self.prompts, answers, strict=True)
            ]

    def _reply(self, prompts: list[EvalPrompt]) -> list[list[int]]:
        """The greedy answers that stand between two turns of a chat."""
        phase = f"answers to earlier turns: {prompts[0].name} and on"
        return [answer.tokens for answer in self._answer_plain(prompts, 0.0, phase)]

    def _answer_plain(
        self, prompts: Sequence[EvalPrompt], temperature: float, phase: str
    ) -> list[Answer]:
        pair = OfflinePair(
            self.settings.app(SpeculationConfig(mode="off")), self.engine, None, self.cost
        )
        requests = self._requests(prompts, temperature, speculate=False)
        return pair.answer_all(
            requests, self.settings.concurrency, self._on_done(phase, len(requests))
        )

    def agreement(self, draft: ObservedEngine, temperature: float, name: str) -> AgreementReport:
        """At the plain answers of one temperature."""
        laws = sorted({*self.settings.temperatures, LAW_TEMPERATURE})
        sums: dict[str, AgreementSums] = {}
        plain = self.plain[temperature]
        on_done = self._on_done(f"{name}: agreement at temperature {temperature:g}", len(plain))
        for number, answered in enumerate(plain, 1):
            if answered.category not in sums:
                sums[answered.category] = AgreementSums(laws, self.settings.top_p)
            add_answer(self.engine, draft, answered, sums[answered.category])
            on_done(number)
        overall = AgreementSums(laws, self.settings.top_p)
        for part in sums.values():
            overall.merge(part)
        categories = {category: part.means() for category, part in sums.items()}
        return AgreementReport(temperature, overall.means(), categories)

    def run(
        self,
        spec: DraftSpec,
        draft: ObservedEngine | None,
        draft_cost: CostModel | None,
        temperature: float,
        shape: TreeShape,
    ) -> Run:
        """Answer every prompt with candidates of one shape."""
        requests = self._requests(self.prompts, temperature)
        categories = {
            request.session_id: prompt.category
            for request, prompt in zip(requests, self.prompts, strict=True)
        }
        config = self.settings.app(shape.speculation(spec.drafters))
        pair = MeasuredPair(config, self.engine, draft, copy_cost(self.cost), categories)
        phase = f"{spec.name}: {shape.name} at temperature {temperature:g}"
        answers = pair.answer_all(
            requests, self.settings.concurrency, self._on_done(phase, len(requests))
        )
        trouble = pair.take_draft_trouble()
        if trouble.get("failed"):
            raise InternalError(f"{phase}: {trouble['failed']} draft steps failed, see the log")
        tallies = {c: pair.tallies[c] for c in dict.fromkeys(categories.values())}
        figures = partial(
            acceptance,
            depth=shape.depth,
            drafter_s=pair.drafter_s,
            target=self.cost,
            draft=draft_cost,
        )
        return Run(
            temperature=temperature,
            shape=shape.name,
            overall=figures([*tallies.values()]),
            categories={category: figures([tally]) for category, tally in tallies.items()},
            differences=tuple(self._differences(requests, answers, temperature)),
            trouble=trouble,
        )

    def _differences(
        self, requests: Sequence[SessionRequest], answers: Sequence[Answer], temperature: float
    ) -> Iterable[Difference]:
        """From plain answers; only where the rule promises the same tokens, not just their law."""
        if temperature > 0 and self.settings.rule != "coupled":
            return
        for request, answer, plain in zip(requests, answers, self.plain[temperature], strict=True):
            found = difference(self.engine, plain, answer.tokens, request.sampling)
            if found is not None:
                yield found

    def _requests(
        self, prompts: Sequence[EvalPrompt], temperature: float, speculate: bool = True
    ) -> list[SessionRequest]:
        settings = self.settings
        return [
            SessionRequest(
                session_id=f"prompt {i}",
                committed=prompt.token_ids,
                num_prompt_tokens=len(prompt.token_ids),
                sampling=settings.sampling(temperature, settings.seed + i),
                rule=settings.rule,
                speculate=speculate,
            )
            for i, prompt in enumerate(prompts)
        ]

    def _on_done(self, phase: str, total: int) -> Callable[[int], None]:
        self._progress(phase, 0, total)
        return lambda done: self._progress(phase, done, total)


def copy_cost(cost: CostModel) -> CostModel:
    """Workers go on measuring in a model of their own: the predictions keep one curve."""
    return CostModel.from_dict(cost.to_dict())
