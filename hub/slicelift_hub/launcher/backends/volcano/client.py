"""The one module that speaks to the API server: plain JSON in and out, errors in our words.

Objects are dicts: the client's own classes cost ten times the memory, and Volcano's kinds have none there.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from slicelift.errors import Conflict, NotFound, Refused, SliceliftError, Unavailable

Answer = dict[str, Any]

_CONNECT_SECONDS, _READ_SECONDS = 5.0, 30.0
# a watch ends by itself after so long. The server sends a bookmark every minute, though not of events: a watch that is
# silent for longer may have lost its connection, and is begun again
WATCH_SECONDS = 270
_QUIET_SECONDS = 100.0
_PAGE = 500
_JSON = "application/json"
_TYPES = {"PATCH": "application/json-patch+json"}


class Gone(SliceliftError):
    """A watch cannot go on from there: list again."""


class Client:
    """One API server. Thread-safe; connects at the first call, and at most `qps` calls a second leave it."""

    def __init__(self, *, kubeconfig: str = "", context: str = "", qps: float = 50.0) -> None:
        self._kubeconfig = kubeconfig
        self._context = context
        self._pace = _Pace(qps)
        self._lock = threading.Lock()
        self._made: Any = None

    def get(self, path: str, **query: str) -> Answer:
        """One object. Raises NotFound, Unavailable (also while its own token is not accepted, or lacks a right)."""
        return self._call("GET", path, query=query)

    def find(self, path: str) -> Answer | None:
        """One object, or None."""
        try:
            return self.get(path)
        except NotFound:
            return None

    def list(self, path: str, **query: str) -> tuple[list[Answer], str]:
        """(all objects of a kind, the version of the list to watch from); read in pages."""
        found: list[Answer] = []
        following: dict[str, str] = {}
        while True:
            answer = self._call("GET", path, query={**query, "limit": str(_PAGE), **following})
            found += answer.get("items") or []
            metadata = answer.get("metadata") or {}
            if not metadata.get("continue"):
                return found, str(metadata.get("resourceVersion", ""))
            following = {"continue": metadata["continue"]}

    def create(self, path: str, body: Mapping[str, Any], *, dry_run: bool = False) -> Answer:
        """The object as the API server has made it. Raises Conflict when the name is taken, Refused with its words."""
        query = {"fieldValidation": "Strict"} | ({"dryRun": "All"} if dry_run else {})
        return self._call("POST", path, query=query, body=body)

    def patch(self, path: str, changes: Sequence[Mapping[str, Any]]) -> Answer:
        """The object after `changes`, a JSON patch. Raises NotFound, Refused with the server's words."""
        return self._call("PATCH", path, body=list(changes))

    def delete(self, path: str, *, uid: str = "", grace_seconds: float | None = None) -> bool:
        """Have it deleted, what belongs to it too; whether it was there. `uid`: only if it is still that one."""
        body: dict[str, Any] = {
            "kind": "DeleteOptions",
            "apiVersion": "v1",
            "propagationPolicy": "Background",
        }
        if uid:
            body["preconditions"] = {"uid": uid}
        if grace_seconds is not None:
            body["gracePeriodSeconds"] = max(0, round(grace_seconds))
        try:
            self._call("DELETE", path, body=body)
        except (NotFound, Conflict):
            return False
        return True

    def watch(self, path: str, *, version: str, **query: str) -> Watch:
        """Follow what changes after `version`. Raises what `get` raises."""
        wanted = {"watch": "true", "allowWatchBookmarks": "true", "resourceVersion": version, **query}
        wanted["timeoutSeconds"] = str(WATCH_SECONDS)
        return Watch(self._send("GET", path, query=wanted, read_seconds=_QUIET_SECONDS))

    def close(self) -> None:
        """Drop the connections."""
        with self._lock:
            if self._made is not None:
                self._made.close()

    def _call(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None = None,
    ) -> Answer:
        response = self._send(method, path, query=query or {}, body=body)
        with _network_errors():
            return _decode(response.read())

    def _send(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str],
        body: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None = None,
        read_seconds: float = _READ_SECONDS,
    ) -> Any:
        """The answer, open for reading; an error status is raised."""
        self._pace.wait()
        with _network_errors():
            api = self._api()
            request = api.param_serialize(
                method,
                path,
                query_params=list(query.items()),
                header_params={"Accept": "application/json", "Content-Type": _TYPES.get(method, _JSON)},
                body=body,
                auth_settings=["BearerToken"],
            )
            try:
                response = api.call_api(*request, _request_timeout=(_CONNECT_SECONDS, read_seconds)).response
            except Exception:
                # the kubeconfig may name another address or authority by now
                self._renew(api)
                raise
            if response.status == 401:
                self._renew(api)
            if response.status >= 400:
                raise _make_error(response.status, _decode(response.read()), path)
        return response

    def _api(self) -> Any:
        with self._lock:
            if self._made is None:
                self._made = _connect(self._kubeconfig, self._context)
            return self._made

    def _renew(self, used: Any) -> None:
        """With `used` nothing is reached, or its token is not accepted any more: the next may lie where it came from."""
        # of a file that is just being written nothing comes: the next refusal reads it again
        with self._lock, suppress(Exception):
            if self._made is used:
                self._made = _connect(self._kubeconfig, self._context)


