"""Every call the launcher answers, in one table."""

from __future__ import annotations

import re
from typing import Any

from slicelift_hub.launcher import routes_agent, routes_files, routes_jobs, routes_service
from slicelift_hub.launcher.handler import Handler
from slicelift_hub.launcher.mlflow_gate import GateHandler
from slicelift_hub.launcher.passthrough import PassthroughHandler

_RUN = r"([rp]-[a-z0-9]{1,40})"
_ATTEMPT = r"(r-[a-z0-9]{1,40}-[0-9]{1,6})"
_NAME = r"([^/]+)"

ROUTES: tuple[tuple[str, type[Handler]], ...] = (
    (r"/health", routes_service.HealthHandler),
    (r"/capacity", routes_service.CapacityHandler),
    (r"/snapshots", routes_files.SnapshotsHandler),
    (r"/snapshots/([0-9a-f]{64})", routes_files.SnapshotHandler),
    (r"/snapshots/([0-9a-f]{64})/files/(.+)", routes_files.SnapshotFileHandler),
    (r"/blobs", routes_files.BlobsHandler),
    (r"/plan", routes_jobs.PlanHandler),
    (r"/jobs", routes_jobs.JobsHandler),
    (rf"/jobs/{_RUN}", routes_jobs.JobHandler),
    (rf"/jobs/{_RUN}/cancel", routes_jobs.CancelHandler),
    (rf"/jobs/{_RUN}/suspend", routes_jobs.SuspendHandler),
    (rf"/jobs/{_RUN}/scale", routes_jobs.ScaleHandler),
    (rf"/jobs/{_RUN}/retry", routes_jobs.RetryHandler),
    (rf"/jobs/{_RUN}/attempts", routes_jobs.AttemptsHandler),
    (rf"/jobs/{_RUN}/series", routes_files.SeriesHandler),
    (rf"/jobs/{_RUN}/logs", routes_files.LogsHandler),
    (rf"/jobs/{_RUN}/outputs", routes_files.OutputsHandler),
    (rf"/jobs/{_RUN}/outputs/([0-9]{{1,6}})/(.+)", routes_files.OutputHandler),
    (r"/events", routes_service.EventsHandler),
    (r"/models", routes_service.ModelsHandler),
    (rf"/models/{_NAME}/aliases/{_NAME}", routes_service.AliasHandler),
    (r"/secrets", routes_service.SecretsHandler),
    (rf"/secrets/{_NAME}", routes_service.SecretHandler),
    (r"/shutdown", routes_service.ShutdownHandler),
    (rf"/attempts/{_ATTEMPT}/snapshot", routes_agent.AgentSnapshotHandler),
    (rf"/attempts/{_ATTEMPT}/secrets", routes_agent.AgentSecretsHandler),
    (rf"/attempts/{_ATTEMPT}/events", routes_agent.AgentEventsHandler),
    (rf"/attempts/{_ATTEMPT}/logs", routes_agent.AgentLogsHandler),
    (rf"/attempts/{_ATTEMPT}/outputs/(.+)", routes_agent.AgentOutputHandler),
    (rf"/attempts/{_ATTEMPT}/blobs/([0-9a-f]{{64}})", routes_agent.AgentBlobHandler),
    (rf"/attempts/{_ATTEMPT}/models", routes_agent.AgentModelsHandler),
    (rf"/attempts/{_ATTEMPT}/state", routes_agent.AgentStateHandler),
    (rf"/attempts/{_ATTEMPT}/mlflow/(.+)", PassthroughHandler),
    (r"/mlflow/(.+)", GateHandler),
)


def make_routes(prefix: str = "") -> list[tuple[Any, ...]]:
    """The table as tornado wants it; under a hub a second time below the service's `prefix` (`/services/launcher/`)."""
    bases = ["", re.escape(prefix.rstrip("/"))] if prefix.strip("/") else [""]
    calls = [(f"{base}/api/v1{pattern}", handler) for base in bases for pattern, handler in ROUTES]
    return [*calls, *(_page_routes(prefix) if len(bases) > 1 else [])]


def _page_routes(prefix: str) -> list[tuple[Any, ...]]:
    from slicelift_hub.launcher.hub_pages import (
        make_page_routes,
    )  # jupyterhub: half a second, and only under one

    return make_page_routes(prefix)
