"""People of a hub whose sessions are pods, without a browser: what its pages do, by the same calls."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import httpx
from bed import kit
from bed.kit import Api
from place import ClusterHub

SESSION = "component=singleuser-server"


@dataclass
class Person:
    """Somebody signed in, with the cookies of a browser."""

    name: str
    hub: ClusterHub
    http: httpx.Client

    def api(self, method: str, path: str, body: object = None) -> httpx.Response:
        """The hub's API, as the hub's own pages call it."""
        token = next(c.value or "" for c in self.http.cookies.jar if c.name == "_xsrf" and "/hub" in c.path)
        headers = {"X-XSRFToken": token, "Referer": self.hub.url}
        return self.http.request(method, f"/hub/api/{path}", json=body, headers=headers)

    def form(self) -> str:
        """The spawn form's text."""
        return re.sub(r"<style>.*?</style>|<[^>]*>", " ", self.http.get("/hub/spawn").text, flags=re.DOTALL)

    def begin(self, profile: str) -> httpx.Response:
        """Ask for a session."""
        return self.api("POST", f"users/{self.name}/server", {"profile": profile})

    def spawn(self, profile: str) -> None:
        """A session, once it answers."""
        assert (answer := self.begin(profile)).status_code in (201, 202), answer.text
        kit.wait_for(f"the session of {self.name}", self.is_ready, seconds=180)

    def steps(self) -> Iterator[str]:
        """What the page of a start says, as it comes, until the start is over."""
        with self.http.stream("GET", f"/hub/api/users/{self.name}/server/progress") as answer:
            for line in answer.iter_lines():
                if line.startswith("data: "):
                    yield str(json.loads(line.removeprefix("data: ")).get("message", ""))

    def is_ready(self) -> bool:
        """Whether the hub says that the session answers."""
        servers = self.api("GET", f"users/{self.name}").json().get("servers", {})
        return bool(servers.get("", {}).get("ready"))

    def stop(self) -> None:
        """The end of the session, waited for."""
        assert self.api("DELETE", f"users/{self.name}/server").status_code in (202, 204)
        kit.wait_for(
            "the session to end",
            lambda: not self.api("GET", f"users/{self.name}").json().get("servers"),
            seconds=60,
        )

    def token(self) -> str:
        """A new token of this person's."""
        made = self.api("POST", f"users/{self.name}/tokens", {"note": "test"})
        assert made.status_code == 201, made.text
        return str(made.json()["token"])

    def session(self, method: str, path: str, body: object = None) -> httpx.Response:
        """The API of the session's own server, through the proxy."""
        headers = {"Authorization": f"token {self.token()}"}
        return self.http.request(method, f"/user/{self.name}/api/{path}", json=body, headers=headers)


@contextmanager
def signing_in(hub: ClusterHub) -> Iterator[Callable[[str], Person]]:
    """Makes a new account, signed in, by name."""
    made: list[httpx.Client] = []

    def sign_in(name: str) -> Person:
        password = hub.slicelift("hub", "add-user", name)["password"]
        http = httpx.Client(base_url=hub.url, trust_env=False, follow_redirects=True, timeout=60)
        made.append(http)
        page = http.get("/hub/login")
        assert "isolation: one pod per session" in page.text
        token = next(c.value for c in http.cookies.jar if c.name == "_xsrf" and "/hub" in c.path)
        form = {"username": name, "password": password, "_xsrf": token}
        assert http.post("/hub/login", params={"next": "/hub/home"}, data=form).status_code == 200
        return Person(name=name, hub=hub, http=http)

    yield sign_in
    for http in made:
        http.close()


def pod_of(api: Api, namespace: str, name: str) -> Any:
    """The pod of somebody's session."""
    (pod,) = [
        pod
        for pod in api.core.list_namespaced_pod(namespace, label_selector=SESSION).items
        if pod.metadata.annotations["hub.jupyter.org/username"] == name
    ]
    return pod
