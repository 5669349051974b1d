"""Drafts compared on tiny models: the right one, a wrong one, prompt lookup, and a scripted one."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from specdist.distill.eval_acceptance import Acceptance, MeasuredPair, acceptance, difference
from specdist.distill.eval_agreement import Answered, answer_logits
from specdist.distill.eval_draft import evaluate_drafts
from specdist.distill.eval_prompts import read_prompt_file
from specdist.distill.eval_report import EvalReport, Run, write_json
from specdist.distill.eval_settings import EvalSettings, parse_shapes
from specdist.engine.engine import Engine
from specdist.engine.loader import prepare
from specdist.errors import ConfigError, ModelError
from specdist.protocol.request import SamplingParams, SessionRequest
from specdist.speculation.noise import Noise
from tests.integration.reports.rigs import ScriptedDraft, steady_cost
from tests.tiny_folders import VOCAB, save_folder, words, write_jsonl
from tests.tiny_models import build_tiny

MAX_TOKENS = 21  # the first token, then four steps of a chain of four, all accepted
LOOP = [7, 8, 9, 10] * 4
RECORDS: list[dict[str, Any]] = [
    {"turns": [words([20, 31, 42, 53])], "category": "a"},
    {"turns": [words([61, 17, 5, 33, 71])], "category": "b"},
    {"turns": [words([44, 45, 81])], "category": "a"},
    {"prompt": words(LOOP), "kind": "loop"},
]


def settings_for(target: Path, **more: Any) -> EvalSettings:
    values = {"max_tokens": MAX_TOKENS, "dtype": "float32", "num_threads": 1, "concurrency": 3}
    values["shapes"] = parse_shapes("chain:4,tree:8")
    return EvalSettings(target=str(target), **{**values, **more})


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folders target and wrong; and loops, whose greedy answers are cycles of eight tokens."""
    folder = tmp_path_factory.mktemp("models")
    save_folder(folder / "target", layers=2, seed=1)
    save_folder(folder / "wrong", layers=1, seed=99)
    make_loops(save_folder(folder / "loops", kind="qwen3", layers=1, seed=3))
    return folder


