"""What can be asked for: MIG slices, spawn profiles and launch presets.

A leaf of the house: it imports nothing of Slicelift, so that a hub's configuration, a launcher and a
command line can all read the same choices.
"""

from __future__ import annotations

from slicelift_profiles.faults import Fault, ProfileError

__all__ = ["Fault", "ProfileError"]
