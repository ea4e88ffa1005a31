"""What each fault between us and a receiver leads to, end to end, for every action.

The judges are the receivers' own records: the books and the log of the ERP, the journal of the address book, the mailbox, and
the journal of the Stripe stand-in.
Ledger time is moved; the clients' deadline is short.
"""

import asyncio
import re
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import date, timedelta
from typing import Any, TypeVar

import pytest

from activities.messages import Proposal
from devstack import radicale
from devstack.fault_proxy import Conversation, FaultProxy
from devstack.faults import Fault, HoldRequest
from devstack.tryton import names
from ledger.store import views
from ledger.store.verify import verify
from tests.conftest import Rig
from tests.matrix import note
from tests.recovery.wire_cases import (
    AT_ERP,
    AT_STRIPE,
    BLIND,
    BY_MAIL,
    CASES,
    IN_BOOK,
    KEYED,
    LOOKED_FOR,
    REPEATED,
    early,
    end,
)

__all__ = ["BLIND", "KEYED", "LOOKED_FOR", "REPEATED"]  # for the tests that speak of the same jobs

F = TypeVar("F", bound=Fault)
T = TypeVar("T")
aside = asyncio.to_thread
DEADLINE_SECONDS = 3.0  # of one call
BACKOFF_SECONDS = 0.6  # before the first look; what is unknown after it is at rest
AT_ONCE = 3  # operations that are asked for, or sent, at the same time: the receivers are small
TO_ABSENCE_SECONDS = 4_300.0  # past quiet_at and settling of every contract
BETWEEN_LOOKS_SECONDS = 400.0
LONG_AFTERWARDS_SECONDS = 7_200.0
NEW_DATE = (date.today() + timedelta(days=400)).isoformat()
ITEMS = [{"product": "WIDGET", "quantity": 2, "unit_price_minor": 1_250}]
UNAUTHORIZED = b"HTTP/1.1 401 Unauthorized\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
STRIPES_401 = (
    b"HTTP/1.1 401 Unauthorized\r\nContent-Type: application/json\r\nContent-Length: 44\r\nConnection: close\r\n\r\n"
    b'{"error":{"type":"invalid_request_error"  }}'
)
LETTER = {"customer": "Ada Lovelace", "order": "SO-4711", "delivery_date": "2027-01-24", "company": "Acme Ltd."}


@dataclass(eq=False, kw_only=True)
class Aim(Fault):
    """Does a harm to the whole HTTP request that holds an aim. Half a request would stall Tryton, which reads under one lock.

    Every connection to come is taken; a request without an aim passes as it is.
    """

    times: int | None = None
    _aims: list[tuple[bytes, Fault]] = field(default_factory=list, init=False, repr=False)
    _heard: dict[Conversation, bytearray] = field(default_factory=dict, init=False, repr=False)
    _hit: dict[Conversation, Fault] = field(default_factory=dict, init=False, repr=False)

    def at(self, aim: bytes, harm: F) -> F:
        """The next request with these bytes; the harm, to wait on."""
        assert self._proxy is not None
        harm.armed_by(self._proxy)
        self._aims.append((aim, harm))
        return harm

    def take(self, conversation: Conversation) -> None:
        self._heard[conversation] = bytearray()

    def holds(self, conversation: Conversation) -> bool:
        harm = self._hit.get(conversation)
        return conversation in self._heard if harm is None else harm.holds(conversation)

    async def request(self, conversation: Conversation, piece: bytes) -> None:
        if conversation in self._hit:
            await self._hit[conversation].request(conversation, piece)
            return
        heard = self._heard[conversation]
        heard += piece
        if not _is_whole(bytes(heard)):
            return
        del self._heard[conversation]
        found = next((one for one in self._aims if one[0] in heard), None)
        if found is None:
            await conversation.deliver(bytes(heard))
            return
        self._aims.remove(found)
        harm = self._hit[conversation] = found[1]
        harm.take(conversation)
        await harm.begin(conversation)
        await harm.request(conversation, bytes(heard))

    async def request_ended(self, conversation: Conversation) -> None:
        if conversation in self._hit:
            await self._hit[conversation].request_ended(conversation)
        else:
            conversation.end_delivery()

    async def reply(self, conversation: Conversation, piece: bytes) -> None:
        if conversation in self._hit:
            await self._hit[conversation].reply(conversation, piece)
        else:
            await conversation.give_back(piece)

    async def reply_ended(self, conversation: Conversation) -> None:
        if conversation in self._hit:
            await self._hit[conversation].reply_ended(conversation)
        else:
            conversation.end_reply()


def _is_whole(heard: bytes) -> bool:
    head, gap, body = heard.partition(b"\r\n\r\n")
    length = re.search(rb"(?i)\r\ncontent-length: *(\d+)", head)
    return bool(gap) and len(body) >= int(length[1] if length else 0)


