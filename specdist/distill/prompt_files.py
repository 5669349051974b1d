"""Prompts and documents out of local files: JSON lines, JSON, text, tables, data set folders.

Formats by the file's ending: .jsonl and .json (a list) with the fields messages,
conversations, turns, prompt, question, instruction (+ input), text or content; .txt (one
prompt a paragraph, or documents); .tsv (first column); .parquet and .arrow as Hugging Face
data sets keep them; folders with such files. Nothing is downloaded. Called by ``pool``.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from specdist.distill.prompt_types import Document, Message, Prompt, user
from specdist.distill.recipes import Recipe, recipe_for
from specdist.errors import ConfigError

PROMPT_FIELDS = ("prompt", "question", "instruction", "text", "content", "query")
DOCUMENT_FIELDS = ("document", "article", "text", "content", "passage", "context", "body")
ROLES = {"human": "user", "gpt": "assistant", "user": "user", "assistant": "assistant"}
ROLES |= {"system": "system", "model": "assistant", "bot": "assistant"}
MOST_DOCUMENT_CHARS = 4000
Row = tuple[int, Any]


def split_weight(source: str) -> tuple[Path, float]:
    """``PATH=WEIGHT`` into its parts; the weight is 1 when it is not said."""
    path, sign, weight = source.rpartition("=")
    if not sign:
        return Path(source).expanduser(), 1.0
    try:
        number = float(weight)
    except ValueError:
        return Path(source).expanduser(), 1.0  # a path with a = in it
    if not number > 0:
        raise ConfigError(f"the weight of {path} must be above 0, got {weight}")
    return Path(path).expanduser(), number


def source_files(path: Path) -> list[Path]:
    """The readable files of a source, sorted; ConfigError when there are none."""
    if path.is_file():
        if path.suffix not in READERS:
            raise ConfigError(f"{path}: {path.suffix!r} must be one of {', '.join(READERS)}")
        return [path]
    files = sorted(p for p in path.rglob("*") if p.suffix in READERS and p.is_file())
    files = [p for p in files if p.name not in ("dataset_info.json", "state.json")]
    if not files:
        raise ConfigError(f"{path} is no file, and no folder with {', '.join(READERS)} files")
    return files


def read_prompts(file: Path, kind: str) -> Iterator[Prompt]:
    """The prompts of one file; rows without one of the known fields are an error."""
    recipe = recipe_for(file.name)
    found = False
    for number, row in READERS[file.suffix](file):
        prompt = None if number in recipe.excluded_rows else _prompt_of(row, recipe.kind or kind)
        if prompt is not None:
            found = True
            yield prompt
    if not found:
        raise ConfigError(f"{file} holds no prompt; known fields: {', '.join(PROMPT_FIELDS)}, ...")


def read_documents(file: Path) -> Iterator[Document]:
    """The texts of one file, in pieces of at most 4,000 characters cut at paragraphs."""
    recipe = recipe_for(file.name)
    if file.suffix == ".txt":
        yield from _pieces([file.read_text(encoding="utf-8")], recipe)
        return
    rows = (r for n, r in READERS[file.suffix](file) if n not in recipe.excluded_rows)
    texts = (_first(row, DOCUMENT_FIELDS + PROMPT_FIELDS) for row in rows)
    yield from _pieces((t for t in texts if t), recipe)


def _pieces(texts: Iterable[str], recipe: Recipe) -> Iterator[Document]:
    for text in texts:
        piece = ""
        for paragraph in _paragraphs_of(text):
            if piece and len(piece) + len(paragraph) > MOST_DOCUMENT_CHARS:
                yield Document(piece, recipe.language)
                piece = ""
            piece = f"{piece}\n\n{paragraph}".strip()
        if piece:
            yield Document(piece, recipe.language)


def _paragraphs_of(text: str) -> Iterator[str]:
    """Paragraphs, long ones cut at the end of a line or of a word."""
    for paragraph in text.split("\n\n"):
        rest = paragraph.strip()
        while len(rest) > MOST_DOCUMENT_CHARS:
            head = rest[:MOST_DOCUMENT_CHARS]
            cut = max(head.rfind("\n"), 0) or max(head.rfind(" "), 0) or MOST_DOCUMENT_CHARS
            yield rest[:cut].strip()
            rest = rest[cut:].strip()
        if rest:
            yield rest


def _prompt_of(row: Any, kind: str) -> Prompt | None:
    """The prompt of one row; None when it holds no user turn."""
    if isinstance(row, Mapping):
        if chat := row.get("messages") or row.get("conversations"):
            return _from_chat(chat, kind)
        if isinstance(turns := row.get("turns"), (list, tuple)) and turns:
            first, *rest = (str(t) for t in turns)
            return Prompt(kind, user(first), first, tuple(rest))
    text = _first(row, PROMPT_FIELDS)
    if text and isinstance(row, Mapping) and isinstance(extra := row.get("input"), str) and extra:
        text = f"{text}\n\n{extra}"
    return Prompt(kind, user(text), text) if text else None


def _from_chat(chat: Any, kind: str) -> Prompt | None:
    """A recorded conversation: its first user turn, and the later ones for after the answers.

    The answers in the file are not the target's: they are left out.
    """
    turns = [_message(turn) for turn in chat]
    system = tuple(m for m in turns[:1] if m.role == "system")
    said = [m.content for m in turns if m.role == "user" and m.content.strip()]
    if not said:
        return None
    return Prompt(kind, system + user(said[0]), said[0], tuple(said[1:]))


def _message(turn: Mapping[str, Any]) -> Message:
    role = ROLES.get(str(turn.get("role", turn.get("from"))), "other")
    return Message(role, str(turn.get("content", turn.get("value", ""))))


def _first(row: Any, names: tuple[str, ...]) -> str:
    if isinstance(row, str):
        return row.strip()
    if isinstance(row, Mapping):
        for name in names:
            if isinstance(value := row.get(name), str) and value.strip():
                return value.strip()
    return ""


def _json_lines(file: Path) -> Iterator[Row]:
    with file.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines):
            if line.strip():
                try:
                    yield number, json.loads(line)
                except ValueError as error:
                    raise ConfigError(f"{file}, line {number + 1}: {error}") from None


def _json_list(file: Path) -> Iterator[Row]:
    try:
        rows = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ConfigError(f"{file}: {error}") from None
    if not isinstance(rows, list):
        raise ConfigError(f"{file} must hold a list, got {type(rows).__name__}")
    yield from enumerate(rows)


def _paragraphs(file: Path) -> Iterator[Row]:
    parts = file.read_text(encoding="utf-8").split("\n\n")
    yield from enumerate(p for p in (part.strip() for part in parts) if p)


def _first_column(file: Path) -> Iterator[Row]:
    lines = file.read_text(encoding="utf-8").splitlines()
    yield from enumerate(line.split("\t")[0] for line in lines)


def _arrow(file: Path) -> Iterator[Row]:
    """Parquet, and Arrow as a stream (Hugging Face) or a file."""
    try:
        import pyarrow  # type: ignore[import-untyped]
        import pyarrow.parquet as parquet  # type: ignore[import-untyped]
    except ImportError:
        raise ConfigError(f"{file} needs pyarrow: pip install 'specdist[distill]'") from None
    number = 0
    if file.suffix == ".parquet":
        batches: Any = parquet.ParquetFile(file).iter_batches()
    else:
        source = pyarrow.memory_map(str(file))
        try:
            batches = pyarrow.ipc.open_stream(source)
        except pyarrow.ArrowInvalid:
            reader = pyarrow.ipc.open_file(source)
            batches = (reader.get_batch(i) for i in range(reader.num_record_batches))
    for batch in batches:
        for row in batch.to_pylist():
            yield number, row
            number += 1


READERS: Mapping[str, Callable[[Path], Iterator[Row]]] = {
    ".jsonl": _json_lines,
    ".json": _json_list,
    ".txt": _paragraphs,
    ".tsv": _first_column,
    ".parquet": _arrow,
    ".arrow": _arrow,
}
