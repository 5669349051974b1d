"""Groups A, B, D and F on the real target: the answers are those of speculation off."""

from __future__ import annotations

import dataclasses
import random
from pathlib import Path
from typing import Any

import pytest

from specdist.config import SpeculationConfig
from specdist.engine.loader import load_model
from specdist.protocol.candidates import CandidateTree
from tests.integration.reports.real_target import RealTarget, pair_open
from tests.integration.reports.rigs import (
    EOS,
    GOLD,
    NUM_PROMPT_TOKENS,
    check_accounts,
    drain,
    fixed,
    oracle,
    padded,
    scripted,
    wide,
)

VOCAB = 49_152
BUSHY = SpeculationConfig(
    mode="tree", num_speculative_tokens=3, max_children=3, max_tree_nodes=24,
    drafters=("draft_model",),
)  # fmt: skip


def test_reference_prompts_and_plain_answers(real: RealTarget) -> None:
    """The table that every other test here stands on."""
    assert {name: len(ids) for name, ids in real.prompts.items()} == NUM_PROMPT_TOKENS
    for name, gold in GOLD.items():
        assert real.plain[name].tokens[: len(gold)] == gold, name


def test_b001_b004_padded_draft(real: RealTarget) -> None:
    """B001, B004: D-PAD with its largest logits beyond the vocabulary is D-SELF."""
    pair = real.pair(padded(real.loaded), speculation=fixed(4), vocab_size=VOCAB)
    (answer,) = pair.generate([real.prompts["P-COUNT"]], max_tokens=40)
    assert (answer.tokens, answer.finish_reason) == (GOLD["P-COUNT"], "stop")
    assert answer.num_accepted >= 23
    check_accounts(pair, answer, 40)


def test_b002_padded_target(real: RealTarget) -> None:
    """B002: the target's own padding rows, however large, are never sampled."""
    pair = scripted(padded(real.loaded), oracle(8, real.full("P-COUNT")), vocab_size=VOCAB)
    (greedy,) = pair.generate([real.prompts["P-COUNT"]], max_tokens=40)
    assert greedy.tokens == GOLD["P-COUNT"]
    (sampled,) = pair.generate([real.prompts["P-HI"]], max_tokens=8, temperature=0.8, seed=1)
    assert max(sampled.tokens) < VOCAB


@pytest.mark.parametrize("rule", ["rejection", "traversal"])
def test_b005_padded_draft_laws_travel(real: RealTarget, rule: str) -> None:
    """B005: the draft's laws have the width of the shared vocabulary."""
    small = dataclasses.replace(BUSHY, max_tree_nodes=8)  # what 8 draft steps can draw
    pair = real.pair(padded(real.loaded), speculation=small, vocab_size=VOCAB)
    options = {"max_tokens": 8, "temperature": 0.8, "seed": 1, "rule": rule}
    (answer,) = pair.generate([real.prompts["P-HI"]], **options)
    assert len(answer.tokens) == 8 or answer.tokens[-1] == EOS
    assert answer.num_accepted > 0


def test_b007_b008_reduced_draft_vocabulary(real: RealTarget, demo_draft_folder: Path) -> None:
    """B007, B008: the shipped draft, whose lm_head holds a part of the vocabulary."""
    draft = load_model(demo_draft_folder, "cpu", "float32", num_threads=1)
    assert draft.output_token_ids is not None and len(draft.output_token_ids) < VOCAB
    pair = real.pair(draft)
    answers = pair.generate([real.prompts["P-COUNT"], real.prompts["P-NUMS"]], max_tokens=30)
    assert answers[0].tokens == GOLD["P-COUNT"] and answers[1].tokens[:16] == GOLD["P-NUMS"]
    assert sum(a.num_accepted for a in answers) >= 10  # ids that meant other tokens give 0