class Watch:
    """The changes of one kind, each `{type, object}`.

    Ends when the server ends it, when nothing was heard for long, or by `stop` from any thread.
    """

    def __init__(self, response: Any) -> None:
        self._response = response

    def __iter__(self) -> Iterator[Answer]:
        """Raises Gone when the version is too old, Unavailable when the connection breaks."""
        from urllib3.exceptions import ReadTimeoutError  # comes with the client

        with _network_errors(), suppress(ReadTimeoutError):
            for line in self._response:
                change = _decode(line)
                if change.get("type") == "ERROR":
                    status = change.get("object") or {}
                    raise _make_error(int(status.get("code") or 500), status, "a watch")
                if change:
                    yield change

    def stop(self) -> None:
        """Have the reading thread come out."""
        with suppress(Exception):
            self._response.shutdown()


class _Pace:
    """Lets `rate` calls a second through, and that many at once after a pause."""

    def __init__(self, rate: float) -> None:
        self._rate = rate
        self._ready = time.monotonic()
        self._lock = threading.Lock()

    def wait(self) -> None:
        """Block until it is this call's turn."""
        if self._rate <= 0:
            return
        with self._lock:
            now = time.monotonic()
            self._ready = max(self._ready, now - 1.0) + 1.0 / self._rate
            pause = self._ready - now
        if pause > 0:
            time.sleep(pause)


class _network_errors:  # noqa: N801 - reads as a function
    """Turns what the network does into `cluster-away`."""

    def __enter__(self) -> None:
        """Nothing to do."""

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if error is None or isinstance(error, SliceliftError) or not isinstance(error, Exception):
            return
        raise Unavailable(
            "cluster-away",
            f"The cluster's API server does not answer: {_first_line(_cause(error))}.",
            "Jobs go on meanwhile; the launcher tries again.",
        ) from error


def _connect(kubeconfig: str, context: str) -> Any:
    """From a kubeconfig, or from the pod that this runs in. Raises `cluster-config`."""
    # a second of CPU and 50 MiB: only for a launcher that has a cluster
    from kubernetes.client import ApiClient, Configuration
    from kubernetes.config import ConfigException, load_incluster_config, load_kube_config

    settings = Configuration()
    # what is worth another try is decided where the call is made
    settings.retries = False
    settings.connection_pool_maxsize = 128
    try:
        if kubeconfig:
            load_kube_config(
                kubeconfig, context=context or None, client_configuration=settings, persist_config=False
            )
        else:
            load_incluster_config(client_configuration=settings)
    except (ConfigException, OSError) as error:
        hint = (
            "Set c.Volcano.kubeconfig to a kubeconfig, or run the launcher in a pod with a service account."
        )
        message = f"The launcher has no way to a cluster: {_first_line(error)}."
        raise Unavailable("cluster-config", message, hint) from error
    return ApiClient(settings)


def _make_error(code: int, status: Mapping[str, Any], path: str) -> SliceliftError:
    """A status of the API server in our words."""
    text = _cut(str(status.get("message") or f"HTTP {code}"))
    if "failed calling webhook" in text:
        name = text.partition('webhook "')[2].partition('"')[0] or "a webhook"
        message = f"The cluster cannot take jobs: its webhook {name} does not answer."
        hint = (
            "Whoever runs the cluster must look at it (Volcano's webhook manager); the launcher tries again."
        )
        return Unavailable("webhook-silent", message, hint)
    if code == 404:
        return NotFound("cluster-unknown", text)
    if code == 409:
        return Conflict("cluster-conflict", text)
    if code == 410 or status.get("reason") == "Expired":
        return Gone("watch-expired", text)
    if code == 401:
        message = f"The cluster does not accept the launcher's own token: {text}."
        hint = "Whoever runs the cluster must renew it in the launcher's kubeconfig; the launcher reads it again."
        return Unavailable("cluster-token", message, hint)
    if code == 403 and "denied the request" not in text and status.get("reason") != "Invalid":
        return _make_denied(code, text, path)
    if code in (429, 500, 502, 503, 504):
        return Unavailable(
            "cluster-away", f"The cluster's API server answers {code}: {text}", "The launcher tries again."
        )
    return Refused("manifest-refused", f"The cluster refuses the job: {_without_prefix(text)}", _HINT)


# that the launcher may not do something is no fault of a job's, which waits and is told. An API server that has just
# started knows no roles, and denies everything for a moment
DENIED = "cluster-denied"
_HINT = "Change what was asked for; `slicelift plan` shows the manifest."


def _make_denied(code: int, text: str, path: str) -> SliceliftError:
    if "exceeded quota" in text:
        return Refused("resource-quota", f"The namespace's ResourceQuota leaves no room: {text}", _HINT)
    if "because it is being terminated" in text:
        return NotFound("cluster-unknown", text)
    hint = "Give the launcher's service account the rights in hub/deploy/rbac (whoever runs the cluster)."
    message = f"The launcher may not do this in the cluster ({code} at {path}): {text}"
    return Unavailable(DENIED, message, hint)


def _without_prefix(text: str) -> str:
    """A webhook's own words: `admission webhook "x" denied the request: WORDS`."""
    return text.partition("denied the request: ")[2] or text


def _decode(raw: bytes) -> Answer:
    try:
        found = json.loads(raw)
    except ValueError:
        return {"message": raw[:300].decode("utf-8", "replace")}
    return found if isinstance(found, dict) else {}


def _cause(error: BaseException) -> BaseException:
    """The first of a chain: the client's own exception for a certificate or a closed port is "(0)"."""
    while (before := error.__cause__ or error.__context__) is not None:
        error = before
    return error


def _first_line(error: BaseException) -> str:
    return _cut((str(error) or type(error).__name__).splitlines()[0]).rstrip(".")


def _cut(text: str) -> str:
    return text if len(text) <= 600 else f"{text[:599]}…"
