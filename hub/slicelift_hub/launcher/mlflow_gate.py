"""`ANY /mlflow/<path>`: a person's own way to MLflow, with the token of a session or of the launcher.

`MLFLOW_TRACKING_URI=<launcher>/api/v1/mlflow` and `MLFLOW_TRACKING_TOKEN` make any mlflow client go this way.
"""

from __future__ import annotations

from dataclasses import replace
from urllib.parse import parse_qsl, unquote

from slicelift.errors import NotFound

from slicelift_hub.launcher.mlflow_exposed import is_exposed
from slicelift_hub.launcher.mlflow_link import Link
from slicelift_hub.launcher.mlflow_translation import Call, decoded, is_raw
from slicelift_hub.launcher.passthrough import MlflowHandler


class GateHandler(MlflowHandler):
    """See the module. `pages`: whether what only MLflow's pages need is open, too."""

    pages = False

    async def pass_on(self, _path: str) -> None:
        """One call of any method."""
        try:
            self.check_body()
            call = self._call()
            link = self.link()
            await self._exchange(link, await self.named(link, call))
        finally:
            self.file.close()

    get = post = put = patch = delete = pass_on

    @property
    def raw_path(self) -> str:
        """The path at MLflow as it was sent: tornado decodes what it passes to methods."""
        return self.request.path.split("/api/v1/mlflow/", 1)[1]

    def _call(self) -> Call:
        method, path = self.request.method or "GET", unquote(self.raw_path)
        if not is_exposed(method, path, pages=self.pages):
            message = f"{method} /{path[:200]} of MLflow is not open here."
            raise NotFound("mlflow-call-closed", message, "docs/tracking.md says what is, and why.")
        call = Call(
            method=method,
            path=path,
            query=tuple(parse_qsl(self.request.query, keep_blank_values=True)),
            headers=self.passed_headers(),
        )
        raw = call.is_file or is_raw(path)
        return call if raw else replace(call, json=decoded(self.small_body()))

    async def _exchange(self, link: Link, call: Call) -> None:
        content, size = await self.content_of(call)
        async with link.stream(call, content, size=size, account=self.account) as response:
            self.answer_head(response)
            words = self.words_outward(call)
            if words is not None and "json" in response.headers.get("Content-Type", ""):
                await self.answer_json(response, words)
            else:
                await self.answer_stream(response)
        if call.path.endswith(("experiments/delete", "experiments/update")):
            link.forget_default(self.account)
