"""What may be chosen and what the form says of it, without a hub."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from slicelift.errors import Conflict, Denied, Unavailable, UserError
from slicelift_hub.choices import (
    Machine,
    Offer,
    choose,
    default_for,
    make_needs,
    make_offers,
    refusal,
)
from slicelift_hub.form import render_form, render_refusal
from slicelift_hub.inventory import Inventory, MigSlice, WholeGpu, simulated_default
from slicelift_hub.leases import Pool
from slicelift_profiles.catalog import Catalog, Profile, load

CATALOG = load()


def pools(**free: tuple[int, int]) -> dict[str, Pool]:
    """`s3=(1, 0)` is one 3g.40gb, none free; the rest as an idle H100, all-balanced."""
    names = {"s1": "1g.10gb", "s2": "2g.20gb", "s3": "3g.40gb", "gpus": "gpus"}
    counts = {"s1": (2, 2), "s2": (1, 1), "s3": (1, 1)} | free
    return {
        names[key]: Pool(name=names[key], total=total, free=left, simulated=key != "gpus")
        for key, (total, left) in counts.items()
    }


def offers(
    groups: tuple[str, ...] = (),
    *,
    catalog: Catalog = CATALOG,
    inventory: Inventory | None = None,
    waiting: Mapping[str, int] | None = None,
    **free: tuple[int, int],
) -> dict[str, Offer]:
    machine = Machine(inventory=inventory or simulated_default(), pools=pools(**free), waiting=waiting or {})
    return {offer.profile.slug: offer for offer in make_offers(catalog, machine, groups=groups)}


def test_what_is_free_and_how_large_it_really_is() -> None:
    found = offers(s1=(2, 1))["slice-1g-10gb"]
    assert (found.startable, found.total, found.free, found.simulated) == (True, 2, 1, True)
    assert (found.memory_gib, found.about, found.sm_count, found.gpu) == (9.75, False, 16, "H100 80 GB")
    assert make_needs(found.profile) == {"1g.10gb": 1}
    assert offers()["cpu"].free is None


@pytest.mark.parametrize(
    ("free", "nearest"),
    [
        ({"s3": (1, 0)}, "slice-2g-20gb"),
        ({"s3": (1, 0), "s2": (1, 0)}, "slice-1g-10gb"),
        ({"s3": (1, 0), "s2": (1, 0), "s1": (2, 0)}, "cpu"),
    ],
)
def test_the_nearest_is_the_largest_that_is_free(free: dict[str, Any], nearest: str) -> None:
    found = offers(**free)["slice-3g-40gb"]
    assert found.reason == "No 3g.40gb slice is free. It is in use."
    assert found.nearest is CATALOG.get(nearest)
    error = refusal(found)
    assert isinstance(error, Unavailable)
    assert str(error).endswith(f"{CATALOG.get(nearest).display_name} is free now.")


def test_a_smaller_wish_is_offered_the_next_larger() -> None:
    found = offers(s1=(2, 0))["slice-1g-10gb"]
    assert (found.reason, found.nearest) == (
        "No 1g.10gb slice is free. All 2 are in use.",
        CATALOG.get("slice-2g-20gb"),
    )


def test_who_waits_comes_first() -> None:
    found = offers(("research",), gpus=(2, 1), waiting={"gpus": 1})["whole-gpu"]
    assert (found.code, found.reason) == ("capacity", "1 job waits for a whole GPU and comes first.")


def test_groups_products_and_machines_close_a_profile_with_their_reason() -> None:
    closed = offers()["whole-gpu"]
    assert isinstance(refusal(closed), Denied)
    assert closed.nearest is CATALOG.get("slice-3g-40gb")
    none = offers(("research",))["whole-gpu"]
    assert (none.reason, none.total) == ("This machine has no whole GPU.", None)
    assert isinstance(refusal(none), Conflict)
    a100 = Inventory(source="nvml", slices=(MigSlice(name="1g.10gb", product="A100-80GB", uuid="MIG-a"),))
    other = offers(inventory=a100)["slice-1g-10gb"]
    assert other.reason == "This machine's 1g.10gb are of another product: A100-80GB."
    here = Inventory(source="nvml", gpus=(WholeGpu(index=0, product="H100-80GB"),))
    assert offers(("research",), inventory=here, gpus=(1, 1))["whole-gpu"].startable


@pytest.mark.parametrize(
    ("options", "kind", "words"),
    [
        ({"profile": "nope"}, UserError, "There is no profile 'nope'."),
        ({"profile": 3}, UserError, "The option profile is 3"),
        ({"profile": None, "gpu": 1}, UserError, "There is no option 'gpu'"),
        ({"profile": "whole-gpu"}, Denied, "Whole GPU is for people in the group research."),
    ],
)
def test_made_choices_are_judged_and_saved_ones_fall_back(
    options: dict[str, Any], kind: type[UserError], words: str
) -> None:
    with pytest.raises(kind) as error:
        choose(CATALOG, options, groups=(), saved=False)
    assert error.value.message.startswith(words)
    assert "cpu, slice-1g-10gb" in error.value.hint
    fallen = choose(CATALOG, options, groups=(), saved=True)
    assert fallen.profile.slug == "cpu"
    assert fallen.note.startswith(words)
    assert fallen.note.endswith("CPU only is chosen instead.")


def test_without_a_choice_it_is_the_default_or_the_first_that_is_open() -> None:
    assert choose(CATALOG, {}, groups=(), saved=False).profile.slug == "cpu"
    closed = [replace(profile, groups=("staff",), default=False) for profile in CATALOG.profiles]
    catalog = Catalog(profiles=(*closed[:2], replace(closed[2], groups=())))
    assert default_for(catalog, ()).slug == "slice-2g-20gb"
    with pytest.raises(Denied, match="No profile is open to you"):
        default_for(Catalog(profiles=tuple(closed)), ())


def test_every_text_of_the_form_stays_text() -> None:
    evil = "<img src=x onerror=alert(1)> & \"'"
    profile = Profile(slug="cpu", display_name=evil, description=evil, cpu=1, memory_bytes=2**30)
    machine = Machine(inventory=Inventory(source="none", notes=(evil,)))
    found = make_offers(Catalog(profiles=(profile,)), machine, groups=())
    page = render_form(found, machine, chosen="cpu", note=evil, problem=evil)
    error = Unavailable("capacity", evil, evil)
    told = render_refusal(error, spawn_url="/hub/spawn/o%27neil", instead=profile)
    assert "<img" not in page + told
    assert page.count("&lt;img src=x onerror=alert(1)&gt; &amp; &#34;&#39;") == 6
    assert 'href="/hub/spawn/o%27neil?opt-profile=cpu"' in told


def test_the_form_can_be_used_by_keyboard_and_reader() -> None:
    """Radio buttons in a fieldset with a legend, each with its label and its description; the default is checked."""
    machine = Machine(inventory=simulated_default(), pools=pools(s3=(1, 0)))
    page = render_form(make_offers(CATALOG, machine, groups=()), machine, chosen="slice-2g-20gb")
    assert "<legend>What the session gets</legend>" in page
    radios = re.findall(r"<input type=\"radio\"[^>]*>", page)
    assert len(radios) == len(re.findall(r"<label class=\"sl-offer\"", page)) == len(CATALOG.profiles)
    assert [radio for radio in radios if " checked" in radio] == [
        radio for radio in radios if "2g-20gb" in radio
    ]
    assert sorted(re.search(r'value="([^"]+)"', radio)[1] for radio in radios if " disabled" in radio) == [  # type: ignore[index]
        "shared-gpu",
        "slice-3g-40gb",
        "whole-gpu",
    ]
    for described in re.findall(r'aria-describedby="(sl-about-\d+)"', page):
        assert f'id="{described}"' in page
    assert "9.75 GiB of GPU memory · 16 SMs · 4 cores · 24 GiB of host memory" in page
    assert "Ends after 45 min without a busy kernel or a used terminal. Ends after 12 h in any case." in page
