"""Phase 2: shard after shard of prompts, answered by the target.

What a shard asks depends on (settings, pool, seed, its number) and, for follow-ups, on the
texts of the shard ``LAG`` before it, so that the engine's batch is never empty between two
shards. A shard is written when its last answer is complete; after a kill the unfinished
ones are made again. Called by ``pipeline``.
"""

from __future__ import annotations

import logging
import random
from collections import Counter, deque
from dataclasses import dataclass, field

import numpy as np
from torch import Tensor

from specdist.distill.answering import Ask, Reply
from specdist.distill.chat_opening import (
    bare_opening,
    draw_words,
    opening_ids,
    prompt_ids,
    user_turn,
)
from specdist.distill.files import read_rows, write_rows
from specdist.distill.follow_ups import Answered, follow_up
from specdist.distill.hidden_cache import HiddenCache
from specdist.distill.pool import Pool
from specdist.distill.progress import Progress
from specdist.distill.prompt_types import Prompt, from_plain, to_plain, user
from specdist.distill.prompts import FOLLOW_UP, SELF, Slot, draw_prompt, shard_slots
from specdist.distill.settings import DistillSettings
from specdist.distill.shards import (
    Example,
    first_missing,
    group_of,
    num_answer_tokens,
    shard_path,
    texts_path,
    write_shard,
)
from specdist.distill.target_engine import TargetEngine
from specdist.errors import InvalidRequestError, ModelError

log = logging.getLogger(__name__)
LAG = 2  # follow-ups are made from the answers of the shard so many before
TURN_TEMPERATURES = (0.6, 0.9)  # of user turns that the target writes; hotter, small ones rave
PHASE = "answers"


@dataclass
class _Place:
    """One slot of a shard on its way to an example."""

    slot: Slot
    name: str
    rng: random.Random
    temperature: float
    max_new_tokens: int
    seed: int
    words: str | None = None  # how the user turn begins while the target writes it
    prompt: Prompt | None = None
    example: Example | None = None
    hidden: Tensor | None = None
    answer: str = ""


@dataclass
class _Shard:
    """One shard while its prompts are answered."""

    number: int
    places: list[_Place]
    before: list[Answered]  # what follow-ups are made from, shuffled
    num_open: int
    dropped: Counter[str] = field(default_factory=Counter)

    def drop(self, reason: str) -> None:
        """Go on without one of the prompts."""
        self.dropped[reason] += 1
        self.num_open -= 1


