"""Slice names, sizes and the geometry of MIG."""

from __future__ import annotations

import itertools
import json
from importlib import resources

import pytest
from hypothesis import given
from hypothesis import strategies as st
from slicelift_profiles import ProfileError, slices
from slicelift_profiles.slices import Placement

SEVEN_SLICES = [name for name in slices.products() if slices.product(name).compute_slices == 7]
ALL = [(gpu, item) for gpu in slices.products() for item in slices.product(gpu).slices]


@pytest.mark.parametrize(
    ("name", "resource"),
    [
        ("1g.10gb", "nvidia.com/mig-1g.10gb"),
        ("7g.141gb", "nvidia.com/mig-7g.141gb"),
        ("1g.10gb+me", "nvidia.com/mig-1g.10gb.me"),
        ("1g.24gb+gfx", "nvidia.com/mig-1g.24gb.gfx"),
        ("2g.48gb+me.all", "nvidia.com/mig-2g.48gb.me.all"),
        ("1g.24gb-me", "nvidia.com/mig-1g.24gb-me"),
    ],
)
def test_names_and_resource_names(name: str, resource: str) -> None:
    assert slices.resource_name(name) == resource
    assert slices.slice_name(resource) == name
    assert slices.canonical(resource.removeprefix("nvidia.com/mig-")) == name


def test_every_slice_survives_the_way_to_its_resource_and_back() -> None:
    assert [(slices.slice_name(item.resource_name), item.name) for _, item in ALL] == [
        (item.name, item.name) for _, item in ALL
    ]
    assert all(len(item.resource_name.split("/")[1]) <= 63 for _, item in ALL)


@pytest.mark.parametrize(
    "name",
    [
        "",
        "1g",
        "10gb",
        "0g.10gb",
        "1g.010gb",
        "1g.10GB",
        "1g.10gb+",
        "1g.10gb+xx",
        "1g.10gb\n",
        " 1g.10gb",
        "1g.10gb-me.all",
    ],
)
def test_what_is_no_slice_name_is_refused_with_an_example(name: str) -> None:
    with pytest.raises(ProfileError) as caught:
        slices.parse(name)
    assert (caught.value.code, "1g.10gb" in caught.value.hint) == ("bad-slice-name", True)


def test_a_compute_instance_is_refused_with_the_reason() -> None:
    with pytest.raises(ProfileError, match="compute instance"):
        slices.resource_name("1c.3g.20gb")


@pytest.mark.parametrize("resource", ["nvidia.com/gpu", "nvidia.com/mig-", "amd.com/gpu", "mig-1g.10gb"])
def test_other_resources_are_no_slices(resource: str) -> None:
    with pytest.raises(ProfileError):
        slices.slice_name(resource)


@given(st.from_regex(r"\A[0-9]{1,3}[gc]?\.?[0-9]{1,3}(gb)?[+.-]?(me|me.all|gfx)?\Z") | st.text(max_size=20))
def test_any_text_is_a_name_that_keeps_itself_or_is_refused(text: str) -> None:
    try:
        name = slices.canonical(text)
    except ProfileError:
        return
    assert slices.canonical(name) == name
    assert slices.slice_name(slices.resource_name(name)) == name


def test_unknown_products_and_slices_list_what_there_is() -> None:
    with pytest.raises(ProfileError) as product:
        slices.product("H100-8GB")
    assert "Did you mean H100-80GB?" in product.value.hint
    assert "A30-24GB" in product.value.hint
    with pytest.raises(ProfileError) as item:
        slices.get("1g.5gb", product="H100-80GB")
    assert item.value.message == "H100 80 GB has no slice 1g.5gb."
    assert "1g.10gb, 1g.10gb+me, 1g.20gb, 2g.20gb, 3g.40gb, 4g.40gb, 7g.80gb" in item.value.hint


def test_a_product_is_found_by_its_pci_id() -> None:
    found = slices.product_of_device(0x233010DE)
    assert found is not None
    assert found.name == "H100-80GB"
    assert slices.product_of_device(0x1EB810DE) is None  # a T4, which has no MIG


@pytest.mark.parametrize("product", SEVEN_SLICES)
def test_seven_slice_gpus_have_exactly_19_maximal_layouts(product: str) -> None:
    found = slices.layouts(product)
    assert len(found) == len(set(found)) == 19
    assert len({tuple(sorted(place.name for place in layout)) for layout in found}) == 14


@pytest.mark.parametrize("product", ["A30-24GB", "RTX-PRO-6000-96GB"])
def test_four_slice_gpus_have_exactly_5_maximal_layouts(product: str) -> None:
    found = slices.layouts(product)
    assert len(found) == 5
    assert len({tuple(sorted(place.name for place in layout)) for layout in found}) == 4


@pytest.mark.parametrize("product", ["A100-40GB", "A30-24GB", "RTX-PRO-6000-96GB"])
def test_layouts_agree_with_a_search_of_all_subsets(product: str) -> None:
    """The oracle knows the memory axis as a set of cells and tries every subset of the placements."""
    gpu = slices.product(product)
    options = [(kind, start) for kind in slices.classic(product) for start in kind.starts]

    def holds(chosen: tuple[tuple[slices.Slice, int], ...]) -> bool:
        cells = [cell for kind, start in chosen for cell in range(start, start + kind.size)]
        return (
            len(cells) == len(set(cells))
            and sum(kind.compute_slices for kind, _ in chosen) <= gpu.compute_slices
        )

    sets = [s for n in range(1, 8) for s in itertools.combinations(options, n) if holds(s)]
    maximal = [s for s in sets if not any(holds((*s, extra)) for extra in options if extra not in s)]
    expected = {tuple(sorted(Placement(start, kind.name) for kind, start in s)) for s in maximal}
    assert set(slices.layouts(product)) == expected


