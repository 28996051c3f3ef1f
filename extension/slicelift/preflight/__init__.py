"""What will break in a job, at cell and line, before anything is sent."""

from __future__ import annotations

from slicelift.preflight.checking import Report, check, project_root

__all__ = ["Report", "check", "project_root"]
