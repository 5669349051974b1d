"""Phase 1: every prompt and document of the given files, filtered, in one file of the run.

With ``--only`` the later phases do not need the source files any more. Two prompts that
differ only in case, spaces and punctuation are one; excluded ones are left out and counted.
Called by the pipeline; the answers phase draws from the pool.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from specdist.distill.files import digest, read_json_file, read_rows, write_json, write_rows
from specdist.distill.progress import Progress
from specdist.distill.prompt_files import read_documents, read_prompts, source_files, split_weight
from specdist.distill.prompt_filters import Exclusion, normalised
from specdist.distill.prompt_types import Document, Prompt, from_plain, to_plain
from specdist.distill.settings import DistillSettings, check_same
from specdist.errors import ConfigError
from specdist.models.cache import file_sha256

POOL, MANIFEST, EXCLUDED = "prompts.jsonl", "prompts.json", "excluded.jsonl"
PHASE = "prompts"


@dataclass
class Source:
    """What one source gives."""

    name: str
    weight: float
    prompts: list[Prompt] = field(default_factory=list)
    documents: list[Document] = field(default_factory=list)


@dataclass(frozen=True)
class Pool:
    """All sources, and what must not be used."""

    sources: tuple[Source, ...]
    exclusion: Exclusion
    digest: str


def build_pool(settings: DistillSettings, progress: Progress) -> Pool:
    """Read the source files, or what an earlier run made of them."""
    folder = settings.data_folder
    sources = _described(settings)
    manifest: dict[str, Any] = {"sources": sources, "exclude": _hashes(settings.exclude)}
    if (folder / MANIFEST).is_file():
        there = read_json_file(folder / MANIFEST)
        old = {name: there[name] for name in manifest}
        check_same(old, manifest, f"the prompts in {folder}", "use another --out or --data")
        return load_pool(folder)
    excluded = sorted({t for name in settings.exclude for t in _excluded_texts(Path(name))})
    reader = _Reader(Exclusion(excluded), sources, progress)
    rows = list(reader.rows())
    write_rows(folder / EXCLUDED, excluded)
    write_rows(folder / POOL, rows)
    write_json(folder / MANIFEST, {**manifest, "counts": reader.counts, "pool": digest(rows)})
    return load_pool(folder)


def load_pool(folder: Path) -> Pool:
    """The pool that phase 1 has written."""
    if not (folder / MANIFEST).is_file():
        raise ConfigError(f"{folder} has no {MANIFEST}: run the phase prompts first")
    manifest = read_json_file(folder / MANIFEST)
    sources = tuple(Source(s["path"], s["weight"]) for s in manifest["sources"])
    for row in read_rows(folder / POOL):
        source = sources[row["source"]]
        if "document" in row:
            source.documents.append(Document(row["document"], row["language"]))
        else:
            source.prompts.append(from_plain(row))
    used = tuple(s for s in sources if s.prompts or s.documents)
    return Pool(used, Exclusion(read_rows(folder / EXCLUDED)), manifest["pool"])


class _Reader:
    """Rows of the pool file out of the source files, with counts of what was left out."""

    def __init__(
        self, exclusion: Exclusion, sources: list[dict[str, Any]], progress: Progress
    ) -> None:
        self._exclusion = exclusion
        self._sources = sources
        self._progress = progress
        self._seen: set[str] = set()
        self.counts: list[dict[str, int]] = []

    def rows(self) -> Iterator[dict[str, Any]]:
        """Every row that is kept, source by source."""
        num_files = sum(len(source["files"]) for source in self._sources)
        done = 0
        for number, source in enumerate(self._sources):
            self.counts.append({"kept": 0, "repeated": 0, "excluded": 0})
            for name in source["files"]:
                self._progress(PHASE, done, num_files, "files")
                for row in self._rows_of(Path(name), source):
                    yield {"source": number, **row}
                done += 1
        self._progress(PHASE, num_files, num_files, "files", f"kept and left out: {self.counts}")

    def _rows_of(self, file: Path, source: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        if source["role"] == "documents":
            for document in read_documents(file):
                if self._keep([document.text]):
                    yield {"document": document.text, "language": document.language}
            return
        for prompt in read_prompts(file, Path(source["path"]).stem):
            if self._keep([*(m.content for m in prompt.messages), *prompt.next_turns]):
                yield to_plain(prompt)

    def _keep(self, texts: list[str]) -> bool:
        counts = self.counts[-1]
        whole = normalised("\n".join(texts))
        reason = "kept"
        if whole in self._seen:
            reason = "repeated"
        elif any(self._exclusion.matches(text) for text in texts):
            reason = "excluded"
        self._seen.add(whole)
        counts[reason] += 1
        return reason == "kept"


def count_sources(settings: DistillSettings) -> dict[str, int]:
    """Prompts or documents of each source, before any is left out."""
    counts = {}
    for source in _described(settings):
        files = [Path(file) for file in source["files"]]
        if source["role"] == "prompts":
            counts[source["path"]] = sum(1 for f in files for _ in read_prompts(f, f.stem))
        else:
            counts[source["path"]] = sum(1 for f in files for _ in read_documents(f))
    return counts


def _described(settings: DistillSettings) -> list[dict[str, Any]]:
    """The sources with their weights and the hashes of their files."""
    described = []
    for role, given in (("prompts", settings.prompts), ("documents", settings.documents)):
        for source in given:
            path, weight = split_weight(source)
            files = {str(file): file_sha256(file) for file in source_files(path)}
            described.append({"role": role, "path": str(path), "weight": weight, "files": files})
    return described


def _hashes(names: Iterable[str]) -> dict[str, str]:
    missing = [name for name in names if not Path(name).is_file()]
    if missing:
        raise ConfigError(f"exclude must name files, {missing[0]} is none")
    return {name: file_sha256(Path(name)) for name in names}


def _excluded_texts(file: Path) -> Iterator[str]:
    """Every user turn of a file whose prompts must not be used."""
    for prompt in read_prompts(file, "excluded"):
        yield from (m.content for m in prompt.messages if m.role == "user")
        yield from prompt.next_turns
