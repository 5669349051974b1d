"""The answers are the target's own, the same in any batch, and never of excluded prompts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
import transformers

from specdist.api.tokenizer import Tokenizer
from specdist.distill.answering import draw
from specdist.distill.chat_opening import find_opening, opening_ids, user_turn
from specdist.distill.dataset import Item, load_dataset, snapshot
from specdist.distill.hidden_cache import HiddenCache
from specdist.distill.prompt_filters import Exclusion
from specdist.distill.shards import Example, read_shard
from specdist.distill.teacher import Teacher
from specdist.errors import ConfigError
from tests.byte_folders import CHATML, save_byte_folder
from tests.integration.distill.distill_rig import run
from tests.tiny_models import EOS_ID


def examples_of(data: Path) -> list[Example]:
    return [e for path in sorted(data.glob("shard-*")) for e in read_shard(path)]


def test_greedy_answers_are_the_models_own(target: Path, answered: Path) -> None:
    model = transformers.AutoModelForCausalLM.from_pretrained(target, dtype=torch.float32).eval()
    greedy = [e for e in examples_of(answered) if e.temperature == 0]
    assert len(greedy) > 10
    for example in greedy:
        prompt = torch.from_numpy(example.tokens[: example.answer_start])[None]
        alone = model.generate(
            prompt,
            attention_mask=torch.ones_like(prompt),
            max_new_tokens=example.num_answer_tokens,
            do_sample=False,
        )
        assert example.tokens.tolist() == alone[0].tolist()


def test_the_end_token_is_kept_and_nothing_comes_after_it(answered: Path) -> None:
    examples = examples_of(answered)
    assert any(e.ended for e in examples)
    for example in examples:
        answer = example.tokens[example.answer_start :].tolist()
        assert EOS_ID not in answer[:-1]
        assert example.ended == (answer[-1] == EOS_ID)


def test_answers_do_not_depend_on_the_batch(target: Path, answered: Path, tmp_path: Path) -> None:
    run(target, tmp_path, only="answers", batch_size=5, cache_bytes=0)
    names = [p.name for p in sorted(answered.glob("shard-*"))]
    assert len(names) >= 2
    common = [name for name in names if (tmp_path / "data" / name).exists()]
    assert len(common) >= len(names) - 1  # how far the last shards got may differ
    for name in common:
        assert (tmp_path / "data" / name).read_bytes() == (answered / name).read_bytes()
    assert not list((tmp_path / "data").glob("hidden-*"))


def test_kept_states_are_those_of_a_plain_forward_pass(target: Path, answered: Path) -> None:
    shards = snapshot(answered, answered.parent / "train")
    data = load_dataset(answered, shards, None, 0.2)
    teacher = Teacher(target, "cpu", "float32", HiddenCache(answered, 1 << 30))
    teacher.prepare(data)
    items: list[Item] = data.training[:20]
    computed = teacher.compute([item.example.tokens for item in items])
    for item, kept, whole in zip(items, teacher.states_of(items), computed, strict=True):
        assert len(kept) >= item.example.num_answer_tokens
        torch.testing.assert_close(kept.float(), whole[-len(kept) :], atol=5e-3, rtol=5e-3)


def test_excluded_prompts_are_never_asked(target: Path, tmp_path: Path) -> None:
    phrases = ["what are the main facts about", "Write a Python function that reverses"]
    path = tmp_path / "excluded.jsonl"
    path.write_text("".join(json.dumps({"prompt": p}) + "\n" for p in phrases))
    options = {"self_share": 0.0, "num_tokens": 1500, "seed": 3}
    run(target, tmp_path / "free", only="answers", **options)
    run(target, tmp_path / "bound", only="answers", exclude=(str(path),), **options)
    tokenizer, exclusion = Tokenizer.load(target), Exclusion(phrases)

    def num_hits(out: str) -> int:
        examples = examples_of(tmp_path / out / "data")
        asked = (tokenizer.decode(e.tokens[: e.answer_start].tolist()) for e in examples)
        return sum(exclusion.matches(text) for text in asked)

    assert num_hits("free") > 0, "without the file such prompts are asked"
    assert num_hits("bound") == 0


def test_a_model_without_a_chat_template_begins_by_itself(tmp_path: Path) -> None:
    folder = save_byte_folder(tmp_path / "t", template=None, layers=2)
    run(folder, tmp_path / "out", only="answers", num_tokens=200)
    kinds = {e.kind for e in examples_of(tmp_path / "out" / "data")}
    assert "self" in kinds and len(kinds) > 3


def test_answers_of_other_settings_are_refused(target: Path, answered: Path) -> None:
    with pytest.raises(ConfigError, match=r"max_new_tokens \[8, 24\], now it is \[8, 32\]"):
        run(target, answered.parent, only="answers", max_new_tokens=(8, 32))


def test_tokens_are_drawn_by_the_law() -> None:
    logits = torch.tensor([[0.0, 1.0, 2.0, -torch.inf]])
    points = [(i + 0.5) / 2000 for i in range(2000)]
    tokens = draw(logits.expand(2000, 4), [0.5] * 2000, points)
    shares = torch.bincount(tokens, minlength=4) / 2000
    torch.testing.assert_close(shares, (logits[0] / 0.5).softmax(0), atol=1e-3, rtol=0)
    assert draw(logits, [1.0], [1 - 2.0**-53]).item() == 2, "never one of probability 0"


TEMPLATES = {
    "chatml": (CHATML, "<|im_start|>user\n", True),
    "plain words": (
        "{% for m in messages %}[INST] {{ m.content | trim }} [/INST]{% endfor %}",
        "[INST] ",
        False,
    ),
    "with a default system message": (
        "<|im_start|>system\nBe kind.<|im_end|>\n" + CHATML,
        "<|im_start|>system\nBe kind.<|im_end|>\n<|im_start|>user\n",
        True,
    ),
}


@pytest.mark.parametrize("name", TEMPLATES)
def test_the_opening_of_a_user_turn_is_found(name: str, tmp_path: Path) -> None:
    template, opening_text, has_end_token = TEMPLATES[name]
    tokenizer = Tokenizer.load(save_byte_folder(tmp_path / "t", template=template, layers=1))
    opening = find_opening(tokenizer)
    assert opening is not None and opening.text == opening_text
    begun = opening_ids(tokenizer, opening, "What")
    assert tokenizer.decode(begun, skip_special_tokens=False) == f"{opening_text}What"
    end = "<|im_end|>" if has_end_token else " [/INST]"
    said = tokenizer.encode(f" is tea?{end} Tea is a drink.", add_special_tokens=False)
    assert user_turn(tokenizer, opening, "What", said) == "What is tea?"
    unfinished = tokenizer.encode(" is tea? I would like to kn", add_special_tokens=False)
    assert user_turn(tokenizer, opening, "What", unfinished) == "What is tea?"
    assert user_turn(tokenizer, opening, "", tokenizer.encode(f"  \n{end}")) is None
