"""Merges serve_config.yaml and the patches of an overlay into the overlay's serve_config.yaml.

RayService wants the Serve config as one string, and kustomize cannot merge inside a string.
So the merged file is written next to the overlay, checked in, and compared anew by the
tests. What contributes is what the overlay's kustomization names: each of its resources and
components that has a ``serve_patch.yaml``, then the overlay's own. Mappings merge, lists of
named things merge by name, any other list replaces, ``null`` takes a key away. Knows neither
Ray nor Kubernetes. ``make k8s-render`` runs it.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "serve_config.yaml"
OVERLAYS = ROOT / "k8s" / "overlays"
PATCH = "serve_patch.yaml"
HEADER = (
    "# Made by `make k8s-render` from serve_config.yaml and:\n{patches}\n# Change those instead.\n"
)


class PatchError(ValueError):
    """A patch names something that is not there."""


def merge(base: Any, patch: Any, where: str = "") -> Any:
    """``base`` changed by ``patch``; raises PatchError when a named entry is not there."""
    if isinstance(base, Mapping) and isinstance(patch, Mapping):
        merged = dict(base)
        for key, value in patch.items():
            if value is None:
                _take_away(merged, key, where)
            elif key in merged:
                merged[key] = merge(merged[key], value, f"{where}.{key}")
            else:
                merged[key] = value
        return merged
    if _is_named(base) and _is_named(patch):
        return _merge_named(base, patch, where)
    return patch


def _take_away(mapping: dict[str, Any], key: str, where: str) -> None:
    if key not in mapping:
        known = ", ".join(mapping)
        raise PatchError(f"{where}.{key} cannot be taken away: it is not there; there are {known}")
    del mapping[key]


def _is_named(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(v, Mapping) and "name" in v for v in value)


def _merge_named(
    base: Sequence[Mapping[str, Any]], patch: Sequence[Mapping[str, Any]], where: str
) -> list[Any]:
    names = [item["name"] for item in base]
    changes = {item["name"]: item for item in patch}
    if unknown := [name for name in changes if name not in names]:
        raise PatchError(f"{where} has no entry named {unknown[0]!r}; there are {', '.join(names)}")
    return [merge(item, changes.get(item["name"], {}), f"{where}[{item['name']}]") for item in base]


def patch_files(overlay: Path) -> list[Path]:
    """The Serve patches of an overlay, in the order in which they apply."""
    kustomization = yaml.safe_load((overlay / "kustomization.yaml").read_text())
    named = [*kustomization.get("resources", []), *kustomization.get("components", [])]
    folders = [(overlay / name).resolve() for name in named] + [overlay.resolve()]
    return [folder / PATCH for folder in folders if (folder / PATCH).is_file()]


def render(overlay: Path) -> str:
    """The text of an overlay's Serve config; raises PatchError."""
    config = yaml.safe_load(SOURCE.read_text())
    files = patch_files(overlay)
    for file in files:
        config = merge(config, yaml.safe_load(file.read_text()), str(file.relative_to(ROOT)))
    names = "\n".join(f"#   {file.relative_to(ROOT)}" for file in files)
    body = yaml.safe_dump(config, sort_keys=False, width=100)
    return HEADER.format(patches=names) + body


def overlays() -> list[Path]:
    """Every overlay's folder."""
    return sorted(path.parent for path in OVERLAYS.glob("*/kustomization.yaml"))


def main() -> int:
    """Write the Serve config of every overlay."""
    for overlay in overlays():
        try:
            text = render(overlay)
        except PatchError as error:
            sys.stderr.write(f"{overlay.relative_to(ROOT)}: {error}\n")
            return 1
        (overlay / SOURCE.name).write_text(text)
        sys.stdout.write(f"{(overlay / SOURCE.name).relative_to(ROOT)}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
