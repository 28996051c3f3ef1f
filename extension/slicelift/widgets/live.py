"""`slicelift.show` and `slicelift.jobs`: the card and the list.

An output holds them three times: as the data of our extension, which needs no kernel; as a widget, for notebooks
without the extension; and as a page, for places with neither.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slicelift.errors import SliceliftError, UserError
from slicelift.models import RunView
from slicelift.widgets.bundle import MIME, make_list_bundle
from slicelift.widgets.faults import told_briefly
from slicelift.widgets.shown import bundle_of, find_run

if TYPE_CHECKING:
    from anywidget import AnyWidget

SCRIPT = Path(__file__).parent / "static" / "widget.js"
RUN, JOBS = "run", "jobs"
_LISTED = 30

_classes: list[type[AnyWidget]] = []


def show(run: str | RunView = "last", *, home: Path | None = None) -> AnyWidget:
    """The card of a run as a widget: by run id, promotion id, as a value, or the newest.

    Raises `run-unknown`, `launcher-away` and the like, and `anywidget-missing`.
    """
    with told_briefly():
        kind = _widget_class()
        from slicelift.launcher_client import find  # httpx takes a quarter of a second

        view = find_run(run, home=home)
        with find(home) as client:
            bundle = bundle_of(client, view)
        return kind(view=RUN, run_id=view.run_id, snapshot=bundle[MIME], page=bundle)


def jobs() -> AnyWidget:
    """The list of all of the user's runs as a widget. Raises `anywidget-missing`."""
    with told_briefly():
        kind = _widget_class()
        from slicelift.launcher_client import find  # httpx takes a quarter of a second

        newest: Sequence[RunView] = ()
        with suppress(SliceliftError), find() as client:  # away: the list itself says so, and waits for it
            newest = client.jobs(limit=_LISTED)
        return kind(view=JOBS, page=make_list_bundle(newest))


def _widget_class() -> type[AnyWidget]:
    """Made once, and only when asked for: promote() and the saved card need no anywidget."""
    if not _classes:
        _classes.append(_make_class(_module(), _script()))
    return _classes[0]


def _module() -> Any:
    try:
        import anywidget
    except ImportError as error:
        message = f"slicelift.show() and slicelift.jobs() need anywidget in this kernel ({error})."
        raise UserError(
            "anywidget-missing", message, "%pip install 'slicelift[notebook]', then restart the kernel."
        ) from error
    return anywidget


def _script() -> str:
    try:
        return SCRIPT.read_text(encoding="utf-8")
    except OSError as error:
        message = f"The widget's script {SCRIPT} cannot be read: {error.strerror}."
        hint = "Install slicelift from a wheel, or build it: npm run build:prod in extension/frontend."
        raise SliceliftError("widget-not-built", message, hint) from error


def _make_class(anywidget: Any, script: str) -> type[AnyWidget]:
    import traitlets

    class RunWidget(anywidget.AnyWidget):  # type: ignore[misc]  # its base is only known here
        """One card, or the list of jobs. `page` stays in Python: what is shown in its place where no widget lives."""

        _esm = script
        view = traitlets.Unicode(RUN).tag(sync=True)
        run_id = traitlets.Unicode("").tag(sync=True)
        snapshot = traitlets.Dict().tag(sync=True)
        page = traitlets.Dict()

        def _repr_mimebundle_(self, **options: Any) -> Any:
            """The widget beside the data of our extension and the page as it was when the cell ran."""
            bundle = super()._repr_mimebundle_(**options)
            data, metadata = bundle if isinstance(bundle, tuple) else (bundle, {})
            return ({**(data or {}), **self.page}, metadata)

    return RunWidget
