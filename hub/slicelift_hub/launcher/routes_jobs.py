"""Jobs: plan, submit, look, cancel, suspend, scale, retry."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

from slicelift.backends.base import Attempt
from slicelift.errors import Conflict, NotFound, Refused, Unavailable, UserError
from slicelift.models import JobSpec, RunView, Status, to_dict

from slicelift_hub.launcher.auth import Principal
from slicelift_hub.launcher.bodies import parse, text_field
from slicelift_hub.launcher.handler import Handler
from slicelift_hub.launcher.ledger_runs import make_needs
from slicelift_hub.launcher.names import check_promotion_id
from slicelift_hub.launcher.policy import Asker
from slicelift_hub.launcher.services import Services, call_in
from slicelift_hub.leases import GPUS, SLOTS, Pool

# a cancel waits so long for the proof before it answers CANCELLING
CANCEL_SECONDS = 40.0
_DRY_RUN = Attempt(
    attempt_id="r-dryrun-1",
    run_id="r-dryrun",
    promotion_id="p-dryrun",
    attempt=1,
    launcher_url="(the launcher)",
    token="",
)


class PlanHandler(Handler):
    """What a submit would do, without doing it."""

    async def post(self) -> None:
        spec = parse(JobSpec, self.json_body().get("spec"))
        self.answer(await call_in(self.services.plan_pool, self._plan, spec))

    def _plan(self, spec: JobSpec) -> dict[str, Any]:
        services = self.services
        asker = make_asker(services, self.principal)
        services.policy.check(spec, asker)
        attempt = replace(_DRY_RUN, owner=asker.owner)
        manifest = services.backend.render(spec, attempt)
        said = services.backend.plan(spec, attempt)
        ahead = services.ledger.queue_length(set(make_needs(spec)))
        capacity = None
        with suppress(Unavailable):
            capacity = tell_capacity(services, waiting=ahead)
        notes = [*services.policy.notes(spec, asker), *said]
        # who queues at a backend of its own has a place there, which nobody knows before
        position = ahead + 1 if services.policy.leased else None
        return {"manifest": manifest, "position": position, "capacity": capacity, "notes": notes}


class JobsHandler(Handler):
    """All runs, and the submit."""

    async def get(self) -> None:
        words = self.get_query_argument("status", "")
        statuses = tuple(_status(word) for word in words.split(",") if word)
        limit = self.number("limit", 50, low=1, high=1000)
        # who stops the launcher must know whose jobs end with it
        everyone = self.principal.operator and self.get_query_argument("everyone", "") == "1"
        views = await self.services.call(
            self.services.ledger.list_runs,
            None if everyone else self.principal.owner,
            statuses=statuses,
            limit=limit or 50,
            before=self.get_query_argument("before", "") or None,
        )
        self.answer({"jobs": [self.services.shown(view) for view in views]})

    async def post(self) -> None:
        body = self.json_body()
        promotion_id = check_promotion_id(text_field(body, "promotion_id"))
        spec = parse(JobSpec, body.get("spec"))
        if self.services.stopping:
            raise Unavailable(
                "launcher-stopping", "The launcher is being stopped.", "Submit again when it is back."
            )
        run_id, new = await call_in(self.services.plan_pool, self._submit, promotion_id, spec)
        self.services.announcer.changed(run_id)
        self.services.dispatch.wake()
        view = await self.services.call(self.services.ledger.view, run_id)
        self.answer(self.services.shown(view), 201 if new else 200)

    def _submit(self, promotion_id: str, spec: JobSpec) -> tuple[str, bool]:
        """In a thread: checks, then one transaction. A submit that is known is asked for again, not judged again."""
        owner, services = self.principal.owner, self.services
        known = services.ledger.knows(owner, promotion_id)
        head = {} if known else self._check(spec)
        with services.policy.admission:
            if not services.ledger.knows(owner, promotion_id):
                admit(services, self.principal, promotion_id, spec=spec)
            return services.ledger.submit(
                owner, promotion_id, spec=spec, snapshot=head, token_of=services.token_of
            )

    def _check(self, spec: JobSpec) -> dict[str, Any]:
        """What must be there, and what the backend says; the snapshot's head."""
        owner, services = self.principal.owner, self.services
        services.policy.check(spec, make_asker(services, self.principal))
        try:
            snapshot = services.store.snapshot(owner, spec.snapshot_id)
            services.vault.values(owner, spec.secrets)
        except NotFound as error:
            raise Refused(error.code, error.message, error.hint) from error
        # one that is away is asked again when the job is started
        with suppress(Unavailable):
            services.backend.plan(spec, replace(_DRY_RUN, owner=owner))
        head: dict[str, Any] = to_dict(replace(snapshot, files=()))
        return head


class JobHandler(Handler):
    """One run."""

    async def get(self, ident: str) -> None:
        self.answer(self.services.shown(await find_run(self, ident)))


class CancelHandler(Handler):
    """End a run, provably."""

    async def post(self, ident: str) -> None:
        self.json_body()
        reason = f"cancelled by {self.principal.owner}"
        self.answer(await end_run(self, ident, reason))


class SuspendHandler(Handler):
    """End a run with time to save a checkpoint; a retry resumes it there."""

    async def post(self, ident: str) -> None:
        self.json_body()
        reason = f"suspended by {self.principal.owner}"
        self.answer(await end_run(self, ident, reason))


