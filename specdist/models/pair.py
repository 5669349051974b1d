"""Do this draft and this target belong together? Answered in seconds, without weights.

A draft's proposals are token ids, so ids must mean the same text in both models. Sizes
alone say little: embedding matrices are padded, and a draft may carry an extra added
token. Knows no engine. Called before the models are loaded (deployments, ``specdist
check``).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from specdist.errors import ModelError
from specdist.models.checkpoint import (
    output_token_ids,
    read_json,
    read_tensors,
    text_config,
    vocab_rows,
)
from specdist.models.vocabulary import Vocabulary, read_vocabulary

EOS = "eos_token_id"


@dataclass(frozen=True)
class PairReport:
    """What the engines must know of a pair, and what an operator should.

    Both engines cut their logits to ``vocab_size`` columns: ids from there on are
    padding rows or tokens that only the draft has. ``masked_ids`` lie below and must
    not be proposed: they have no text, or another special text in the draft.
    """

    vocab_size: int
    target_rows: int  # rows of the target's embedding matrix, padding included
    draft_rows: int
    masked_ids: tuple[int, ...]
    num_draft_outputs: int  # tokens that the draft can propose at all
    target_max_len: int
    draft_max_len: int
    warnings: tuple[str, ...]


def check_pair(
    target_folder: Path,
    draft_folder: Path,
    target_max_len: int | None = None,
    draft_max_len: int | None = None,
) -> PairReport:
    """Compare two model folders; raises ModelError when they do not belong together.

    ``*_max_len`` are the context lengths to be used; None takes what the model's config
    says. Both folders come from ``resolve_model``.
    """
    target, draft = read_vocabulary(target_folder), read_vocabulary(draft_folder)
    rows = vocab_rows(target_folder), vocab_rows(draft_folder)
    vocab_size = min(target.num_ids, rows[0])
    masked = _differing_ids(target, draft, vocab_size)
    if rows[1] < vocab_size:
        raise ModelError(
            f"the draft has {rows[1]} embedding rows, the target {vocab_size} tokens: the "
            f"draft cannot read target token {rows[1]} ({target.texts.get(rows[1])!r})"
        )
    proposable = _proposable(target_folder, draft_folder, vocab_size)
    lengths = (
        context_length(target_folder, target_max_len),
        context_length(draft_folder, draft_max_len),
    )
    warnings = (
        *_vocabulary_warnings(target, draft, rows, masked),
        *_eos_warnings(target_folder, draft_folder),
        *_length_warnings(*lengths),
    )
    num_outputs = len(proposable - set(masked))
    return PairReport(vocab_size, *rows, masked, num_outputs, *lengths, warnings)


def _differing_ids(target: Vocabulary, draft: Vocabulary, vocab_size: int) -> tuple[int, ...]:
    """Ids that the draft must not propose; raises when ordinary tokens differ."""
    differing = [i for i in range(vocab_size) if target.texts.get(i) != draft.texts.get(i)]
    holes = [i for i in range(vocab_size) if i not in target.texts]  # text in neither model
    for token_id in differing:
        ours, theirs = token_id in target.texts, token_id in draft.texts
        excused = not ours or token_id in target.added
        if theirs and ours:
            excused = excused and token_id in draft.added
        if not excused:
            raise _mismatch(target, draft, differing[0])
    return tuple(sorted({*differing, *holes}))


def _mismatch(target: Vocabulary, draft: Vocabulary, token_id: int) -> ModelError:
    return ModelError(
        "draft and target do not share a vocabulary: the target has "
        f"{len(target.texts)} tokens, the draft {len(draft.texts)}; the first difference is "
        f"token id {token_id}: {target.texts.get(token_id)!r} in the target, "
        f"{draft.texts.get(token_id)!r} in the draft"
    )


def _proposable(target_folder: Path, draft_folder: Path, vocab_size: int) -> set[int]:
    """Token ids for which the draft has a logit; checks both checkpoints' headers."""
    tensors = read_tensors(draft_folder)
    ids = output_token_ids(draft_folder, tensors)
    if output_token_ids(target_folder, read_tensors(target_folder)) is not None:
        raise ModelError(f"{target_folder} has a reduced output vocabulary: it is no target")
    proposable = set(range(vocab_size)) if ids is None else {i for i in ids if i < vocab_size}
    if not proposable:
        raise ModelError(f"{draft_folder} can propose none of the target's {vocab_size} tokens")
    return proposable


def context_length(folder: Path, wanted: int | None) -> int:
    """The context length to use; raises ModelError when the model cannot hold it."""
    longest = text_config(read_json(folder / "config.json")).get("max_position_embeddings")
    if not isinstance(longest, int):
        if wanted is None:
            raise ModelError(f"{folder}: its config names no length, set max_model_len")
        return wanted
    if wanted is not None and not 1 <= wanted <= longest:
        raise ModelError(
            f"{folder}: max_model_len must be at least 1 and at most {longest}, got {wanted}"
        )
    return wanted or longest


def _vocabulary_warnings(
    target: Vocabulary,
    draft: Vocabulary,
    rows: tuple[int, int],
    masked: tuple[int, ...],
) -> Iterator[str]:
    target_rows, draft_rows = rows
    vocab_size = min(target.num_ids, target_rows)
    if target.num_ids > target_rows:
        yield (
            f"the target's tokenizer has ids up to {target.num_ids - 1}, its weights only "
            f"{target_rows} rows: the ids beyond cannot be used"
        )
    if target_rows > vocab_size:
        yield f"the target's ids {vocab_size} to {target_rows - 1} are padding and masked"
    extra = [text for i, text in sorted(draft.texts.items()) if i >= vocab_size]
    if extra:
        yield f"{len(extra)} tokens that only the draft has are masked, the first is {extra[0]!r}"
    elif draft_rows > vocab_size:
        yield f"the draft's ids {vocab_size} to {draft_rows - 1} are padding and masked"
    if masked:
        first = masked[0]
        yield (
            f"{len(masked)} special tokens differ and are masked in the draft, the first is id "
            f"{first}: {target.texts.get(first)!r} in the target, {draft.texts.get(first)!r} "
            "in the draft"
        )


def _eos_warnings(target_folder: Path, draft_folder: Path) -> Iterator[str]:
    ours, theirs = eos_ids(target_folder), eos_ids(draft_folder)
    if ours != theirs:
        yield (
            f"end-of-sequence ids differ: target {sorted(ours)}, draft {sorted(theirs)}; "
            "the target's count"
        )


def eos_ids(folder: Path) -> frozenset[int]:
    """End-of-sequence ids by generation_config.json, else by config.json."""
    for name in ("generation_config.json", "config.json"):
        if not (folder / name).is_file():
            continue
        value = text_config(read_json(folder / name)).get(EOS)
        if value is not None:
            return frozenset(value if isinstance(value, list) else [value])
    return frozenset()


def _length_warnings(target_max_len: int, draft_max_len: int) -> Iterator[str]:
    if draft_max_len < target_max_len:
        yield (
            f"the draft's context is {draft_max_len} tokens, the target's {target_max_len}: "
            f"beyond {draft_max_len} tokens decoding goes on without the draft"
        )