class AnswersPhase:
    """Answers until there are enough tokens on disk."""

    def __init__(
        self,
        settings: DistillSettings,
        pool: Pool,
        target: TargetEngine,
        settings_digest: str,
        progress: Progress,
    ) -> None:
        self._settings = settings
        self._pool = pool
        self._target = target
        self._digest = settings_digest
        self._progress = progress
        self._folder = settings.data_folder
        self._cache = HiddenCache(self._folder, settings.cache_bytes)
        self._shards: dict[int, _Shard] = {}  # begun and not written, by number
        self._asked: dict[str, tuple[_Shard, _Place]] = {}
        self._waiting: deque[tuple[_Shard, _Place]] = deque()
        self._next = first_missing(self._folder)  # the shard to be begun
        self._num_written = self._next
        paths = (shard_path(self._folder, n) for n in range(self._next))
        self.num_tokens = sum(num_answer_tokens(path) for path in paths)

    def run(self) -> None:
        """Write shards until there are ``num_tokens`` answer tokens."""
        answering = self._target.answering
        self._tell()
        while True:
            while answering.num_open < self._settings.batch_size:
                ask = self._next_ask()
                if ask is None:
                    break
                answering.open(ask)
            self._write_complete()
            if not answering.num_open and not self._waiting and not self._may_begin():
                return
            for reply in answering.step():
                self._take(reply)
            self._tell()

    # -- what is asked ------------------------------------------------------------------

    def _next_ask(self) -> Ask | None:
        """The next prompt for the engine; None while there is none."""
        while True:
            if not self._waiting:
                if not self._may_begin():
                    return None
                self._begin()
            shard, place = self._waiting.popleft()
            ask = self._ask_for(shard, place)
            if ask is not None:
                self._asked[ask.name] = (shard, place)
                return ask

    def _may_begin(self) -> bool:
        """Whether another shard is wanted, and the texts that it needs are there."""
        if self._num_so_far() >= self._settings.num_tokens:
            return False
        return self._next - LAG < self._num_written

    def _num_so_far(self) -> int:
        """Answer tokens on disk and on their way."""
        places = (p for s in self._shards.values() for p in s.places)
        complete = sum(p.example.num_answer_tokens for p in places if p.example is not None)
        answers = [name for name, (_, place) in self._asked.items() if place.prompt is not None]
        return self.num_tokens + complete + sum(map(self._target.answering.num_new, answers))

    def _begin(self) -> None:
        number, self._next = self._next, self._next + 1
        slots = shard_slots(self._settings, self._pool, number)
        places = [self._place(number, index, slot) for index, slot in enumerate(slots)]
        before = self._texts_before(number)
        shard = self._shards[number] = _Shard(number, places, before, len(places))
        self._waiting += [(shard, place) for place in places]

    def _place(self, number: int, index: int, slot: Slot) -> _Place:
        settings, name = self._settings, f"{number}-{index}"
        rng = random.Random(f"{settings.seed} place {name}")
        greedy = rng.random() < settings.greedy_share
        temperature = rng.uniform(settings.temperatures[0], settings.temperatures[-1])
        most = rng.randint(settings.max_new_tokens[0], settings.max_new_tokens[-1])
        return _Place(slot, name, rng, 0.0 if greedy else temperature, most, rng.getrandbits(62))

    def _texts_before(self, number: int) -> list[Answered]:
        if number < LAG or not self._settings.follow_up_share:
            return []
        rows = read_rows(texts_path(self._folder, number - LAG))
        items = [Answered(from_plain(row["prompt"]), row["answer"]) for row in rows]
        random.Random(f"{self._settings.seed} before {number}").shuffle(items)
        return items

    def _ask_for(self, shard: _Shard, place: _Place) -> Ask | None:
        """What the engine is to continue for this place; None when the place is dropped."""
        source = place.slot.source
        if place.prompt is not None:
            return self._ask_answer(shard, place, place.prompt)
        if source == SELF:
            return self._ask_own(place)
        if source == FOLLOW_UP:
            if not shard.before:
                shard.drop("no earlier answers")
                return None
            item = shard.before[place.slot.turn % len(shard.before)]
            others = [other for other in shard.before if other is not item]
            place.prompt = follow_up(item, others, place.rng)
        else:
            place.prompt = draw_prompt(self._settings, self._pool, place.slot, place.rng)
        return self._ask_answer(shard, place, place.prompt)

    def _ask_own(self, place: _Place) -> Ask:
        """Let the target write a user turn; without a chat template, a text of its own."""
        tokenizer, opening = self._target.tokenizer, self._target.opening
        if opening is None:
            tokens = bare_opening(tokenizer, self._target.vocab_size, place.rng)
            place.prompt = Prompt(SELF, (), place.name)
            return self._ask(place, tokens)
        place.words = draw_words(place.rng)
        return Ask(
            name=place.name,
            tokens=opening_ids(tokenizer, opening, place.words),
            temperature=place.rng.uniform(*TURN_TEMPERATURES),
            max_new_tokens=self._settings.max_turn_tokens,
            seed=place.rng.getrandbits(62),
            stop_ids=opening.end_ids,
        )

    def _ask_answer(self, shard: _Shard, place: _Place, prompt: Prompt) -> Ask | None:
        if any(self._pool.exclusion.matches(m.content) for m in prompt.messages):
            shard.drop("excluded")
            return None
        try:
            tokens = prompt_ids(self._target.tokenizer, prompt)
        except InvalidRequestError:
            shard.drop("refused by the chat template")
            return None
        if not 0 < len(tokens) <= self._target.max_prompt_tokens:
            shard.drop("too long")
            return None
        return self._ask(place, tokens)

    def _ask(self, place: _Place, tokens: list[int]) -> Ask:
        return Ask(place.name, tokens, place.temperature, place.max_new_tokens, place.seed)

    # -- what comes back ----------------------------------------------------------------

    def _take(self, reply: Reply) -> None:
        shard, place = self._asked.pop(reply.name)
        start = len(reply.tokens) - reply.num_new
        if place.prompt is None:  # the user's turn is written, now it is to be answered
            self._take_turn(shard, place, reply.tokens[start:])
            return
        place.hidden = reply.hidden
        place.example = Example(
            tokens=np.array(reply.tokens, np.int64),
            answer_start=start,
            temperature=place.temperature,
            kind=place.prompt.kind,
            group=group_of(place.prompt.group),
            ended=reply.ended,
            seed=place.seed,
        )
        place.answer = self._target.tokenizer.decode(reply.tokens[start:]).strip()
        shard.num_open -= 1

    def _take_turn(self, shard: _Shard, place: _Place, ids: list[int]) -> None:
        opening = self._target.opening
        assert opening is not None and place.words is not None
        text = user_turn(self._target.tokenizer, opening, place.words, ids)
        if text is None:
            shard.drop("empty turn")
            return
        place.prompt = Prompt(SELF, user(text), text)
        self._waiting.appendleft((shard, place))

    def _write_complete(self) -> None:
        """Write every shard that is complete, in order."""
        while (shard := self._shards.get(self._num_written)) and not shard.num_open:
            del self._shards[self._num_written]
            self._write(shard)
            self._num_written += 1

    def _write(self, shard: _Shard) -> None:
        done = [p for p in shard.places if p.example is not None]
        examples = [p.example for p in done if p.example is not None]
        if not examples:
            raise ModelError(f"no prompt of shard {shard.number} is usable: {dict(shard.dropped)}")
        texts = [
            {"prompt": to_plain(p.prompt), "answer": p.answer}
            for p in done
            if p.prompt is not None and p.prompt.messages and p.answer
        ]
        write_rows(texts_path(self._folder, shard.number), texts)
        hidden = [p.hidden for p in done if p.hidden is not None]
        if len(hidden) == len(examples):
            self._cache.write(shard.number, examples, hidden)
        path = shard_path(self._folder, shard.number)
        about = {
            "settings": self._digest,
            "dtype": self._target.dtype,
            "dropped": dict(sorted(shard.dropped.items())),
        }
        write_shard(path, examples, self._target.vocab_size, about)
        texts_path(self._folder, shard.number - LAG).unlink(missing_ok=True)
        self.num_tokens += sum(e.num_answer_tokens for e in examples)
        log.info("%s: %d answers, dropped %s", path.name, len(examples), dict(shard.dropped))

    def _tell(self) -> None:
        self._progress(PHASE, self._num_so_far(), self._settings.num_tokens, "tokens")
