"""A copy of an overlay's objects to put a fault into, with short ways to the usual places.

Used by the lists of seeded faults.
"""

from __future__ import annotations

import copy
import operator
from collections.abc import Callable
from typing import Any, NamedTuple

import yaml

from tests.k8s.gate.manifests import Manifests

put = operator.setitem


class Broken:
    """Objects that may be changed at will."""

    def __init__(self, manifests: Manifests) -> None:
        self.documents = copy.deepcopy(list(manifests.documents))

    def manifests(self) -> Manifests:
        """The objects as they are now."""
        return Manifests(tuple(self.documents))

    def find(self, kind: str, name: str) -> Any:
        """One object."""
        (document,) = (
            d for d in self.documents if (d["kind"], d["metadata"]["name"]) == (kind, name)
        )
        return document

    def drop(self, kind: str, name: str) -> None:
        """Take one object away."""
        self.documents.remove(self.find(kind, name))

    @property
    def service(self) -> Any:
        return self.find("RayService", "specdist")["spec"]

    @property
    def cluster(self) -> Any:
        return self.service["rayClusterConfig"]

    def group(self, name: str) -> Any:
        """A worker group, or the head group."""
        if name == "head":
            return self.cluster["headGroupSpec"]
        return next(g for g in self.cluster["workerGroupSpecs"] if g["groupName"] == name)

    def pod(self, name: str) -> Any:
        return self.group(name)["template"]["spec"]

    def container(self, name: str) -> Any:
        return self.pod(name)["containers"][0]

    def port(self, name: str, port: str) -> Any:
        return next(p for p in self.container(name)["ports"] if p["name"] == port)

    def variable(self, name: str, key: str) -> Any:
        return next(e for e in self.container(name)["env"] if e["name"] == key)

    def serve(self, change: Callable[[Any], object]) -> None:
        """Change the Serve config inside its string."""
        config = yaml.safe_load(self.service["serveConfigV2"])
        change(config)
        self.service["serveConfigV2"] = yaml.safe_dump(config)

    def application(self, change: Callable[[Any], object]) -> None:
        """Change the one application."""
        self.serve(lambda config: change(config["applications"][0]))

    def deployment(self, name: str, change: Callable[[Any], object]) -> None:
        """Change one deployment of the Serve config."""

        def within(application: Any) -> None:
            change(next(d for d in application["deployments"] if d["name"] == name))

        self.application(within)


class Fault(NamedTuple):
    """One mistake, and the check that must see it."""

    caught_by: str
    what: str
    change: Callable[[Broken], object]


def update(**values: Any) -> Callable[[Any], object]:
    """A change that sets keys of a mapping."""
    return lambda mapping: mapping.update(values)


def scaling(**values: Any) -> Callable[[Any], object]:
    """A change of a deployment's autoscaling_config."""
    return lambda deployment: deployment["autoscaling_config"].update(values)


def options(**values: Any) -> Callable[[Any], object]:
    """A change of a deployment's ray_actor_options."""
    return lambda deployment: deployment["ray_actor_options"].update(values)
