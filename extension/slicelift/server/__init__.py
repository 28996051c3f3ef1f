"""The Jupyter server extension: a thin, authenticated way from the page to the launcher, and one warm worker.

Light on purpose: Jupyter imports it at its start, and so does the worker process.
"""

from __future__ import annotations

from typing import Any


def _jupyter_server_extension_points() -> list[dict[str, Any]]:
    """What Jupyter asks every extension for."""
    from slicelift.server.app import SliceliftServer  # not for the worker, which has no Jupyter to serve

    return [{"module": "slicelift.server", "app": SliceliftServer}]
