"""The README's list of files names every module, and nothing that is not there.

Run as a script it writes the list anew, each phrase from the module's own docstring.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
README = ROOT / "README.md"
BLOCK = re.compile(r"(<!-- files -->\n)(.*?)(<!-- /files -->)", re.DOTALL)
PACKAGES = ("specdist", "deployments")
OTHERS = {
    "specdist/api/static/": "the page's HTML, CSS and JavaScript, served as they are",
    "serve_config.yaml": "the Ray Serve application: what is deployed and its settings",
    "proto/specdist.proto": "the public gRPC service",
    "k8s/": "the service on Kubernetes with KubeRay: kustomize base, components, overlays, runbook",
    "docker/": "the image of head and workers",
    "scripts/": "Serve configs of the overlays, dashboard and make observe; a pinned kubectl",
    "models/": "the shipped draft and its model card",
    "benchmarks/": "measuring scripts and recorded results",
    "docs/": "architecture, terms, how to add things, decisions",
    "tests/": "unit, contracts, integration, k8s, page, e2e, and the house rules",
    "Makefile": "serve, test, observe, dashboard, k8s-check, k8s-render, lint, types, proto, clean",
    "constraints.txt": "the tested version of every package",
    ".ci/run": "everything that must hold before a change lands",
}
LINK = re.compile(r"\]\((?!https?:)([^)#]+)\)")


def modules() -> list[Path]:
    """Every hand-written module that says what it does."""
    paths = [path for package in PACKAGES for path in (ROOT / package).rglob("*.py")]
    paths.sort(key=lambda path: (path.parent, path.name))
    return [p for p in paths if "generated" not in p.parts and phrase(p)]


def phrase(path: Path) -> str:
    """The first sentence of a module's docstring."""
    text = ast.get_docstring(ast.parse(path.read_text())) or ""
    first = " ".join(text.split("\n\n")[0].split())
    return first.replace("``", "").removesuffix(".")


def file_tree() -> str:
    """The list as it stands in the README."""
    rows, room = [], None
    for path in modules():
        relative = path.relative_to(ROOT)
        if relative.parent != room:
            room = relative.parent
            rows.append(f"{room}/")
        rows.append(f"  {relative.name:<20} {phrase(path)}")
    for name, text in OTHERS.items():
        if (ROOT / name).exists():
            rows.append(f"{name:<22} {text}")
    return "```text\n" + "\n".join(rows) + "\n```\n"


def listed_modules() -> set[str]:
    """Paths that the README lists."""
    found, room = set(), ""
    block = BLOCK.search(README.read_text())
    for line in (block[2] if block else "").splitlines():
        name = line.split(" ")[0] if not line.startswith("  ") else line.split()[0]
        if line.startswith("  "):
            found.add(f"{room}{name}")
        else:
            room = name
    return found


def test_readme_lists_every_module() -> None:
    there = {str(path.relative_to(ROOT)) for path in modules()}
    assert listed_modules() == there, "run: python tests/test_docs.py"


def test_links_of_the_documents_lead_somewhere() -> None:
    documents = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), ROOT / "k8s/README.md"]
    dead = [
        f"{document.relative_to(ROOT)} -> {target}"
        for document in documents
        for target in LINK.findall(document.read_text())
        if not (document.parent / target).exists()
    ]
    assert dead == []


if __name__ == "__main__":
    README.write_text(BLOCK.sub(lambda m: m[1] + file_tree() + m[3], README.read_text()))