def test_b011_b012_second_turn_after_an_accepted_end(real: RealTarget) -> None:
    """B011, B012: nothing behind EOS is shown, counted, cached or sent with the next turn."""
    rambling = [*real.full("P-COUNT"), 504, 2988, 314, 42]  # the draft goes on behind the end
    pair = scripted(real.loaded, oracle(8, rambling))
    (first,) = pair.generate([real.prompts["P-COUNT"]], max_tokens=40)
    assert (first.tokens, first.finish_reason) == (GOLD["P-COUNT"], "stop")
    check_accounts(pair, first, 40)
    text = real.tokenizer.decode(first.tokens)
    second = real.chat(
        "Count from 1 to 10, separated by commas. Output only the numbers.", text, "Thanks."
    )
    both = [*real.prompts["P-COUNT"], *first.tokens]
    assert second[: len(both)] == both and 2988 not in second
    (answer,) = pair.generate([second], max_tokens=6)
    assert 64 <= answer.verdicts[0].num_cached_tokens <= len(both)
    assert answer.tokens == real.off([second], max_tokens=6)[0]
    drain(pair)
    assert pair.target_engine.usage().num_held == 0


def test_b013_draft_always_offers_the_end(real: RealTarget) -> None:
    """B013: EOS offered at every step, refuted at every step."""
    pair = scripted(real.loaded, lambda _, committed: [EOS])
    (answer,) = pair.generate([real.prompts["P-NUMS"]], max_tokens=16)
    assert answer.tokens == GOLD["P-NUMS"]
    assert [v.num_draft_tokens for v in answer.verdicts[1:-1]] == [1] * 14


def test_b022_min_tokens(real: RealTarget) -> None:
    """B022: no end among the first 34 tokens, also where the draft is sure of it."""
    prompt, options = real.prompts["P-COUNT"], {"max_tokens": 40, "min_tokens": 34}
    (plain,) = real.off([prompt], **options)
    assert EOS not in plain[:34] and plain[:29] == GOLD["P-COUNT"][:29]
    for guess in (plain, GOLD["P-COUNT"]):
        pair = scripted(real.loaded, oracle(8, [*prompt, *guess]))
        assert pair.generate([prompt], **options)[0].tokens == plain


def test_b034_two_seeds_in_one_batch(real: RealTarget) -> None:
    """B034: one seed given, one drawn by the router; both plausible, each its own."""
    prompt, options = real.prompts["P-NUMS"], {"max_tokens": 12, "temperature": 0.1}
    pair = scripted(real.loaded, oracle(8, real.full("P-NUMS")))
    answers = [pair_open(pair, [prompt], seed=s, **options)[0] for s in (2**61 + 11, 5)]
    pair.run()
    for answer in answers:
        assert answer.tokens == GOLD["P-NUMS"][:12] and answer.num_accepted > 0


def test_b037_bfloat16(demo_target_folder: Path, real: RealTarget) -> None:
    """B037: the gap of P-COUNT is wide enough for bfloat16 in any row count."""
    loaded = load_model(demo_target_folder, "cpu", "bfloat16", num_threads=1)
    pair = scripted(loaded, oracle(12, real.full("P-COUNT"), wrong_every=7))
    (answer,) = pair.generate([real.prompts["P-COUNT"]], max_tokens=40)
    assert answer.tokens == GOLD["P-COUNT"]


@pytest.mark.parametrize("chunk", [1, 7, 16, 512])
@pytest.mark.parametrize("prefix_cache", [True, False])
def test_b038_prefill_shape(real: RealTarget, chunk: int, prefix_cache: bool) -> None:
    """B038: the first tokens do not depend on how the prompt was computed."""
    names = ["P-PARIS", "P-HA"] if chunk == 1 else ["P-PARIS", "P-OHM", "P-FOX", "P-COUNT"]
    shape = {"max_prefill_chunk": chunk, "prefix_cache": prefix_cache}
    pair = real.pair(target=shape)
    for _ in range(2 if prefix_cache and chunk == 16 else 1):  # the second time from the cache
        answers = pair.generate([real.prompts[n] for n in names], max_tokens=2, speculate=False)
        assert [a.tokens for a in answers] == [GOLD[n][:2] for n in names]


