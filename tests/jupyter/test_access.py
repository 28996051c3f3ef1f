"""Who may call: nobody without a token in either mode of Jupyter, nobody across sites, nobody that the server forbids."""

from __future__ import annotations

import json
from typing import Any

import pytest
from jupyter_server.auth import Authorizer
from slicelift.server.base import Handler
from slicelift.server.handlers import HANDLERS
from tornado.httpclient import HTTPClientError

RUN = "r-abcdefabcdef"
METHODS = ("get", "post", "put", "patch", "delete", "head")


def _calls() -> list[tuple[str, str]]:
    """(method, path) of everything that any handler answers."""
    found = []
    for pattern, handler in HANDLERS:
        path = pattern.replace("(r-[a-z0-9]{1,40})", RUN).replace(".*", "jobs").removeprefix("/")
        own = [name for name in METHODS if name in vars(handler)]
        found += [(name.upper(), path) for name in own]
    return found


class ReadOnly(Authorizer):
    """Lets look, and nothing else; as an admin may set it."""

    def is_authorized(self, handler: Any, user: Any, action: str, resource: str) -> bool:
        return resource == "slicelift" and action == "read"


@pytest.fixture(params=[False, True], ids=["closed", "unauthenticated-allowed"])
def jp_server_config(request: pytest.FixtureRequest) -> dict[str, Any]:
    return {
        "ServerApp": {
            "jpserver_extensions": {"slicelift.server": True},
            "allow_unauthenticated_access": request.param,
        },
        "SliceliftServer": {"worker_delay_seconds": -1.0, "start_launcher": False},
    }


def test_there_is_something_to_test() -> None:
    assert {path for _, path in _calls()} == {
        "slicelift/context",
        "slicelift/check",
        "slicelift/plan",
        "slicelift/promote",
        f"slicelift/card/{RUN}",
        "slicelift/api/jobs",
    }
    assert len(_calls()) == 9
    assert all(issubclass(handler, Handler) for _, handler in HANDLERS)


async def test_no_handler_answers_without_a_token(jp_fetch: Any) -> None:
    for method, path in _calls():
        body = "{}" if method in ("POST", "PUT") else None
        headers = {"Authorization": "token wrong"}
        with pytest.raises(HTTPClientError) as refused:
            await jp_fetch(path, method=method, body=body, headers=headers)
        assert refused.value.code == 403, (method, path)
        told = json.loads(refused.value.response.body)
        assert set(told) == {"code", "message", "hint"}, (method, path)
        assert told["code"] == "not-allowed"


async def test_a_post_from_another_site_is_refused(
    jp_fetch: Any, http_server_client: Any, jp_base_url: str, jp_serverapp: Any
) -> None:
    """Signed in by cookie, as a browser is: without the XSRF header nothing is done."""
    fetch, token = http_server_client.fetch, jp_serverapp.identity_provider.token
    # the page of the sign-in brings the XSRF cookie, the signing in the other one
    pages = [
        await fetch(f"{jp_base_url}{page}", raise_error=False) for page in ("login", f"tree?token={token}")
    ]
    cookies = [line.split(";")[0] for page in pages for line in page.headers.get_list("Set-Cookie")]
    assert len(cookies) >= 2
    xsrf = next(cookie for cookie in cookies if cookie.startswith("_xsrf=")).partition("=")[2]
    headers = {"Cookie": "; ".join(reversed(cookies)), "Authorization": ""}
    for method, path in _calls():
        if method == "GET":
            continue
        body = "{}" if method in ("POST", "PUT") else None
        with pytest.raises(HTTPClientError) as refused:
            await jp_fetch(path, method=method, body=body, headers=dict(headers))
        assert refused.value.code == 403, (method, path)
        with pytest.raises(HTTPClientError) as known:
            await jp_fetch(path, method=method, body=body, headers=headers | {"X-XSRFToken": xsrf})
        # past the door: what it then says is about the call itself
        assert known.value.code in (400, 404, 503), (method, path)


async def test_an_admin_may_forbid_all_but_looking(jp_fetch: Any, jp_serverapp: Any) -> None:
    jp_serverapp.web_app.settings["authorizer"] = ReadOnly(parent=jp_serverapp)
    assert (await jp_fetch("slicelift/context")).code == 200
    for method, path in _calls():
        if method == "GET":
            continue
        body = "{}" if method in ("POST", "PUT") else None
        with pytest.raises(HTTPClientError) as refused:
            await jp_fetch(path, method=method, body=body)
        assert refused.value.code == 403, (method, path)
    # after a POST that was forbidden the same path may still be read
    with pytest.raises(HTTPClientError) as away:
        await jp_fetch("slicelift/api/jobs")
    assert away.value.code == 503


async def test_no_call_counts_as_activity(jp_fetch: Any, jp_serverapp: Any) -> None:
    settings = jp_serverapp.web_app.settings
    before = settings.get("api_last_activity")
    for method, path in _calls():
        body = "{}" if method in ("POST", "PUT") else None
        answer = await jp_fetch(path, method=method, body=body, raise_error=False)
        assert answer.code in (200, 400, 404, 503)
    assert settings.get("api_last_activity") == before
    active = jp_serverapp.web_app.last_activity()
    await jp_fetch("api/contents")
    # the same figure does move for what counts
    assert jp_serverapp.web_app.last_activity() > active


async def test_what_goes_wrong_inside_is_not_shown(
    jp_fetch: Any, jp_serverapp: Any, jp_create_notebook: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(*_: Any, **__: Any) -> None:
        raise RuntimeError("/home/somebody/secret")

    monkeypatch.setattr(jp_serverapp.web_app.settings["slicelift_workers"], "call", broken)
    jp_create_notebook("a.ipynb")
    with pytest.raises(HTTPClientError) as refused:
        await jp_fetch("slicelift/check", method="POST", body='{"path": "a.ipynb"}')
    told = json.loads(refused.value.response.body)
    assert (refused.value.code, told["code"]) == (500, "internal")
    assert "secret" not in refused.value.response.body.decode()
