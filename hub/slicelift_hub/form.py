"""The spawn form and the words of a refusal, as HTML. Every text is escaped: names come from files and users."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from slicelift.errors import SliceliftError
from slicelift_profiles.catalog import Kind, Profile

from slicelift_hub.choices import PROFILE, Machine, Offer, what

TEMPLATES = Path(__file__).with_name("templates")
ON_A_MACHINE = "Cores and host memory are what a profile is meant for; on one machine they are not enforced."
ON_A_CLUSTER = "Cores are guaranteed, and idle ones may be used beyond that; host memory is a limit."


def render_form(
    offers: Sequence[Offer], machine: Machine, *, chosen: str, note: str = "", problem: str = ""
) -> str:
    """The fields of the spawn form. `chosen` is the slug to preselect, `problem` why these are not the file's profiles."""
    ready = [offer.profile.slug for offer in offers if offer.startable]
    preset = chosen if chosen in ready else (ready or [""])[0]
    cards = [_card(offer, chosen=preset) for offer in offers]
    notes = machine.inventory.notes
    if problem:
        problem = f"The profiles' file is at fault: {problem} The profiles below are those read before."
    foot = ON_A_CLUSTER if machine.cluster else ON_A_MACHINE
    words = {"note": note, "problem": problem, "notes": notes, "foot": foot}
    return _render("form.html", cards=cards, field=PROFILE, **words)


def render_problem(problem: str) -> str:
    """The form when there is nothing to choose from, and why."""
    return _render("form.html", cards=[], field=PROFILE, note="", problem=problem, notes=(), foot="")


def render_refusal(error: SliceliftError, *, spawn_url: str, instead: Profile | None) -> str:
    """Why a session does not start, and a link that starts the nearest one that could."""
    link = f"{spawn_url}?{urlencode({f'opt-{PROFILE}': instead.slug})}" if instead else ""
    name = instead.display_name if instead else ""
    return _render("refusal.html", error=error, link=link, name=name, back=spawn_url)


def _card(offer: Offer, *, chosen: str) -> Mapping[str, Any]:
    """What the template shows of one offer; no word is made there."""
    profile = offer.profile
    used = None if not offer.total else round(100 * (1 - (offer.free or 0) / offer.total))
    return {
        "slug": profile.slug,
        "title": profile.display_name,
        "product": offer.gpu,
        "description": profile.description,
        "size": " · ".join(_size(offer)),
        "gib": offer.memory_gib or "",
        "used": used,
        "state": _state(offer),
        "free": offer.startable,
        "nearest": f"Nearest: {offer.nearest.display_name}, now." if offer.nearest else "",
        "simulated": offer.simulated,
        "limits": " ".join(_limits(profile)),
        "checked": profile.slug == chosen,
    }


def _size(offer: Offer) -> list[str]:
    profile = offer.profile
    parts = []
    if offer.memory_gib is not None:
        parts.append(f"{'about ' if offer.about else ''}{_number(offer.memory_gib)} GiB of GPU memory")
    if offer.sm_count is not None:
        parts.append(f"{offer.sm_count} SMs")
    if profile.kind is not Kind.NONE and not parts:
        parts.append(what(profile))
    return [
        *parts,
        f"{_number(profile.cpu)} cores",
        f"{_number(profile.memory_bytes / 2**30)} GiB of host memory",
    ]


def _state(offer: Offer) -> str:
    if offer.reason:
        return offer.reason
    if offer.total is None:
        return "Free."
    return f"{offer.free} of {offer.total} free."


def _limits(profile: Profile) -> list[str]:
    parts = []
    if profile.idle_minutes is not None:
        parts.append(
            f"Ends after {_duration(profile.idle_minutes)} without a busy kernel or a used terminal."
        )
    if profile.max_hours is not None:
        parts.append(f"Ends after {_duration(profile.max_hours * 60)} in any case.")
    return parts


def _duration(minutes: float) -> str:
    if minutes < 120 or minutes % 60:
        return f"{_number(minutes)} min"
    return f"{_number(minutes / 60)} h"


def _number(value: float) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".")


def _render(template: str, **words: Any) -> str:
    return _environment().get_template(template).render(words)


@functools.cache
def _environment() -> Environment:
    # not the hub's own: its templates are meant to be replaced by an admin's, this one's escaping is not
    return Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