@pytest.mark.parametrize("product", slices.products())
def test_every_slice_fits_its_gpu_as_often_as_the_table_says(product: str) -> None:
    for item in slices.product(product).slices:
        assert max(item.starts) + item.size <= slices.product(product).memory_slices
        assert slices.arrange({item.name: item.max_instances}, product=product) is not None, item.name
        assert slices.arrange({item.name: item.max_instances + 1}, product=product) is None, item.name


def test_arranging_places_large_slices_first_and_respects_what_is_busy() -> None:
    both = slices.arrange({"1g.10gb": 2, "2g.20gb": 1, "3g.40gb": 1}, product="H100-80GB")
    assert both is not None
    assert slices.legal(both, product="H100-80GB")
    busy = (Placement(0, "1g.10gb"), Placement(1, "1g.10gb"), Placement(4, "2g.20gb"))
    assert slices.arrange({"3g.40gb": 1}, product="H100-80GB", busy=busy) is None
    assert slices.arrange({"2g.20gb": 1}, product="H100-80GB", busy=busy) == tuple(
        sorted((*busy, Placement(2, "2g.20gb")))
    )


def test_media_engines_go_to_one_slice_only() -> None:
    assert slices.arrange({"1g.6gb+me": 1, "2g.12gb+me": 1}, product="A30-24GB") is None
    assert slices.arrange({"1g.24gb-me": 3, "1g.24gb+me.all": 1}, product="RTX-PRO-6000-96GB") is not None


@pytest.mark.parametrize(
    ("product", "gib", "expected"),
    [
        ("H100-80GB", 9.75, "1g.10gb"),
        ("H100-80GB", 10, "1g.20gb"),  # the name's 10 are 9.75 to a program
        ("H100-80GB", 39.5, "3g.40gb"),
        ("H100-80GB", 80, None),
        ("H200-141GB", 16.5, "1g.35gb"),
        ("A100-80GB", 9.5, "1g.20gb"),  # nobody printed it: a cautious guess
    ],
)
def test_what_fits_is_judged_by_usable_memory(product: str, gib: float, expected: str | None) -> None:
    found = slices.fits(gib, product=product)
    assert (found.name if found else None) == expected


def test_guessed_memory_says_so_and_is_never_more_than_any_printed_share() -> None:
    printed = [
        item.usable_memory_gib / item.memory_gb for _, item in ALL if item.usable_memory_gib is not None
    ]
    assert min(printed) >= slices.ABOUT_USABLE
    guessed = slices.get("1g.10gb", product="A100-80GB")
    assert (guessed.memory_is_about, guessed.memory_gib) == (True, pytest.approx(8.8))
    assert not slices.get("1g.10gb", product="H100-80GB").memory_is_about


@pytest.mark.parametrize(
    ("wanted", "free", "expected"),
    [
        ("1g.10gb", {"2g.20gb": 1, "7g.80gb": 1}, "2g.20gb"),
        ("3g.40gb", {"1g.10gb": 5, "2g.20gb": 1}, "2g.20gb"),
        ("3g.40gb", {"4g.40gb": 1, "2g.20gb": 1}, "4g.40gb"),
        ("3g.40gb", {"3g.40gb": 0, "1g.20gb": 0}, None),
        ("3g.40gb", {"1g.5gb": 3}, None),  # another product's
        ("2g.20gb", {"1g.20gb": 1}, "1g.20gb"),  # as much memory, fewer SMs: better than nothing
    ],
)
def test_the_nearest_alternative(wanted: str, free: dict[str, int], expected: str | None) -> None:
    found = slices.nearest(wanted, free, product="H100-80GB")
    assert (found.name if found else None) == expected


def test_illegal_layouts() -> None:
    def legal(*places: tuple[int, str]) -> bool:
        return slices.legal([Placement(*place) for place in places], product="H100-80GB")

    assert legal((0, "3g.40gb"), (4, "3g.40gb"))
    assert not legal((0, "3g.40gb"), (3, "1g.10gb"))  # overlap
    assert not legal((1, "2g.20gb"))  # no such start
    assert not legal((0, "4g.40gb"), (4, "3g.40gb"), (7, "1g.10gb"))
    assert not legal((0, "1g.10gb+me"), (1, "1g.10gb+me"))  # one per GPU


def test_the_facts_name_their_sources_and_mark_what_is_inferred() -> None:
    table = json.loads(resources.files("slicelift_profiles").joinpath("mig.json").read_text(encoding="utf-8"))
    for name, entry in table["products"].items():
        wanted = {"slices", "placements", "sms", "pci_device_ids"}
        wanted |= {"usable_gib"} if any("usable_gib" in row for row in entry["slices"].values()) else set()
        assert set(entry["sources"]) == wanted, name
        assert entry["placements"] in table["placements_words"], name
    inferred = [name for name in slices.products() if slices.product(name).placements == "inferred"]
    assert inferred == ["H100-96GB", "B200-180GB"]
