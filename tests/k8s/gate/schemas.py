"""Does every object have the shape that the API server wants: unknown fields are errors.

Core kinds by the published schemas of Kubernetes, RayService by KubeRay's own CRD. Knows
nothing of what the values mean.
"""

from __future__ import annotations

import copy
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import yaml

from tests.k8s.gate.manifests import Manifests
from tests.k8s.gate.problems import Check, Problem, name_of

KUBERNETES = "1.37"
# Kinds without a schema here: what matters in them, other checks look at by name.
CUSTOM_KINDS = {
    "gateway.networking.k8s.io/v1": {"Gateway", "HTTPRoute", "GRPCRoute"},
    "karpenter.sh/v1": {"NodePool"},
    "monitoring.coreos.com/v1": {"PodMonitor", "ServiceMonitor", "PrometheusRule"},
    "monitoring.coreos.com/v1alpha1": {"ScrapeConfig"},
    "ray.io/v1": {"RayService"},
}


def check_core_objects(manifests: Manifests) -> list[Problem]:
    """Every core object by the schema of its kind, strictly."""
    found = []
    for document in manifests.documents:
        if document.get("kind") in CUSTOM_KINDS.get(document.get("apiVersion", ""), ()):
            continue
        try:
            kubernetes_validate.validate(document, KUBERNETES, strict=True)
        except kubernetes_validate.ValidationError as error:
            field = ".".join(str(part) for part in error.path)
            found.append(Problem(name_of(document), field or "(top)", error.message))
        except kubernetes_validate.SchemaNotFoundError:
            kind = f"{document.get('apiVersion')} {document.get('kind')}"
            found.append(Problem(name_of(document), "kind", f"no schema knows {kind}"))
    return found


@cache
def rayservice_schema(crd_file: Path) -> dict[str, Any]:
    """The schema of ray.io/v1 in KubeRay's CRD, made strict."""
    crd = yaml.load(crd_file.read_text(), yaml.CSafeLoader)
    (version,) = (v for v in crd["spec"]["versions"] if v["name"] == "v1")
    schema: dict[str, Any] = _tighten(version["schema"]["openAPIV3Schema"])
    return schema


def _tighten(schema: Any) -> Any:
    """A structural schema as plain JSON schema in which unknown keys are errors."""
    if isinstance(schema, list):
        return [_tighten(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    tight = {key: _tighten(value) for key, value in schema.items()}
    if tight.get("x-kubernetes-int-or-string"):
        tight.pop("type", None)
        tight["type"] = ["integer", "string"]
        tight.pop("anyOf", None)
    elif (
        "properties" in tight
        and isinstance(tight.get("type"), str)  # else it is a property named so
        and not tight.get("x-kubernetes-preserve-unknown-fields")
    ):
        tight.setdefault("additionalProperties", False)
    return tight


def _with_defaults(value: Any, schema: dict[str, Any]) -> Any:
    """What the API server adds before it validates."""
    if isinstance(value, dict):
        for key, part in schema.get("properties", {}).items():
            if key not in value and "default" in part:
                value[key] = copy.deepcopy(part["default"])
            elif key in value:
                _with_defaults(value[key], part)
    elif isinstance(value, list) and isinstance(schema.get("items"), dict):
        for item in value:
            _with_defaults(item, schema["items"])
    return value


def _repeated_keys(value: Any, schema: dict[str, Any], field: str) -> list[tuple[str, str]]:
    """Entries of a list with keys (containers by name, say) that are there twice."""
    found = []
    if isinstance(value, dict):
        for key, part in schema.get("properties", {}).items():
            if key in value:
                found += _repeated_keys(value[key], part, f"{field}.{key}")
    elif isinstance(value, list) and isinstance(schema.get("items"), dict):
        keys = schema.get("x-kubernetes-list-map-keys", ())
        seen = [tuple(str(item.get(key)) for key in keys) for item in value if keys]
        found += [(field, f"{', '.join(k)} is there twice") for k in set(seen) if seen.count(k) > 1]
        for number, item in enumerate(value):
            found += _repeated_keys(item, schema["items"], f"{field}[{number}]")
    return found


def rayservice_check(crd_file: Path) -> Check:
    """The check of a RayService by that CRD."""

    def check_rayservice_schema(manifests: Manifests) -> list[Problem]:
        schema = rayservice_schema(crd_file)
        document = _with_defaults(copy.deepcopy(manifests.rayservice), schema)
        validator = jsonschema.Draft202012Validator(schema)
        found = [
            Problem(name_of(document), ".".join(str(p) for p in error.absolute_path), error.message)
            for error in validator.iter_errors(document)
        ]
        repeated = _repeated_keys(document, schema, "")
        return found + [Problem(name_of(document), f.lstrip("."), text) for f, text in repeated]

    return check_rayservice_schema
