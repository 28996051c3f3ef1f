"""Where the launcher is when the environment says so: in a session of a hub, which has one launcher for all.

With `SLICELIFT_LAUNCHER_URL` set nothing is started and no state file is read. The token is
`SLICELIFT_LAUNCHER_TOKEN`, else the session's own, `JUPYTERHUB_API_TOKEN`.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field

from slicelift.errors import Conflict, Denied, UserError

URL = "SLICELIFT_LAUNCHER_URL"
TOKENS = ("SLICELIFT_LAUNCHER_TOKEN", "JUPYTERHUB_API_TOKEN")
AWAY_HINT = (
    "It belongs to the hub and comes back with it, and jobs go on meanwhile: "
    "try again in a minute, then tell whoever runs the hub."
)


@dataclass(frozen=True, kw_only=True)
class Address:
    """A launcher that somebody else runs. The token is not shown by `repr`."""

    url: str
    token: str = field(repr=False)


def told() -> Address | None:
    """The address in the environment, None when it names none.

    Raises `launcher-url-invalid` for what is no http address, and `launcher-token-missing`.
    """
    url = os.environ.get(URL, "").strip().rstrip("/")
    if not url:
        return None
    if not url.startswith(("http://", "https://")):
        hint = f"Unset {URL} to use a launcher of your own, or restart this session from the hub."
        raise UserError("launcher-url-invalid", f"{URL} is {url!r}, which is no http address.", hint)
    token = next((os.environ[name] for name in TOKENS if os.environ.get(name)), "")
    if not token:
        message = f"{URL} names the launcher at {url}, but there is no token for it."
        hint = f"A session of the hub has one in {TOKENS[1]}; elsewhere set {TOKENS[0]}."
        raise Denied("launcher-token-missing", message, hint)
    return Address(url=url, token=token)


def refuse_service(command: str) -> None:
    """For `up` and `down`: raises `launcher-of-the-hub` where the environment names a launcher."""
    url = os.environ.get(URL, "").strip()
    if url:
        message = (
            f"`slicelift {command}` is for a launcher of your own; this session uses the hub's, at {url}."
        )
        hint = f"The hub starts and stops it. For one of your own: env -u {URL} slicelift {command}"
        raise Conflict("launcher-of-the-hub", message, hint)