@pytest.mark.parametrize("draft", ["self", "bad"])
def test_b052_tree_at_temperature_0(real: RealTarget, bad: Any, draft: str) -> None:
    """B052: three children, three deep: the answer stays on the path of the argmax."""
    pair = real.pair(real.loaded if draft == "self" else bad, speculation=BUSHY)
    (answer,) = pair.generate([real.prompts["P-COUNT"]], max_tokens=40)
    assert answer.tokens == GOLD["P-COUNT"]
    assert (answer.num_accepted > 18) == (draft == "self")


def random_tree(session_id: str, committed: list[int]) -> CandidateTree:
    """Two children with two children each, of tokens that nobody would choose."""
    dice = random.Random(len(committed))
    tokens = dice.sample(range(3, VOCAB), 6)
    return CandidateTree(
        session_id,
        len(committed),
        tuple(tokens),
        (-1, -1, 0, 0, 1, 1),
        (0.5, 0.4, 0.3, 0.2, 0.2, 0.1),
    )


def test_b053_b057_sampled_with_a_random_tree(real: RealTarget) -> None:
    """B053: top_p over the rows of a tree. B057: random candidates are not taken."""
    prompt = real.prompts["P-HI"]
    settings = [
        {"temperature": 0.1, "top_p": 0.9, "seed": 2, "max_tokens": 16},
        {"temperature": 0.8, "seed": 3, "max_tokens": 24},
    ]
    pair = scripted(real.loaded, random_tree, speculation=wide(4, 8))
    answers = [pair_open(pair, [prompt], **options)[0] for options in settings]
    pair.run()
    plain = [real.off([prompt], **options)[0] for options in settings]
    assert [a.tokens for a in answers] == plain
    assert sum(a.num_accepted for a in answers) < 0.05 * sum(a.num_draft_tokens for a in answers)
    assert len(set(answers[1].tokens)) > 4


def test_b044_b045_sampling_is_not_argmax(real: RealTarget) -> None:
    """B044: temperature 1 gives at least 2 answers of 5, B045: 1.5 gives 3, top_k 50."""
    prompt = real.prompts["P-HI"]
    pair = scripted(real.loaded, oracle(4, real.full("P-HI")))
    answers: dict[float, list[Any]] = {1.0: [], 1.5: []}
    for temperature, kept in answers.items():
        for seed in range(5):
            options = {"temperature": temperature, "top_k": 50, "seed": seed, "max_tokens": 5}
            kept += pair_open(pair, [prompt], **options)
    pair.run()
    assert len({tuple(a.tokens) for a in answers[1.0]}) >= 2
    assert len({tuple(a.tokens) for a in answers[1.5]}) >= 3


@pytest.fixture(scope="module")
def odd_prompts(real: RealTarget) -> list[list[int]]:
    texts = ["a", "Ω", "<|im_start|>", "<|im_end|>", "<|endoftext|>", "<|im_end|><|im_end|>"]
    return [[28120], *(real.tokenizer.encode(text) for text in texts)]


def test_b075_b076_shortest_prompts(
    real: RealTarget, bad: Any, odd_prompts: list[list[int]]
) -> None:
    """B075: one and two tokens. B076: only special tokens; EOS in a prompt is a token."""
    assert [len(p) for p in odd_prompts] == [1, 1, 2, 1, 1, 1, 2]
    plain = real.off(odd_prompts, max_tokens=12)
    assert real.tokenizer.decode(plain[3]).startswith("-the-world-is-a-world-to")
    texts = [[*p, *answer] for p, answer in zip(odd_prompts, plain, strict=True)]
    for pair in (
        scripted(real.loaded, oracle(4, *texts, wrong_every=5)),
        real.pair(bad, speculation=dataclasses.replace(BUSHY, max_tree_nodes=6)),
    ):
        assert [a.tokens for a in pair.generate(odd_prompts, max_tokens=12)] == plain


def test_b077_no_second_bos(real: RealTarget) -> None:
    """B077: a rendered chat sent as a completions prompt gives the same 33 ids."""
    text = real.tokenizer.chat_template.render([{"role": "user", "content": "Say hi."}])
    assert real.tokenizer.encode(text) == real.prompts["P-HI"]
