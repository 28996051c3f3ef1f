"""What a person may choose at spawn, and what of it can be had now. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from slicelift.errors import Conflict, Denied, SliceliftError, Unavailable, UserError
from slicelift_profiles import ProfileError, slices
from slicelift_profiles.catalog import Catalog, Kind, Profile

from slicelift_hub.inventory import Inventory
from slicelift_hub.leases import GPUS, Pool

PROFILE = "profile"
# the pool of shares, on a cluster
SHARES = "shares"


@dataclass(frozen=True, kw_only=True)
class Choice:
    """The profile that starts; `note` says why it is not the one that was saved."""

    profile: Profile
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class Offer:
    """A profile as it stands now for one person. `total` and `free` are None where nothing is counted.

    `reason` says why it cannot start and `nearest` what could instead. `memory_gib` is the GPU memory a program can
    count on, `about` where nobody has published it.
    """

    profile: Profile
    total: int | None = None
    free: int | None = None
    waiting: int = 0
    simulated: bool = False
    memory_gib: float | None = None
    about: bool = False
    sm_count: int | None = None
    gpu: str = ""
    code: str = ""
    reason: str = ""
    nearest: Profile | None = None

    @property
    def startable(self) -> bool:
        """Whether a start of it would go through now."""
        return not self.reason


@dataclass(frozen=True, kw_only=True)
class Machine:
    """What there is and who waits for it: one look at the ledger, or at a cluster's nodes.

    `together`: of a pool, how many are free on one node, where there are several nodes.
    """

    inventory: Inventory
    pools: Mapping[str, Pool] = field(default_factory=dict)
    waiting: Mapping[str, int] = field(default_factory=dict)
    cluster: bool = False
    together: Mapping[str, int] = field(default_factory=dict)

    @property
    def word(self) -> str:
        """What a sentence calls it."""
        return "cluster" if self.cluster else "machine"


def choose(
    catalog: Catalog, options: Mapping[str, object], *, groups: Collection[str], saved: bool
) -> Choice:
    """The profile that `options` ask for: `{"profile": slug}`, or the default for an empty mapping.

    Raises UserError or Denied listing what there is, for whatever is not a choice of this person; but options that
    were only `saved` from an earlier start fall back to the default with a note, so that a removed profile locks
    nobody out.
    """
    try:
        return Choice(profile=_asked(catalog, options, groups))
    except UserError as error:
        if not saved:
            raise
        profile = default_for(catalog, groups)
        return Choice(profile=profile, note=f"{error.message} {profile.display_name} is chosen instead.")


def default_for(catalog: Catalog, groups: Collection[str]) -> Profile:
    """The catalog's default, or the first open to these groups. Raises Denied when none is."""
    if catalog.default.open_to(groups):
        return catalog.default
    mine = catalog.open_to(groups)
    if not mine:
        raise Denied("profile-none", "No profile is open to you.", "Ask your admin to add you to a group.")
    return mine[0]


def make_needs(profile: Profile) -> dict[str, int]:
    """What a session of it leases; nothing for one without a GPU."""
    if profile.slice:
        return {profile.slice: 1}
    return {GPUS: profile.gpus} if profile.gpus else {}


def pool_of(profile: Profile) -> str:
    """The name of the pool that a session of it is taken from; empty for one without a GPU."""
    return SHARES if profile.kind is Kind.SHARE else next(iter(make_needs(profile)), "")


def make_offers(catalog: Catalog, machine: Machine, *, groups: Collection[str]) -> list[Offer]:
    """Every profile in the file's order as it stands now."""
    offers = [_judge(profile, machine, groups) for profile in catalog.profiles]
    return [offer if offer.startable else replace(offer, nearest=_nearest(offer, offers)) for offer in offers]


def refusal(offer: Offer) -> SliceliftError:
    """The words for an offer that cannot start: what was asked, what was found, what could start now."""
    hint = f"{offer.nearest.display_name} is free now." if offer.nearest else "Try again in a while."
    if offer.code == "profile-denied":
        return Denied(offer.code, offer.reason, hint)
    kind = Conflict if offer.code.startswith("not-on-this-") else Unavailable
    return kind(offer.code, offer.reason, hint)


def what(profile: Profile) -> str:
    """`3g.40gb slice`, `whole GPU`, `2 whole GPUs`, `share of a GPU` or `CPU`."""
    if profile.slice:
        return f"{profile.slice} slice"
    if profile.gpus:
        return "whole GPU" if profile.gpus == 1 else f"{profile.gpus} whole GPUs"
    return "share of a GPU" if profile.share else "CPU"