class ScaleHandler(Handler):
    """Another number of workers for an elastic run that is under way."""

    async def post(self, ident: str) -> None:
        workers = self.json_body().get("workers")
        if type(workers) is not int:
            raise UserError(
                "bad-body", "The body has no whole number 'workers'.", "See docs/architecture.md."
            )
        services, run_id = self.services, (await find_run(self, ident)).run_id
        decide = partial(self._decide, run_id, workers)
        await services.dispatch.scaling.scale(run_id, workers, decide=decide, who=self.principal.owner)
        services.announcer.changed(run_id)
        self.answer(services.shown(await services.call(services.ledger.view, run_id)))

    def _decide(self, run_id: str, workers: int) -> RunView:
        """Judge more workers as a submit of that size; the run as it was. Nothing is done in the cluster yet.

        The ledger comes first: what else the person is allowed meanwhile depends on it.
        """
        services = self.services
        with services.policy.admission:
            view = services.ledger.view(run_id)
            _check_scalable(view, workers)
            if workers > view.spec.workers:
                asker = make_asker(services, self.principal)
                others = list(asker.under_way())
                if view.spec in others:
                    others.remove(view.spec)
                asker = replace(asker, under_way=lambda: others)
                services.policy.check(replace(view.spec, workers=workers), asker)
            services.ledger.scale(view.owner, run_id, workers)
            return view


class RetryHandler(Handler):
    """One more attempt of the same run, which is what resumes a suspended one, too."""

    async def post(self, ident: str) -> None:
        self.json_body()
        view = await find_run(self, ident)
        services = self.services
        await services.call(self._retry, view)
        services.announcer.changed(view.run_id)
        services.dispatch.wake()
        self.answer(services.shown(await services.call(services.ledger.view, view.run_id)))

    def _retry(self, view: RunView) -> None:
        services = self.services
        with services.policy.admission:
            # it may have ended since it was found
            if services.ledger.view(view.run_id).status.terminal:
                admit(services, self.principal, view.promotion_id, spec=view.spec)
            services.ledger.retry(view.owner, view.run_id, token_of=services.token_of)


class AttemptsHandler(Handler):
    """Every attempt of a run."""

    async def get(self, ident: str) -> None:
        view = await find_run(self, ident)
        self.answer({"attempts": await self.services.call(self.services.ledger.attempts_of, view.run_id)})


async def end_run(handler: Handler, ident: str, reason: str) -> dict[str, Any]:
    """Have a run of the caller ended; its view once that is proved, or after a while as it stands."""
    view, services = await find_run(handler, ident), handler.services
    row = await services.call(services.ledger.cancel, view.owner, view.run_id, reason=reason)
    services.announcer.changed(view.run_id)
    services.dispatch.wake()
    services.dispatch.poke(row.attempt_id)
    if not row.status.terminal:
        await services.dispatch.wait_over(row.attempt_id, timeout_seconds=CANCEL_SECONDS)
    return services.shown(await services.call(services.ledger.view, view.run_id))


def _check_scalable(view: RunView, workers: int) -> None:
    """Raises `not-elastic`, `not-submitted`, `bad-workers`. The most is the backend's to say."""
    if view.spec.min_workers is None:
        message = f"{view.name} is not elastic: it keeps its {view.spec.workers} workers."
        raise Refused("not-elastic", message, "Promote it with a preset that has min_workers.")
    if not view.handle:
        message = f"{view.name} is not in the cluster yet."
        raise Conflict("not-submitted", message, "Scale it when it waits for its place, or runs.")
    if workers < view.spec.least_workers:
        message = f"{view.name} needs at least {view.spec.least_workers} workers; asked were {workers}."
        raise Refused("bad-workers", message, "Ask for that many or more.")


async def find_run(handler: Handler, ident: str) -> RunView:
    """A run of the caller by run or promotion id. Raises `run-unknown`."""
    return await handler.services.call(handler.services.ledger.find, handler.principal.owner, ident)


def make_asker(services: Services, principal: Principal) -> Asker:
    """The caller as the policy sees one."""
    owner = principal.owner
    return Asker(owner=owner, groups=principal.groups, under_way=partial(services.ledger.under_way, owner))


def admit(services: Services, principal: Principal, promotion_id: str, *, spec: JobSpec) -> None:
    """Let a job in, and write down how long it may take. Hold `policy.admission` until it is submitted."""
    limit = services.policy.check(spec, make_asker(services, principal))
    services.ledger.set_wall_time(principal.owner, promotion_id, limit)


def tell_capacity(services: Services, *, waiting: int) -> dict[str, Any]:
    """What there is and what of it is free: by the launcher's leases, or by a backend that queues by itself."""
    told = None if services.policy.leased else services.backend.capacity()
    return make_capacity(services.ledger.capacity(), services.policy.queues, waiting=waiting) | dict(
        told or {}
    )


def make_capacity(pools: dict[str, Pool], queues: tuple[str, ...], *, waiting: int) -> dict[str, Any]:
    """As `GET /capacity` has it."""
    slices = [pool for name, pool in sorted(pools.items()) if name not in (SLOTS, GPUS)]
    none = Pool(name="", total=0, free=0)
    return {
        "slots": _count(pools.get(SLOTS, none)),
        "gpus": _count(pools.get(GPUS, none)),
        "slices": [
            {"name": pool.name, "total": pool.total, "free": pool.free, "simulated": pool.simulated}
            for pool in slices
        ],
        "queues": list(queues),
        "waiting": waiting,
    }


def _count(pool: Pool) -> dict[str, int]:
    return {"total": pool.total, "free": pool.free}


def _status(word: str) -> Status:
    try:
        return Status(word.upper())
    except ValueError as error:
        hint = f"Statuses: {', '.join(Status)}."
        raise UserError("bad-argument", f"There is no status {word[:40]!r}.", hint) from error
