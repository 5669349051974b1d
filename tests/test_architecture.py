"""The house rules of docs/architecture.md as tests: an AST walk over every module.

Imports go downhill only, ray stays in deployments/, pure rooms stay pure, files and
functions stay small. Imports inside functions count as imports; only those under
``if TYPE_CHECKING`` are exempt from the rules about outside libraries.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
RANKS = {
    "errors": -1,  # everybody may raise them
    "config": 0,
    "protocol": 0,
    "speculation": 1,
    "metrics": 2,
    "grammar": 2,
    "engine": 3,
    "drafters": 4,
    "workers": 5,
    "router": 5,
    "api": 6,
    "models": 6,
    "client": 7,
    "deployments": 8,
    "distill": 8,  # the three side rooms may use what they measure, and the client
    "bench": 8,
    "plan": 8,
    "cli": 9,
}
SIDE_ROOMS = {"distill", "bench", "plan"}  # nobody but the command line imports them
NO_TORCH = (
    "specdist.protocol",
    "specdist.router",
    "specdist.metrics",
    "specdist.grammar",
    "specdist.bench",
    "specdist.engine.sequence",
    "specdist.engine.block_pool",
    "specdist.engine.scheduler",
)
GRPC_ROOMS = {"api", "bench", "client"}
MAX_FILE_LINES = 300
MAX_FUNCTION_LINES = 40
IMPURE = ("time", "random", "numpy.random", "secrets", "torch.random")
GLOBAL_RANDOMNESS = {
    *("torch.manual_seed", "torch.seed", "torch.rand", "torch.randn", "torch.randint"),
    *("torch.rand_like", "torch.randn_like", "torch.randperm", "torch.bernoulli"),
    *("np.random", "numpy.random", "time.time", "time.monotonic", "time.perf_counter"),
}


@dataclass(frozen=True)
class Import:
    name: str  # dotted name of what is imported; for `from a import b`: a.b
    line: int
    typing_only: bool


def _walk(node: ast.AST, typing_only: bool = False) -> Iterator[tuple[ast.AST, bool]]:
    for child in ast.iter_child_nodes(node):
        inner = typing_only or (
            isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test)
        )
        yield child, inner
        yield from _walk(child, inner)


def imports_of(tree: ast.AST) -> list[Import]:
    found = []
    for node, typing_only in _walk(tree):
        if isinstance(node, ast.Import):
            found += [Import(alias.name, node.lineno, typing_only) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            prefix = "." * node.level + (node.module or "")
            found += [
                Import(f"{prefix}.{alias.name}", node.lineno, typing_only) for alias in node.names
            ]
    return found


@dataclass(frozen=True)
class Module:
    name: str  # specdist.engine.scheduler
    path: Path
    tree: ast.Module
    num_lines: int
    imports: tuple[Import, ...]

    @property
    def room(self) -> str:
        parts = self.name.split(".")
        return parts[0] if parts[0] == "deployments" else [*parts, ""][1]


@cache
def modules() -> tuple[Module, ...]:
    found = []
    for package in ("specdist", "deployments"):
        for path in sorted((ROOT / package).rglob("*.py")):
            if "generated" in path.parts:
                continue
            dotted = ".".join(path.relative_to(ROOT).with_suffix("").parts)
            text = path.read_text()
            tree = ast.parse(text)
            name = dotted.removesuffix(".__init__")
            found.append(Module(name, path, tree, len(text.splitlines()), tuple(imports_of(tree))))
    return tuple(found)


def room_of(dotted: str) -> str | None:
    """The room that an import leads to; None for other libraries."""
    parts = dotted.split(".")
    if parts[0] == "deployments":
        return "deployments"
    return parts[1] if parts[0] == "specdist" and len(parts) > 1 else None


def is_within(dotted: str, package: str) -> bool:
    return dotted == package or dotted.startswith(package + ".")


def offenders(package: str, allowed: object) -> list[str]:
    """Imports of an outside library in modules for which ``allowed(module)`` is false."""
    return [
        f"{m.path.relative_to(ROOT)}:{i.line} imports {i.name}"
        for m in modules()
        for i in m.imports
        if is_within(i.name, package) and not i.typing_only and not allowed(m)  # type: ignore[operator]
    ]


def test_every_room_has_a_rank() -> None:
    rooms = {m.room for m in modules() if m.room}
    assert rooms <= set(RANKS), f"give these rooms a rank: {sorted(rooms - set(RANKS))}"


def test_imports_are_absolute() -> None:
    assert [f"{m.name}:{i.line}" for m in modules() for i in m.imports if i.name[0] == "."] == []


def test_imports_go_downhill() -> None:
    uphill = []
    for module in modules():
        for item in module.imports:
            room = room_of(item.name)
            if room is None or room == module.room or room not in RANKS:
                continue
            if module.room and RANKS[room] >= RANKS[module.room]:
                uphill.append(f"{module.path.relative_to(ROOT)}:{item.line} -> {room}")
    assert uphill == []


def test_side_rooms_are_imported_by_the_command_line_only() -> None:
    seen = [
        f"{m.name}:{i.line} -> {i.name}"
        for m in modules()
        for i in m.imports
        if room_of(i.name) in SIDE_ROOMS and m.room not in (room_of(i.name), "cli")
    ]
    assert seen == []


def test_no_import_circles() -> None:
    known = {m.name for m in modules()}
    graph: dict[str, set[str]] = {}
    for module in modules():
        targets = set()
        for item in module.imports:
            if not item.typing_only:
                name = item.name if item.name in known else item.name.rpartition(".")[0]
                targets |= {name} & (known - {module.name})
        graph[module.name] = targets
    done: set[str] = set()
    while ready := [n for n in graph if n not in done and graph[n] <= done]:
        done.update(ready)
    assert sorted(set(graph) - done) == [], "these modules import each other in a circle"


def test_ray_only_in_deployments() -> None:
    assert offenders("ray", lambda m: m.room == "deployments") == []


def test_no_torch_in_light_rooms() -> None:
    assert offenders("torch", lambda m: not any(is_within(m.name, p) for p in NO_TORCH)) == []


def test_light_rooms_do_not_load_torch_or_ray() -> None:
    """The same, for what their imports import."""
    names = [m.name for m in modules() if any(is_within(m.name, p) for p in NO_TORCH)]
    code = "import sys\n" + "".join(f"import {n}\n" for n in names)
    code += "print(*[n for n in ('torch', 'ray', 'transformers') if n in sys.modules])"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert (run.returncode, run.stdout.strip()) == (0, ""), run.stderr


def test_the_grammar_library_only_in_its_room() -> None:
    assert offenders("llguidance", lambda m: m.room == "grammar") == []


def test_grpc_only_at_the_edge() -> None:
    assert offenders("grpc", lambda m: m.room in GRPC_ROOMS) == []


def test_protocol_is_standard_library_only() -> None:
    outside = [
        f"{m.name}:{i.line} imports {i.name}"
        for m in modules()
        for i in m.imports
        if m.room in ("protocol", "errors", "config")
        and i.name.split(".")[0] not in sys.stdlib_module_names
        and room_of(i.name) not in ("protocol", "errors")
    ]
    assert outside == []


def test_api_does_not_load_transformers_at_import() -> None:
    at_top = [
        f"{m.name}:{node.lineno}"
        for m in modules()
        if m.room == "api"
        for node in m.tree.body
        if isinstance(node, (ast.Import, ast.ImportFrom))
        if any(is_within(i.name, "transformers") for i in imports_of(ast.Module([node], [])))
    ]
    assert at_top == []


def test_speculation_is_pure() -> None:
    impure = []
    for module in (m for m in modules() if m.room == "speculation"):
        impure += [
            f"{module.name}:{i.line} imports {i.name}"
            for i in module.imports
            if any(is_within(i.name, name) for name in IMPURE)
        ]
        impure += [
            f"{module.name}:{node.lineno} uses {ast.unparse(node)}"
            for node in ast.walk(module.tree)
            if isinstance(node, ast.Attribute) and ast.unparse(node) in GLOBAL_RANDOMNESS
        ]
    assert impure == []


def test_print_only_in_command_line_and_reports() -> None:
    printing = [
        f"{m.name}:{node.lineno}"
        for m in modules()
        if m.room != "cli" and not m.path.stem.startswith("report")
        for node in ast.walk(m.tree)
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "print"
    ]
    assert printing == []


def test_weights_never_come_from_pickle() -> None:
    used = []
    for module in modules():
        if module.room != "deployments":  # there it is Ray's own wire format, not weights
            used += [f"{module.name} imports pickle" for i in module.imports if i.name == "pickle"]
        for node in ast.walk(module.tree):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "torch.load":
                used.append(f"{module.name}:{node.lineno} calls torch.load")
            if isinstance(node, ast.keyword) and ast.unparse(node) == "trust_remote_code=True":
                used.append(f"{module.name}:{node.value.lineno} trusts remote code")
    assert used == []


def test_every_module_says_what_it_does() -> None:
    silent = [m.name for m in modules() if m.tree.body and not ast.get_docstring(m.tree)]
    assert silent == []


def test_files_are_short() -> None:
    long = [f"{m.name}: {m.num_lines}" for m in modules() if m.num_lines > MAX_FILE_LINES]
    assert long == []


def test_functions_are_short() -> None:
    long = []
    for module in modules():
        for node in ast.walk(module.tree):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                size = (node.end_lineno or node.lineno) - node.lineno + 1
                if size > MAX_FUNCTION_LINES:
                    long.append(f"{module.name}:{node.lineno} {node.name}: {size} lines")
    assert long == []


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("import ray", [("ray", False)]),
        ("from ray import serve", [("ray.serve", False)]),
        ("def f():\n    import torch.nn as nn", [("torch.nn", False)]),
        ("if TYPE_CHECKING:\n    import torch", [("torch", True)]),
        ("from . import x", [("..x", False)]),
    ],
)
def test_the_walk_sees_every_form_of_import(source: str, expected: list[tuple[str, bool]]) -> None:
    assert [(i.name, i.typing_only) for i in imports_of(ast.parse(source))] == expected
