"""MLflow's pages in a browser that is signed in at the hub: `<service's prefix>mlflow/`.

The hub says who the browser is (OAuth, a cookie of this service's own); MLflow gets that user's account. The pages ask
by relative addresses and need no prefix of their own.
"""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import urlsplit

from jupyterhub.services.auth import HubOAuthCallbackHandler, HubOAuthenticated
from slicelift.errors import Denied
from tornado.web import HTTPError, RedirectHandler

from slicelift_hub.launcher.auth import Principal
from slicelift_hub.launcher.handler import make_not_signed_in
from slicelift_hub.launcher.mlflow_gate import GateHandler

PAGES = "mlflow/"
CALLBACK = "oauth_callback"


class MlflowPagesHandler(HubOAuthenticated, GateHandler):  # type: ignore[misc]  # jupyterhub has no types
    """MLflow as a browser sees it. Nothing that is not the caller's own; see the module."""

    pages = True

    @property
    def prefix(self) -> str:
        """Where the pages are, as the browser names it."""
        assert self.services.hub is not None
        return f"{self.services.hub.prefix}{PAGES}"

    @property
    def raw_path(self) -> str:
        return self.request.path.removeprefix(self.prefix)

    def set_default_headers(self) -> None:
        """No page of another, such as one of somebody's session, may frame these."""
        self.set_header("Content-Security-Policy", "frame-ancestors 'none'")
        self.set_header("X-Content-Type-Options", "nosniff")

    def check_xsrf_cookie(self) -> None:
        """MLflow's pages know no token against forged requests: a call must come from one of them instead.

        The hub asks this for whatever is not a plain visit. Raises tornado's 403.
        """
        headers = self.request.headers
        site, referer = headers.get("Sec-Fetch-Site", ""), urlsplit(headers.get("Referer", ""))
        ours = referer.netloc == self.request.host and referer.path.startswith(self.prefix)
        if site not in ("", "same-origin") or not ours:
            raise HTTPError(403, "The call did not come from MLflow's own pages")

    async def _authenticate(self) -> None:
        user = await self.hub_auth.get_user(self, sync=False)
        if user and user.get("kind", "user") == "user":
            if not self.hub_auth.check_scopes(self.hub_scopes or set(), user):
                message = f"{user['name']} may not open this service."
                raise Denied("not-allowed", message, "Ask your admin for access:services!service=launcher.")
            self.principal = Principal(owner=str(user["name"]))
        elif self.request.method == "GET" and not self.raw_path:
            self.redirect(self.get_login_url())
        else:
            raise make_not_signed_in()


def make_page_routes(prefix: str) -> list[tuple[Any, ...]]:
    """What browsers are shown, below the service's `prefix` (`/services/launcher/`)."""
    base, pages = re.escape(prefix), f"{prefix}{PAGES}"
    return [
        (rf"{base}{CALLBACK}", HubOAuthCallbackHandler),
        # without the slash the relative addresses of the pages would lead elsewhere
        (rf"{base}{PAGES[:-1]}", RedirectHandler, {"url": pages, "permanent": False}),
        (rf"{base}{PAGES}(.*)", MlflowPagesHandler),
    ]