def make_loops(folder: Path) -> None:
    """Leave of a model only the token's own embedding, and let the head know its successor."""
    weights = load_file(folder / "model.safetensors")
    for name, tensor in weights.items():
        if name.endswith(("o_proj.weight", "down_proj.weight")):
            tensor.zero_()
    head, embeddings = weights["lm_head.weight"], weights["model.embed_tokens.weight"]
    for place in range(88):  # the cycles are 3 to 10, 11 to 18 ...: without the end token, 2
        head[3 + place // 8 * 8 + (place + 1) % 8] = embeddings[3 + place]
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


@pytest.fixture(scope="module")
def report(models: Path, tmp_path_factory: pytest.TempPathFactory) -> EvalReport:
    """Four drafts at two temperatures, as the command line does it."""
    path = write_jsonl(tmp_path_factory.mktemp("prompts") / "p.jsonl", RECORDS)
    target = str(models / "target")
    drafts = [target, str(models / "wrong"), "ngram", f"{models / 'wrong'}+ngram"]
    settings = settings_for(models / "target", seed=50)  # no answer ends before MAX_TOKENS
    return evaluate_drafts(drafts, settings, read_prompt_file(path))


def run_of(report: EvalReport, draft: int, temperature: float, shape: str) -> Run:
    (found,) = (
        run
        for run in report.drafts[draft].runs
        if (run.temperature, run.shape) == (temperature, shape)
    )
    return found


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_the_target_as_its_own_draft_is_accepted_up_to_the_limits(
    report: EvalReport, temperature: float
) -> None:
    found = run_of(report, 0, temperature, "chain:4").overall
    assert found.num_accepted_tokens == found.num_draft_tokens > 0
    assert found.acceptance_by_depth == (1.0, 1.0, 1.0, 1.0)
    assert (found.mean_acceptance_length, found.draft_acceptance_rate) == (5.0, 1.0)
    assert found.predicted.tokens_per_step == 5.0
    assert found.num_generated_tokens == 4 * MAX_TOKENS


@pytest.mark.parametrize("at", [0, 1])
def test_the_target_agrees_with_itself(report: EvalReport, at: int) -> None:
    agreement = report.drafts[0].agreement[at].overall
    assert agreement.num_positions == 4 * MAX_TOKENS
    assert set(agreement.hit.values()) == {1.0}
    assert list(agreement.overlap) == [0.0, 0.8, 1.0]
    assert all(value == pytest.approx(1.0) for value in agreement.overlap.values())
    assert agreement.covered == pytest.approx(1.0)


def test_a_wrong_draft_gains_next_to_nothing(report: EvalReport) -> None:
    found = run_of(report, 1, 0.0, "chain:4").overall
    assert found.num_draft_tokens > 100
    assert found.mean_acceptance_length < 1.2
    assert report.drafts[1].agreement[0].overall.hit[1] < 0.1
    predicted = found.predicted
    assert predicted.speed_up_shared < predicted.speed_up_hidden < 1.2


def test_prompt_lookup_has_no_model(report: EvalReport) -> None:
    lookup = report.drafts[2]
    assert (lookup.cost, lookup.agreement, lookup.folder) == (None, (), None)
    merged, alone = report.drafts[3], report.drafts[1]
    assert merged.agreement == alone.agreement and merged.cost == alone.cost


def test_no_draft_changes_an_answer(report: EvalReport) -> None:
    runs = [run for draft in report.drafts for run in draft.runs]
    assert len(runs) == 4 * 2 * 2
    assert [run.differences for run in runs] == [()] * len(runs)
    assert [run.trouble for run in runs] == [{}] * len(runs)
    assert report.num_errors == 0
    totals = {(r.temperature, r.overall.num_generated_tokens) for r in runs}
    assert totals == {(0.0, 4 * MAX_TOKENS), (0.8, 4 * MAX_TOKENS)}


def test_categories_add_up(report: EvalReport) -> None:
    counts = ("num_prompts", "num_generated_tokens", "num_drafts", "num_draft_tokens")
    counts += ("num_accepted_tokens", "num_steps")
    assert report.prompts.categories == {"a": 2, "b": 1, "loop": 1}
    for draft in report.drafts:
        for run in draft.runs:
            assert list(run.categories) == ["a", "b", "loop"]
            for name in counts:
                parts: list[Acceptance] = list(run.categories.values())
                assert sum(getattr(p, name) for p in parts) == getattr(run.overall, name)
        for at in draft.agreement:
            parts = [a.num_positions for a in at.categories.values()]
            assert sum(parts) == at.overall.num_positions


def test_the_ranking_follows_the_predictions(report: EvalReport) -> None:
    speeds = [place.speed_up_shared for place in report.ranking]
    assert speeds == sorted(speeds, reverse=True)
    assert {place.draft for place in report.ranking} == {draft.name for draft in report.drafts}
    first = report.ranking[0]
    (winner,) = (draft for draft in report.drafts if draft.name == first.draft)
    for best in first.best:
        runs = [run for run in winner.runs if run.temperature == best.temperature]
        assert best.speed_up_shared == max(r.overall.predicted.speed_up_shared for r in runs)


def test_the_whole_report_is_json(report: EvalReport, tmp_path: Path) -> None:
    write_json(report, tmp_path / "r.json")
    read = json.loads((tmp_path / "r.json").read_text())
    assert read["drafts"][0]["runs"][0]["overall"]["mean_acceptance_length"] == 5.0
    assert read["settings"]["shapes"] == ["chain:4", "tree:8"]
    assert read["drafts"][1]["cost"]["ratio_to_target_step"] > 0


def test_prompt_lookup_lives_on_repetition(models: Path, tmp_path: Path) -> None:
    file = read_prompt_file(write_jsonl(tmp_path / "p.jsonl", RECORDS))
    settings = settings_for(models / "loops", temperatures=(0.0,), max_tokens=40)
    report = evaluate_drafts(["ngram"], settings, file)
    found = report.drafts[0].best_run(0.0).overall
    assert found.mean_acceptance_length > 4
    assert found.acceptance_by_depth[0] > 0.9
    assert found.predicted.tokens_per_step > 2
    assert report.ranking[0].speed_up_shared > 1


def test_later_turns_are_prompts_of_their_own(models: Path, tmp_path: Path) -> None:
    records = [{"turns": ["w20 w31", "w42"]}, {"turns": ["w50"]}]
    file = read_prompt_file(write_jsonl(tmp_path / "p.jsonl", records))
    settings = settings_for(
        models / "target", temperatures=(0.0,), shapes=parse_shapes("chain:2"), max_tokens=6
    )
    report = evaluate_drafts(["ngram"], settings, file, all_turns=True)
    assert report.prompts.num_prompts == 3
    assert report.drafts[0].runs[0].overall.num_prompts == 3


def test_other_lossless_rules_keep_the_greedy_answers(models: Path, tmp_path: Path) -> None:
    file = read_prompt_file(write_jsonl(tmp_path / "p.jsonl", RECORDS))
    settings = settings_for(
        models / "target", rule="rejection", shapes=parse_shapes("chain:3"), max_tokens=13
    )
    report = evaluate_drafts([str(models / "target")], settings, file)
    greedy, sampled = report.drafts[0].runs
    assert greedy.differences == sampled.differences == ()
    assert sampled.overall.draft_acceptance_rate > 0.9, "q is p: every drawn token is kept"


def test_a_draft_over_another_vocabulary_is_refused(models: Path, tmp_path: Path) -> None:
    save_folder(tmp_path / "foreign", vocab_size=VOCAB - 8, layers=1)
    file = read_prompt_file(write_jsonl(tmp_path / "p.jsonl", RECORDS))
    with pytest.raises(ModelError, match=r"share a vocabulary|cannot read target token"):
        evaluate_drafts([str(tmp_path / "foreign")], settings_for(models / "target"), file)


def test_more_kv_than_there_is_memory_is_refused(models: Path, tmp_path: Path) -> None:
    file = read_prompt_file(write_jsonl(tmp_path / "p.jsonl", RECORDS))
    settings = settings_for(models / "target", concurrency=10**9)
    with pytest.raises(ConfigError, match="lower concurrency or max_tokens"):
        evaluate_drafts(["ngram"], settings, file)


@pytest.fixture(scope="module")
def engine(models: Path) -> Engine:
    torch.set_num_threads(1)
    settings = settings_for(models / "target").engine
    config = dataclasses.replace(settings, kv_cache_bytes=16 << 20, max_prefill_chunk=7)
    return Engine(prepare(build_tiny(vocab_size=VOCAB, layers=2, seed=1)), config)


def test_teacher_forcing_gives_the_models_own_logits(engine: Engine) -> None:
    tokens, start = [5 + 7 * i % 90 for i in range(60)], 11
    chunks = list(answer_logits(engine, tokens, start))
    assert [len(chunk) for chunk in chunks] == [32, 17]
    model = build_tiny(vocab_size=VOCAB, layers=2, seed=1)
    with torch.no_grad():
        expected = model(torch.tensor([tokens])).logits[0, start - 1 : -1]
    assert torch.allclose(torch.cat(chunks), expected, atol=1e-3)
    assert not engine.usage().num_held


def test_a_scripted_draft_gives_the_figures_worked_out_by_hand(engine: Engine) -> None:
    """Chains of four with a wrong third token: two are accepted, and a third one follows."""
    params = SamplingParams(max_tokens=16, temperature=0.0, seed=0)
    request = SessionRequest("s", (20, 31, 42), 3, params, "coupled")
    config = settings_for(Path()).app(parse_shapes("chain:4")[0].speculation(("draft_model",)))
    plain = MeasuredPair(config, engine, None, steady_cost(), {"s": "c"})
    (answer,) = plain.answer_all([dataclasses.replace(request, speculate=False)], 1)
    text = [20, 31, 42, *answer.tokens]

    def propose(session_id: str, committed: list[int]) -> list[int]:
        at = len(committed)
        guess = [*text[at : at + 4], *[9] * 4][:4]
        guess[2] = (guess[2] + 1) % VOCAB
        return guess

    pair = MeasuredPair(config, engine, None, steady_cost(), {"s": "c"})
    pair.draft = ScriptedDraft(pair, propose)  # type: ignore[assignment,arg-type]
    (same,) = pair.answer_all([request], 1)
    assert same.tokens == answer.tokens
    found = acceptance([pair.tallies["c"]], 4, 0.0, steady_cost(), None)
    # The first token ends the prefill; fifteen more in five steps of three.
    assert (found.num_steps, found.num_drafts, found.num_accepted_tokens) == (5, 5, 10)
    assert found.acceptance_by_depth == (1.0, 1.0, 0.0, 0.0)
    assert found.mean_acceptance_length == 3.0
    # The last step may commit three tokens: its chain is cut to two.
    assert found.num_draft_tokens == 4 * 4 + 2


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_a_difference_is_found_with_its_gap(engine: Engine, temperature: float) -> None:
    params = SamplingParams(temperature=temperature, seed=3)
    prompt = (20, 31, 42)
    logits = torch.cat(list(answer_logits(engine, (*prompt, 50, 0), 4))).double()[0]
    scores = logits
    if temperature:
        noise = Noise(3).gumbel(4, torch.arange(VOCAB))
        scores = logits / temperature + noise
    best = scores.topk(2)
    plain = Answered("line 1", "a", prompt, (50, int(best.indices[0]), 7))
    assert difference(engine, plain, plain.answer, params) is None
    got = (50, int(best.indices[1]), 7)
    found = difference(engine, plain, got, params)
    assert found is not None
    assert (found.position, found.got, found.expected) == (1, got[1], plain.answer[1])
    assert found.gap == pytest.approx(float(best.values[0] - best.values[1]), abs=1e-4)
    assert not found.is_tie
    shorter = difference(engine, plain, (50,), params)
    assert shorter is not None and shorter.got is None and not shorter.is_tie
