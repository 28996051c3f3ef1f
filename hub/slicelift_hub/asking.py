"""What spawners of one machine and of a cluster have in common: the form, the choice by it, the words of a refusal."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from jupyterhub.handlers.pages import SpawnHandler
from jupyterhub.spawner import SpawnException
from jupyterhub.utils import url_escape_path, url_path_join
from slicelift.errors import SliceliftError, Unavailable
from slicelift_profiles import ProfileError
from slicelift_profiles.catalog import SHIPPED, Catalog, Profile, load
from slicelift_profiles.latest import Latest
from traitlets import Unicode, default
from traitlets.config import LoggingConfigurable

from slicelift_hub.choices import PROFILE, Choice, Machine, choose, make_offers, refusal
from slicelift_hub.form import render_form, render_problem, render_refusal

# of a choice, what a session's state keeps: the culler judges by it
TOLD = ("profile", "idle_minutes", "max_hours", "note", "since")
_REASONS = {"capacity": "capacity", "profile-denied": "group", "profile-none": "group"}


class Refusal(SpawnException):  # type: ignore[misc]  # jupyterhub has no types
    """A start that was refused, with its words as text for the API and as HTML for the page."""

    def __init__(self, error: SliceliftError, *, html: str) -> None:
        reason = _REASONS.get(error.code, error.code)
        super().__init__(str(error), reason=reason, message_html=html, status_code=error.http_status)
        # where a page looks first
        self.jupyterhub_message = str(error)
        self.jupyterhub_html_message = html


class ProfiledSpawner(LoggingConfigurable):  # type: ignore[misc]
    """What makes a spawner's choices the profiles of a file, as the first base of one. It says what there is: `look`."""

    profiles_file = Unicode(
        str(SHIPPED),
        help="The YAML file of profiles (docs/profiles.md). Read again when it changes; after a faulty edit the "
        "profiles read last go on, and the form says file and line.",
    ).tag(config=True)
    launcher_url = Unicode(
        "http://127.0.0.1:8765", help="Where sessions reach the launcher, without a slash at the end."
    ).tag(config=True)

    @default("default_url")  # type: ignore[untyped-decorator]
    def _default_default_url(self) -> str:
        return "/lab"

    @default("options_form")  # type: ignore[untyped-decorator]
    def _default_options_form(self) -> Callable[[ProfiledSpawner], Any]:
        return ProfiledSpawner.make_form

    @default("options_from_form")  # type: ignore[untyped-decorator]
    def _default_options_from_form(self) -> Callable[[Mapping[str, list[Any]]], dict[str, Any]]:
        return read_form

    @default("apply_user_options")  # type: ignore[untyped-decorator]
    def _default_apply_user_options(self) -> Callable[[ProfiledSpawner, object], None]:
        # judged at the start, where a refusal needs no traceback in the log
        return lambda _spawner, _options: None

    async def look(self) -> Machine:
        """What there is and what of it is free at this moment. Raises SliceliftError where nobody can say."""
        raise AssertionError("a spawner of its own kind says what there is")

    async def make_form(self) -> str:
        """The spawn form with what is free at this moment."""
        try:
            catalog = self.catalog()
            chosen = choose(catalog, self.orm_spawner.user_options or {}, groups=self.groups(), saved=True)
            machine = await self.look()
        except SliceliftError as error:
            return render_problem(str(error))
        offers = make_offers(catalog, machine, groups=self.groups())
        slug = chosen.profile.slug
        problem = str(_profiles(self.profiles_file).fault or "")
        return render_form(offers, machine, chosen=slug, note=chosen.note, problem=problem)

    def catalog(self) -> Catalog:
        """The profiles as they are now. Raises Unavailable only when the file was at fault from the start."""
        try:
            return _profiles(self.profiles_file).current()
        except ProfileError as error:
            hint = "Nobody can start a session until an admin mends the file."
            raise Unavailable("profiles-invalid", str(error), hint) from error

    def chosen(self) -> Choice:
        """What the options of this start ask for. Raises as `choose` does."""
        return choose(
            self.catalog(), self.user_options, groups=self.groups(), saved=self._options_are_saved()
        )

    def groups(self) -> list[str]:
        """The user's, by name."""
        return [group.name for group in self.user.groups]

    async def must_be_free(self, profile: Profile) -> None:
        """Raises `Refusal` with the nearest profile that could start instead."""
        machine = await self.look()
        offers = make_offers(self.catalog(), machine, groups=self.groups())
        # none when an admin has just taken it out of the file: it was there when it was chosen
        offer = next((each for each in offers if each.profile == profile), None)
        if offer is not None and not offer.startable:
            raise self.refused(refusal(offer), instead=offer.nearest)

    def refused(self, error: SliceliftError, *, instead: Profile | None) -> Refusal:
        """The error as the page shows it, with a link that starts `instead`."""
        url = url_path_join(self.hub.base_url, "spawn", self.user.escaped_name, url_escape_path(self.name))
        return Refusal(error, html=render_refusal(error, spawn_url=url, instead=instead))

    def _options_are_saved(self) -> bool:
        """Whether the options are those of an earlier start, because this one named none."""
        handler = getattr(self, "handler", None)
        body = getattr(handler, "get_server_json_body", None)  # the API's
        if body is not None:
            return body()["user_options"] is None
        return not isinstance(handler, SpawnHandler)


def read_form(data: Mapping[str, list[Any]]) -> dict[str, Any]:
    """Form or query to options: a field given once is its value. Nothing is judged here."""
    return {name: values[0] if len(values) == 1 else values for name, values in data.items()}


def session_variables(launcher_url: str, *, token: str, profile: str) -> dict[str, str]:
    """By which a session finds the launcher, and MLflow behind it, with its own token."""
    return {
        "SLICELIFT_LAUNCHER_URL": launcher_url,
        "SLICELIFT_PROFILE": profile,
        "MLFLOW_TRACKING_URI": f"{launcher_url}/api/v1/mlflow",
        "MLFLOW_TRACKING_TOKEN": token,
    }


def told_of(choice: Choice) -> dict[str, Any]:
    """What a session's state keeps of its choice (`TOLD`)."""
    profile = choice.profile
    limits = {"idle_minutes": profile.idle_minutes, "max_hours": profile.max_hours}
    return {PROFILE: profile.slug, **limits, "note": choice.note}


@functools.cache
def _profiles(path: str) -> Latest[Catalog]:
    return Latest(Path(path), load)
