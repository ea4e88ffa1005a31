"""The audit: the ledger against what providers list, against the workflows that Temporal runs, and against itself.

1. It reads, compares and keeps what does not fit; it moves no operation. A repair starts or wakes a workflow, which reads the
   ledger and goes on where the operation stands.
2. A listing is remembered page by page, so that a worker that stops costs one page. The next one begins where the last began.
3. Ledger and Temporal are compared at the cost of what is open, a provider at the cost of what it was asked for since, and of
   the ledger's own chains a part at a time.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import AbstractAsyncContextManager
from datetime import datetime, timedelta

import structlog
from temporalio import activity

from activities.errors import heartbeating, translated
from activities.messages import Audited, Auditing
from activities.ports import Ports, Runs
from ledger.audit import Finding, FindingKind, ListedEffect, compare, missing
from ledger.errors import Refused
from ledger.model import Operation
from ledger.store import audits, configuration, views
from ledger.store.audits import ITSELF, NOWHERE, Place
from ledger.store.database import Connection, one_moment
from ledger.store.verify import verify_some
from providers.port import Credential, EffectPage, Lists

# Effects appear in a listing some time after they were made, by a clock that is not ours.
OVERLAP = timedelta(hours=1)
# Between two reads of one provider, seconds: a twentieth of what Stripe allows a test account.
PACE = 0.5
# Operations that one audit recomputes: some seconds of reading.
MOST_VERIFIED = 500

Snapshot = Callable[[], AbstractAsyncContextManager[Connection]]

log = structlog.get_logger()


class Audit:
    """The activity that compares."""

    def __init__(self, ports: Ports) -> None:
        self._ports = ports

    @activity.defn(name="audit")
    async def audit(self, auditing: Auditing) -> Audited:
        """Compare everything once. A provider that cannot be read is left out, said so, and gone on with the next time."""
        async with translated(), heartbeating():
            async with self._ports.ledger.transaction() as conn:
                start = await audits.start(conn)
            found = await against_temporal(self._ports.ledger.transaction, self._ports.runs)
            repaired = await repair(found, self._ports) if auditing.repair else []
            await self._keep(NOWHERE, [finding for finding, _ in found])
            await self._verify()
            listed, left_out = 0, list[str]()
            for place, credential in await self._places(left_out):
                try:
                    listed += await self._list(place, credential)
                except _Unread as error:
                    left_out.append(f"{place}: {error}")
            async with self._ports.ledger.transaction() as conn:
                await audits.record(conn, start, listed, left_out)
                findings = await audits.open_findings(conn)
            return Audited(listed=listed, findings=len(findings), repaired=repaired, left_out=left_out)

    async def _verify(self) -> None:
        """Recompute the next operations, and those that differed before: all of them in turn, so many at each audit."""
        async with self._ports.ledger.transaction() as conn:
            stands = await audits.take_up(conn, ITSELF)
            known = await audits.open_at(conn, ITSELF)
            ids = await audits.next_ids(conn, stands.go_on, MOST_VERIFIED)
        wanted = {*ids, *(finding.operation_id for finding in known if finding.operation_id is not None)}
        async with self._ports.ledger.transaction() as conn:
            await one_moment(conn)
            differ = await verify_some(conn, sorted(wanted))
        # Kept with its operation, so that it is looked at again at every audit: a sheet of it, too, has no turn of its own.
        found = [Finding(FindingKind.CHAIN, each.row, each.what, at) for each, at in differ]
        await self._keep(ITSELF, found)
        async with self._ports.ledger.transaction() as conn:
            await audits.fit_now(conn, ITSELF, _no_longer(known, found))
            if len(ids) < MOST_VERIFIED:
                await audits.finish(conn, ITSELF, stands.began_at)
            else:
                await audits.go_on(conn, ITSELF, stands.began_at, str(ids[-1]))

    async def _places(self, left_out: list[str]) -> list[tuple[Place, Credential]]:
        """Every listing that there is, with a credential for it; why one is left out is added to `left_out`.

        Of several tenants that are bound to one account any will do: one whose secret is missing leaves nothing out.
        """
        async with self._ports.ledger.transaction() as conn:
            _, document = await configuration.in_force(conn)
        places: dict[Place, Credential] = {}
        problems: dict[Place, str] = {}
        for binding in document.bindings:
            for provider in self._ports.registry:
                place = Place(provider.action, provider.provider, binding.account, binding.livemode)
                if provider.provider != binding.provider or not isinstance(provider, Lists) or place in places:
                    continue
                try:
                    credential = self._ports.secrets.credential_of(document, binding.tenant, binding.provider)
                except Refused as refused:
                    problems[place] = str(refused)
                    continue
                owner = await provider.whose(credential)
                if owner is None or (owner.account, owner.livemode) != (place.account, place.livemode):
                    problems[place] = "the provider did not say that the credential is of this account"
                    continue
                places[place] = credential
        left_out += [f"{place}: {why}" for place, why in problems.items() if place not in places]
        return list(places.items())

    async def _list(self, place: Place, credential: Credential) -> int:
        """Compare everything that was made there since the last listing; how many effects that were."""
        provider = self._ports.registry.for_action(place.action)
        assert isinstance(provider, Lists)
        async with self._ports.ledger.transaction() as conn:
            stands = await audits.take_up(conn, place)
            known = await audits.open_at(conn, place)
        seen: set[str] = set()
        found: list[Finding] = []
        since = None if stands.since is None else stands.since - OVERLAP
        async for page in _pages(provider, credential, since, stands.go_on):
            seen.update(effect.receipt for effect in page.effects)
            unfit = await self._compare(place, page.effects)
            await self._keep(place, unfit)
            found += unfit
            async with self._ports.ledger.transaction() as conn:
                await audits.go_on(conn, place, stands.began_at, page.go_on)
        async with self._ports.ledger.transaction() as conn:
            counted = await audits.receipts_counted(conn, place, stands.since, stands.began_at)
        # What the ledger counts since the last listing, or did not fit before, and was not listed now, is read by itself.
        for receipt in counted | {finding.name for finding in known} - {finding.name for finding in found}:
            if receipt not in seen:
                found += await self._by_itself(place, provider, credential, receipt)
        await self._keep(place, found)
        async with self._ports.ledger.transaction() as conn:
            await audits.fit_now(conn, place, _no_longer(known, found))
            await audits.finish(conn, place, stands.began_at)
        return len(seen)

    async def _compare(self, place: Place, effects: Iterable[ListedEffect]) -> list[Finding]:
        """The ledger is read after the page: what it recorded meanwhile is there."""
        listed = list(effects)
        async with self._ports.ledger.transaction() as conn:
            named, held = await audits.named_and_held(conn, place, listed)
        return [
            finding
            for effect in listed
            for finding in compare(
                effect, None if effect.marker is None else named.get(effect.marker), held.get(effect.receipt)
            )
        ]

    async def _by_itself(self, place: Place, provider: Lists, credential: Credential, receipt: str) -> list[Finding]:
        """The ledger is read after the provider here, too."""
        page = await _read(provider, credential, receipt)
        if page.effects:
            return await self._compare(place, page.effects)
        async with self._ports.ledger.transaction() as conn:
            _, held = await audits.named_and_held(conn, place, [ListedEffect(receipt, None, None)])
        return [finding for operation in held.values() for finding in missing(operation)]

    async def _keep(self, place: Place, found: list[Finding]) -> None:
        """Keep what was found, and tell what is new. Of what concerns Temporal, all that is not found now is gone."""
        async with self._ports.ledger.transaction() as conn:
            new = await audits.keep(conn, place, found)
            if place == NOWHERE:
                await audits.fit_now(conn, place, _no_longer(await audits.open_at(conn, place), found))
        for finding in new:
            log.error("audit finding", kind=finding.kind.value, operation_id=str(finding.operation_id or ""))


async def against_temporal(snapshot: Snapshot, runs: Runs) -> list[tuple[Finding, Operation | None]]:
    """Open operations that no workflow works on, or that are overdue, and workflows without an operation.

    Costs one listing of the running workflows, and one question for each open operation that is not in it. What a repair
    starts or wakes stands beside its finding.
    """
    running = await runs.running()
    # Read after the listing: what was recorded meanwhile is no stray.
    async with snapshot() as conn:
        expected = await views.with_a_workflow(conn)
        late = {row["operation_id"] for row in await views.overdue(conn)}
        known = {operation.name for operation in expected}
        strays = [name for name in running if name not in known and not await views.recorded(conn, name)]
    found: list[tuple[Finding, Operation | None]] = []
    for operation in expected:
        name, stands = operation.name, f"{operation.state}, next {operation.next_step}"
        if name not in running and not await runs.runs(name):
            what = f"{stands}: no workflow works on it"
            found.append((Finding(FindingKind.WITHOUT_WORKFLOW, name, what, operation.operation_id), operation))
        elif operation.operation_id in late:
            what = f"{stands}: was due at {operation.next_step_at:%Y-%m-%d %H:%M:%SZ}"
            found.append((Finding(FindingKind.OVERDUE, name, what, operation.operation_id), operation))
    what = "runs, and the ledger has no operation of this name"
    found += [(Finding(FindingKind.WITHOUT_OPERATION, name, what), None) for name in sorted(strays)]
    return found


async def repair(found: Iterable[tuple[Finding, Operation | None]], ports: Ports) -> list[str]:
    """Start or wake whatever can be; the workflow ids."""
    repaired = []
    for finding, operation in found:
        if operation is not None:
            await ports.look_now(operation)
            repaired.append(finding.name)
    return repaired


class _Unread(Exception):
    """A provider could not be read; the message says what it told."""


async def _pages(
    provider: Lists, credential: Credential, since: datetime | None, go_on: str
) -> AsyncIterator[EffectPage]:
    while True:
        page = await provider.list_effects(credential, since, go_on)
        if not page.complete:
            raise _Unread(_told(page))
        yield page
        if not page.go_on:
            return
        go_on = page.go_on
        await asyncio.sleep(PACE)


async def _read(provider: Lists, credential: Credential, receipt: str) -> EffectPage:
    await asyncio.sleep(PACE)
    page = await provider.read_effect(credential, receipt)
    if not page.complete:
        raise _Unread(_told(page))
    return page


def _told(page: EffectPage) -> str:
    """Codes of ours and numbers only: a provider's words may quote a person."""
    told = {name: page.detail[name] for name in ("http_status", "ended", "why") if page.detail.get(name)}
    return (
        f"could not be read to its end ({', '.join(f'{name} {value}' for name, value in told.items()) or 'no answer'})"
    )


def _no_longer(known: Iterable[Finding], found: Iterable[Finding]) -> list[Finding]:
    still = {(finding.kind, finding.name) for finding in found}
    return [finding for finding in known if (finding.kind, finding.name) not in still]
