"""The grammars of one vocabulary: specs compiled, and what cannot be used refused.

Whether a spec can be used is remembered, so that asking again costs nothing. Each answer gets a
grammar of its own (a millisecond): the library's copies share one lexer, which grows with every
answer, and whose failure in one would be the failure of all. Safe in threads; one per process.
Called by the API, to refuse at once, and by both workers.
"""

from __future__ import annotations

import json
import threading
from collections import OrderedDict
from collections.abc import Callable, Collection
from typing import Any

import llguidance

from specdist.grammar.errors import GrammarError
from specdist.grammar.limits import check_spec
from specdist.grammar.token_constraint import TokenConstraint, first_line
from specdist.protocol.request import StructuredOutput

MAX_REMEMBERED = 256  # specs
COMPILE_TIMEOUT_S = 5.0
# JSON may be spread over lines and indented; without a bound, models drift into blanks for ever.
WHITESPACE = r"(?:[ ]{1,4}|\r?\n[ \t]{0,40})"
JSON_OPTIONS = {
    "item_separator": ",",
    "key_separator": ":",
    "whitespace_pattern": WHITESPACE,
    "coerce_one_of": False,
    "lenient": False,
}
# Where the text is certain the library would allow one way of cutting it into tokens only, and
# takes the text of a special token for that token. Without, the law is the model's own.
PREAMBLE = '%llguidance {"no_forcing": true}\nstart: '
# For one answer and one step of it. The library's own end an answer at an object with more than
# 500 optional properties, and at nested counts; these take 10 ms and 40 MB at worst.
LIMITS = llguidance.LLParserLimits(
    max_items_in_row=20_000,
    step_max_items=200_000,
    step_lexer_fuel=1_000_000,
    max_lexer_states=20_000,
    verbose_errors=False,
)


class Grammars:
    """Compiles specs over one vocabulary; see the module docstring."""

    def __init__(self, read_tokenizer: Callable[[], str], eos_token_ids: Collection[int]) -> None:
        """``read_tokenizer``: the text of a tokenizer.json, asked for when first needed."""
        self._read_tokenizer = read_tokenizer
        self._eos_token_ids = sorted(eos_token_ids)
        self._lock = threading.Lock()
        self._vocabulary: llguidance.LLTokenizer | GrammarError | None = None
        self._refusals: OrderedDict[StructuredOutput, str | None] = OrderedDict()

    def prepare(self) -> None:
        """Read the vocabulary now (a fifth of a second); failures show with the first spec."""
        with self._lock:
            if self._vocabulary is None:
                self._vocabulary = self._load()

    def check(self, spec: StructuredOutput) -> None:
        """Raise GrammarError if the spec cannot be used."""
        if not self._is_known_as_usable(spec):
            self._compiled(spec)

    def constraint(self, spec: StructuredOutput) -> TokenConstraint:
        """A constraint at the beginning of an answer; raises GrammarError."""
        self._is_known_as_usable(spec)
        matcher = self._compiled(spec)
        assert isinstance(self._vocabulary, llguidance.LLTokenizer)
        return TokenConstraint(matcher, self._vocabulary.vocab_size, self._eos_token_ids)

    def _is_known_as_usable(self, spec: StructuredOutput) -> bool:
        """Whether the spec compiled before; raises GrammarError if it did not."""
        with self._lock:
            if spec not in self._refusals:
                return False
            self._refusals.move_to_end(spec)
            refusal = self._refusals[spec]
        if refusal is not None:
            raise GrammarError(refusal)
        return True

    def _compiled(self, spec: StructuredOutput) -> llguidance.LLMatcher:
        self.prepare()
        found = _within(COMPILE_TIMEOUT_S, lambda: self._compile(spec))
        if found is None:  # not remembered: a machine that was busy for once may be the reason
            raise GrammarError(f"it takes longer than {COMPILE_TIMEOUT_S:g} s to compile")
        refusal = str(found) if isinstance(found, GrammarError) else None
        with self._lock:
            self._refusals[spec] = refusal
            while len(self._refusals) > MAX_REMEMBERED:
                self._refusals.popitem(last=False)
        if isinstance(found, GrammarError):
            raise found
        return found

    def _load(self) -> llguidance.LLTokenizer | GrammarError:
        if not self._eos_token_ids:
            return GrammarError("the model has no end-of-sequence token to end the answer with")
        try:
            text = self._read_tokenizer()
            return llguidance.LLTokenizer(text, eos_token=self._eos_token_ids)
        except Exception as error:  # the library raises several kinds for what it cannot read
            return GrammarError(f"the model's tokenizer is not supported: {first_line(error)}")

    def _compile(self, spec: StructuredOutput) -> llguidance.LLMatcher:
        if isinstance(self._vocabulary, GrammarError):
            raise GrammarError(*self._vocabulary.args)
        assert self._vocabulary is not None
        check_spec(spec)
        matcher = llguidance.LLMatcher(self._vocabulary, _source(spec), log_level=0, limits=LIMITS)
        if matcher.is_error():
            raise GrammarError(_reason(matcher.get_error()))
        if not any(matcher.compute_bitmask()) or matcher.is_error():
            raise GrammarError("nothing can match it")
        return matcher


def _source(spec: StructuredOutput) -> str:
    """The spec in the library's own notation."""
    if spec.kind == "regex":
        # \d and \w are ASCII, as in the patterns of a JSON schema.
        rule = f"/{llguidance.regex_to_lark(spec.text, 'dw')}/"
    elif spec.kind == "choice":
        rule = " | ".join(json.dumps(choice) for choice in json.loads(spec.text))
    else:
        rule = "%json " + json.dumps({**_as_object(spec), "x-guidance": JSON_OPTIONS})
    return llguidance.LLMatcher.grammar_from_lark(PREAMBLE + rule)


def _as_object(spec: StructuredOutput) -> dict[str, Any]:
    schema = json.loads(spec.text)
    if not isinstance(schema, dict):
        raise GrammarError("a schema must be a JSON object")
    return schema


def _reason(message: str) -> str:
    """The library's message, without advice that nobody here can follow."""
    if message.startswith("oneOf constraints are not supported"):
        return "oneOf is supported only where no two of its schemas match the same; try anyOf"
    return first_line(message)


def _within(
    seconds: float, compile_it: Callable[[], llguidance.LLMatcher]
) -> llguidance.LLMatcher | GrammarError | None:
    """Compile in a thread of its own and wait no longer than that for it; None: it goes on.

    The limits on specs keep this from happening; what went on all the same would end by the
    library's own limits, in a thread that nobody waits for.
    """
    results: list[llguidance.LLMatcher | GrammarError] = []

    def run() -> None:
        try:
            results.append(compile_it())
        except GrammarError as error:
            results.append(error)
        except Exception as error:  # the library's ValueErrors, and whatever it did not foresee
            results.append(GrammarError(first_line(error)))

    thread = threading.Thread(target=run, name="grammar", daemon=True)
    thread.start()
    thread.join(seconds)
    return results[0] if results else None