@dataclass
class Job:
    """One effect that is asked for, on records of its own."""

    proposal: Proposal
    proxy: FaultProxy
    aim: str  # in the bytes of its write and of nothing else; {} is the operation id
    count: Callable[[str], int]  # effects of this operation, by the receiver's records
    inside: int = 10  # so many bytes on, the write is still under way
    not_now: bytes = UNAUTHORIZED  # an answer that says, by contract, that nothing was done
    operation_id: str = ""

    @property
    def marker(self) -> bytes:
        """The aim, once the operation is known."""
        return self.aim.format(self.operation_id).encode()

    @property
    def arrivals(self) -> int:
        """How often its write has left us."""
        return self.proxy.count(self.marker)

    async def effects(self) -> int:
        """How many effects of it there are."""
        return await aside(self.count, self.operation_id)


def a_job(desk: Rig, action: str) -> Job:
    """Of this action; makes what it needs at the receiver."""
    erp, book, box, proxies = desk.world.erp, desk.world.book, desk.world.box, desk.world.proxies
    match action:
        case "create_draft_invoice":
            code, order = erp.add_customer().code, f"O-{secrets.token_hex(5)}"
            asked = {"order": order, "amount_minor": 2_500, "currency": "eur", "items": ITEMS}
            invoice = desk.ask_for(action, code, asked)
            return Job(invoice, proxies["tryton"], '"reference":"{}"', lambda marker: len(erp.invoices(marker)), 400)
        case "update_customer":
            customer = erp.add_customer()
            note = desk.ask_for(action, customer.code, {"note": f"told {secrets.token_hex(4)}"})
            return Job(note, proxies["tryton"], "[effect {}]", lambda _: writes(desk, "party.party", customer.id), 400)
        case "change_delivery_date":
            order_made = erp.place_order(lines=1)
            moved = desk.ask_for(action, str(order_made.number), {"delivery_date": NEW_DATE})
            return Job(
                moved, proxies["tryton"], "[effect {}]", lambda _: writes(desk, "purchase.purchase", order_made.id), 400
            )
        case "create_contact" | "update_contact":
            new = action == "create_contact"
            asked = {"full_name": "Grace Hopper", "phone": "+1 202 555 0100"} if new else {"phone": "+49 30 7654321"}
            href = f"{book.path}{secrets.token_hex(8)}.vcf" if new else book.add("Grace Hopper", version="3.0").href
            contact = desk.ask_for(action, href.rpartition("/")[2].removesuffix(".vcf"), asked)
            ours = radicale.SERVICE.user
            return Job(
                contact,
                proxies["carddav"],
                "X-EFFECT-OPERATION:{}",
                lambda _: sum(written.who == ours for written in book.written(href)),
            )
        case "refund":
            target = desk.payment(10_000)
            refund = desk.proposal(target, amount=5_000)  # above the waiver: a person is asked, as for the others
            return Job(
                refund,
                proxies["stripe"],
                "Idempotency-Key: effect-{}",
                lambda _: sum(made.origin != "foreign" for made in desk.effects(target)),
                not_now=STRIPES_401,
            )
        case _:
            to = f"{secrets.token_hex(8)}@customer.test"
            letter = {"to": to, "template": "order-confirmation-1", "fields": LETTER}
            mail = desk.ask_for(action, f"C-{secrets.token_hex(5)}", letter)
            busy = b"451 4.3.2 come back later\r\n"
            return Job(mail, proxies["smtp"], "X-Effect-Operation: {}", lambda _: len(box.to(to)), not_now=busy)


def writes(desk: Rig, model: str, record: int) -> int:
    """Writes of our user on this record, by the log that Tryton itself keeps."""
    rows = desk.world.erp.log(model, record)
    return sum((row.user, row.event) == (names.SERVICE.name, "write") for row in rows)


async def waiting(desk: Rig, *jobs: Job) -> None:
    """Propose them: each waits for a person."""
    for some in in_batches(jobs):
        await asyncio.gather(*(_waits(desk, job) for job in some))


async def _waits(desk: Rig, job: Job) -> None:
    while not (answer := await desk.propose(job.proposal)).operation_id:
        assert answer.reason == "target_unreadable", answer  # a slow receiver: nothing was recorded
    job.operation_id = answer.operation_id
    await desk.until(job.operation_id, "awaiting_approval")


async def approve(desk: Rig, *jobs: Job) -> None:
    """Alice approves each."""
    await asyncio.gather(*(desk.approve(job.operation_id) for job in jobs))


def in_batches(those: Sequence[T]) -> list[Sequence[T]]:
    """A few at a time."""
    return [those[at : at + AT_ONCE] for at in range(0, len(those), AT_ONCE)]