def _asked(catalog: Catalog, options: Mapping[str, object], groups: Collection[str]) -> Profile:
    mine = [profile.slug for profile in catalog.open_to(groups)]
    allowed = f"Profiles open to you: {', '.join(mine) or '(none)'}."
    strange = sorted(set(options) - {PROFILE})
    if strange:
        message = f"There is no option {', '.join(map(repr, strange))} at the start of a session."
        raise UserError("options-unknown", message, f"Options: {PROFILE}. {allowed}")
    slug = options.get(PROFILE)
    if slug is None:
        return default_for(catalog, groups)
    if not isinstance(slug, str):
        message = f"The option {PROFILE} is {slug!r:.80}, not the name of one profile."
        raise UserError("profile-unknown", message, allowed)
    try:
        profile = catalog.get(slug)
    except ProfileError:
        raise UserError("profile-unknown", f"There is no profile {slug!r:.80}.", allowed) from None
    if not profile.open_to(groups):
        raise Denied("profile-denied", f"{profile.display_name} is {_for_whom(profile)}.", allowed)
    return profile


def _for_whom(profile: Profile) -> str:
    word = "group" if len(profile.groups) == 1 else "groups"
    return f"for people in the {word} {', '.join(profile.groups)}"


def _judge(profile: Profile, machine: Machine, groups: Collection[str]) -> Offer:
    offer = _describe(profile, machine)
    if not profile.open_to(groups):
        return replace(
            offer, code="profile-denied", reason=f"{profile.display_name} is {_for_whom(profile)}."
        )
    missing = _missing(profile, offer, machine)
    if missing:
        return replace(offer, code=f"not-on-this-{machine.word}", reason=missing, total=None, free=None)
    if offer.free is not None and offer.free < max(1, profile.gpus):
        return replace(offer, code="capacity", reason=_full(profile, offer))
    together = machine.together.get(pool_of(profile), profile.gpus)
    if together < profile.gpus:
        reason = f"{what(profile)} are not free on one node: at most {together}."
        return replace(offer, code="capacity", reason=reason)
    if offer.waiting and offer.free is not None:
        return replace(offer, code="capacity", reason=_waited_for(profile, offer.waiting))
    return offer


def _describe(profile: Profile, machine: Machine) -> Offer:
    """What it is and how many there are, without judging."""
    pool = machine.pools.get(pool_of(profile))
    known = slices.get(profile.slice, product=profile.product) if profile.slice and profile.product else None
    gpu = slices.product(profile.product).title if profile.product in slices.products() else profile.product
    return Offer(
        profile=profile,
        total=pool.total if pool else None,
        free=pool.free if pool else None,
        waiting=machine.waiting.get(pool.name, 0) if pool else 0,
        simulated=pool.simulated if pool else False,
        memory_gib=known.memory_gib if known else None,
        about=known.memory_is_about if known else False,
        sm_count=known.sm_count if known else None,
        gpu=gpu or "",
    )


def _missing(profile: Profile, offer: Offer, machine: Machine) -> str:
    """Why this machine or cluster could never give it, or nothing."""
    if profile.kind is Kind.NONE:
        return ""
    if profile.kind is Kind.SHARE and not machine.cluster:
        return "Shares of a GPU are given out on a cluster only."
    have = offer.total or 0
    if have < max(1, profile.gpus):
        has = f"{have} whole GPU{'s'[: have != 1]}" if profile.gpus and have else f"no {what(profile)}"
        return f"This {machine.word} has {has}."
    found = _products(profile, machine.inventory)
    if profile.product and found and profile.product not in found:
        named = f"{machine.word}'s {profile.slice or 'GPUs'}"
        return f"This {named} are of another product: {', '.join(found)}."
    return ""


def _products(profile: Profile, inventory: Inventory) -> Sequence[str]:
    """The products found, or nothing where one of them is not known."""
    found = inventory.products(profile.slice) if profile.slice else [gpu.product for gpu in inventory.gpus]
    return () if "" in found else found


def _full(profile: Profile, offer: Offer) -> str:
    if profile.gpus > 1 and offer.free:
        return f"{offer.free} of {offer.total} whole GPUs are free, {what(profile)} were asked for."
    taken = "It is in use." if offer.total == 1 else f"All {offer.total} are in use."
    return f"No {what(profile)} is free. {taken}"


def _waited_for(profile: Profile, jobs: int) -> str:
    if jobs == 1:
        return f"1 job waits for a {what(profile)} and comes first."
    return f"{jobs} jobs wait for a {what(profile)} and come first."


def _nearest(offer: Offer, offers: Sequence[Offer]) -> Profile | None:
    """What could start now instead: the slice that comes nearest, else whatever starts with least."""
    ready = [other for other in offers if other.startable and other.profile is not offer.profile]
    cut = [other for other in ready if other.profile.slice and other.profile.product == offer.profile.product]
    if offer.profile.slice and offer.profile.product:
        free = {str(other.profile.slice): other.free or 0 for other in cut}
        found = slices.nearest(offer.profile.slice, free, product=offer.profile.product)
        cut = [other for other in cut if found and other.profile.slice == found.name]
    if cut:
        return max(cut, key=lambda other: other.memory_gib or 0).profile
    plain = [other for other in ready if other.profile.kind is Kind.NONE]
    return plain[0].profile if plain else None
