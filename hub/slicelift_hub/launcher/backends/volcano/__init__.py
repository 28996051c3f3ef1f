"""Gangs on Kubernetes by Volcano: `Volcano` is the backend, the modules beside it are its parts.

`manifest`, `worker`, `status`, `waiting`, `quotas` and `names` are pure; `client` alone speaks to the API server.
"""

from __future__ import annotations

from slicelift_hub.launcher.backends.volcano.backend import Volcano

__all__ = ["Volcano"]
