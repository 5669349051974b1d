"""The application on one screen; the only place where classes become deployments.

    clients --HTTP, gRPC--> Router --open, offer, close--> Target
                              |  <------ reports ------------'
                              '------ open, observe, close --> Draft
                                 <------ trees ----------------'

``serve_config.yaml`` names ``build_app`` and sets replicas, autoscaling and devices of
each deployment apart from the others.
"""

from __future__ import annotations

from typing import Any

from ray import serve
from ray.serve import Application

from deployments.draft import Draft
from deployments.router import Router
from deployments.target import Target
from specdist.config import AppConfig

MAX_ONGOING_REQUESTS = 4096  # sessions, feeds and messages; the workers limit the sessions
SHUTDOWN_MARGIN_S = 10.0  # beyond the longest answer, so that draining cuts none off
QUIET = {"enable_access_log": False}  # a line for each message of each step is too much


def build_app(args: dict[str, Any]) -> Application:
    """Check the settings strictly and bind the three deployments; raises ConfigError."""
    config = AppConfig.from_mapping(args)
    common: dict[str, Any] = {
        "max_ongoing_requests": MAX_ONGOING_REQUESTS,
        "graceful_shutdown_timeout_s": config.router.max_answer_s + SHUTDOWN_MARGIN_S,
        "health_check_period_s": 5.0,
        "health_check_timeout_s": 30.0,
    }
    target = serve.deployment(Target, name="Target", logging_config=QUIET, **common)
    draft = serve.deployment(Draft, name="Draft", logging_config=QUIET, **common)
    router = serve.deployment(serve.ingress()(Router), name="Router", **common)
    return router.bind(config, target.bind(config), draft.bind(config))