async def at_rest(desk: Rig, seconds: float = 60.0) -> None:
    """Wait until nothing is under way and nothing falls due within a second: what is unknown waits for time to pass."""
    deadline = asyncio.get_running_loop().time() + seconds
    while busy := await _busy(desk):
        assert asyncio.get_running_loop().time() < deadline, busy
        await asyncio.sleep(0.1)


async def _busy(desk: Rig) -> list[Any]:
    async with desk.ledger.transaction() as conn:
        return await (
            await conn.execute(
                "select action, state, next_step from operations where ended_at is null and not ("
                " state = 'unknown' and next_step in ('look', 'wait') and next_step_at > ledger_now() + interval '1 second'"
                " or state = 'needs_review' and next_step_at > ledger_now())"
            )
        ).fetchall()


async def states(desk: Rig, jobs: Sequence[Job]) -> list[str]:
    """Where they stand."""
    return [(await desk.operation(job.operation_id)).state.value for job in jobs]


async def until_states(desk: Rig, jobs: Sequence[Job], wanted: Sequence[str]) -> None:
    """Let time pass, look by look, until they stand so."""
    for seconds in (0.0, TO_ABSENCE_SECONDS, *[BETWEEN_LOOKS_SECONDS] * 8):
        if seconds:
            await desk.advance(seconds)
        await at_rest(desk)
        if await states(desk, jobs) == list(wanted):
            return
    raise AssertionError(
        [f"{state} instead of {want}" for state, want in zip(await states(desk, jobs), wanted, strict=True)]
    )


async def nothing_is_overdue(desk: Rig, seconds: float = 20.0) -> None:
    """Hours later: whatever is still open was looked at again, and the ledger agrees with itself."""
    await desk.advance(LONG_AFTERWARDS_SECONDS)
    deadline = asyncio.get_running_loop().time() + seconds
    while True:
        async with desk.ledger.transaction() as conn:
            late = await views.overdue(conn)
        if not late:
            break
        assert asyncio.get_running_loop().time() < deadline, late
        await asyncio.sleep(0.1)
    async with desk.ledger.transaction() as conn:
        await conn.execute("set transaction isolation level repeatable read")  # slow looks go on meanwhile
        assert (await verify(conn)).differences == []


@pytest.mark.matrix
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "actions",
    [
        pytest.param(AT_ERP, id="erp", marks=pytest.mark.long),
        pytest.param(IN_BOOK, id="address book", marks=pytest.mark.long),
        pytest.param(BY_MAIL, id="mail", marks=pytest.mark.long),
        pytest.param(AT_STRIPE, id="stripe"),
    ],
)
async def test_fault(desk: Rig, actions: tuple[str, ...]) -> None:
    """One operation for each action and fault. What is never carried out and has no condition waits for a person, unsent.

    Red: call a lost answer refused in the adapter's `classify`, or applied; repeat in `recovery._d10_review`, or on an
    unchanged version in `_d8_repeat_condition` although versions return; leave `_timestamp` out in `tryton_versions.freeze`
    and `check_frozen`.
    """
    cases = [(action, case) for case in CASES for action in actions if action in case.by]
    jobs = [await aside(a_job, desk, action) for action, _ in cases]
    aim = desk.world.proxies["tryton"].arm(Aim())
    faults: list[Fault] = []

    async def told() -> list[str]:
        states = [(await desk.operation(job.operation_id)).state.value for job in jobs]
        found = [(state, await job.effects(), job.arrivals) for state, job in zip(states, jobs, strict=True)]
        return [f"{action}, {case.name}: {one}" for (action, case), one in zip(cases, found, strict=True)]

    async with desk.worker(call_deadline=DEADLINE_SECONDS, backoff=BACKOFF_SECONDS, stripe_base_url=desk.stripe_url):
        await waiting(desk, *jobs)
        for some in in_batches(list(zip(jobs, cases, strict=True))):
            armed = [arm(aim, job, case.fault(job)) for job, (_, case) in some]
            await approve(desk, *(job for job, _ in some))
            for fault in armed:
                await aside(fault.wait_fired)
            faults += armed
        await at_rest(desk)
        assert await told() == [f"{action}, {case.name}: {early(action, case)}" for action, case in cases]
        for fault in faults:
            if isinstance(fault, HoldRequest):
                await aside(fault.release)
        await until_states(desk, jobs, [end(*case)[0] for case in cases])
        await nothing_is_overdue(desk)
        assert await told() == [f"{action}, {case.name}: {end(action, case)}" for action, case in cases]
    for job, (_, case) in zip(jobs, cases, strict=True):
        await note(desk, case.trouble, case.when, job.operation_id, await job.effects())


def arm(aim: Aim, job: Job, fault: F) -> F:
    """The next write of this operation has this fault."""
    if job.proposal.action in AT_ERP:
        return aim.at(job.marker, fault)
    fault.after = job.marker
    return job.proxy.arm(fault)
