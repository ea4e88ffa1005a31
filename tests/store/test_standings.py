"""A receipt that turns void while somebody else still holds what it was before: void stays void, and is told to people once."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime, timedelta

import pytest

from activities.dispatch import Claim, Dispatch, Wire
from activities.reconcile import Reconcile, look
from activities.settle import close_attempt_as_unknown, settle
from ledger.contract import Contract
from ledger.model import Operation, Outcome, SeenEffect, Standing
from ledger.states import State
from ledger.store import operations
from ledger.store.database import now
from ledger.trail import EventKind
from providers.port import Classified, Credential, Look
from tests.store.bank import CONTRACT, Bank, nothing
from tests.store.conftest import Book, ref

GOOD, PENDING, VOID = Standing.GOOD, Standing.PENDING, Standing.VOID


def seen(standing: Standing) -> SeenEffect:
    """Our effect."""
    return SeenEffect("re_1", standing, marked=True, matching=True)


@dataclass
class Clearing(Bank):
    """A bank whose refunds can change. What it tells is as of when it was asked; the answer comes after `while_asked`."""

    contract: Contract = CONTRACT.model_copy(update={"effect_can_change": True})

    async def look(self, credential: Credential, operation: Operation, since: datetime) -> Look:
        """All effects there are."""
        shown = self.effects
        await self.while_asked()
        return Look(complete=True, effects=shown)

    async def read_receipt(self, credential: Credential, operation: Operation, receipt: str) -> SeenEffect | None:
        """The one effect."""
        (shown,) = self.effects
        await self.while_asked()
        return shown


def told(standing: Standing) -> Classified:
    """The answer to the send."""
    return Classified(Outcome.APPLIED, receipt="re_1", standing=standing)


@pytest.fixture
def bank(own_book: Book) -> Clearing:
    """The bank of this test's ledger."""
    own_book.bank = Clearing()
    return own_book.bank


async def claimed(book: Book, operation: Operation) -> Claim:
    """Its next claim."""
    claim = await Dispatch(book.ports)._claim(ref(operation))
    assert isinstance(claim, Claim), claim
    return claim


async def held_back(book: Book) -> tuple[Operation, Claim]:
    """An operation whose worker was stopped with an answer in its hands, until its lease was over."""
    operation = await book.approved()
    claim = await claimed(book, operation)
    await book.set_clock(timedelta(seconds=50))
    async with book.ledger.transaction() as conn:
        locked = await operations.lock(conn, operation.operation_id)
        return await close_attempt_as_unknown(conn, locked, await now(conn)), claim


async def contradictions(book: Book, operation: Operation) -> list[str]:
    """What the trail tells people."""
    return [str(e.body["what"]) for e in await book.trail(operation) if e.kind is EventKind.CONTRADICTION]


async def listed(book: Book, operation: Operation) -> bool:
    """Whether people see it in review although it ended."""
    found = "select contradicted from operations where operation_id = %s"
    return bool(await book.value(found, operation.operation_id))


async def settled(book: Book, operation: Operation) -> Operation:
    """After its evidence was judged once more."""
    async with book.ledger.transaction() as conn:
        operation, _ = await settle(conn, book.ports, await operations.lock(conn, operation.operation_id))
        return operation


def void_meanwhile(bank: Clearing, then: Callable[[], Awaitable[object]]) -> None:
    """While somebody is asking the bank, the effect turns void, and somebody else does this."""

    async def turns_void() -> None:
        bank.effects, bank.while_asked = (seen(VOID),), nothing
        await then()

    bank.while_asked = turns_void


UNDONE = ["the effect exists no longer: its receipt turned void"]


@pytest.mark.parametrize("late", [GOOD, PENDING])
async def test_an_answer_that_was_held_back_does_not_undo_what_a_look_saw(
    own_book: Book, bank: Clearing, late: Standing
) -> None:
    """Its effect was seen to be void before it was quiet; then the old answer is recorded, and is not believed.

    Red: `known_receipts` by the time of recording alone. It succeeded then, with what no longer exists.
    """
    operation, claim = await held_back(own_book)
    bank.effects = (seen(VOID),)
    await look(own_book.ports, operation)
    assert (await Dispatch(own_book.ports)._record(claim, told(late), Wire())).state == "unknown"
    assert (await settled(own_book, operation)).state is State.UNKNOWN
    await own_book.set_clock(timedelta(seconds=200))
    ended = await settled(own_book, operation)
    assert (ended.state, ended.reason) == (State.REJECTED, "void")


async def test_what_was_void_before_the_end_alarms_nobody(own_book: Book, bank: Clearing) -> None:
    """A look is under way; another one sees the effect void, and it is rejected; then the first look and an answer come.

    Red: `against_end` that believes what is recorded last.
    """
    operation, claim = await held_back(own_book)
    await own_book.set_clock(timedelta(seconds=200))

    async def ends() -> None:
        await look(own_book.ports, operation)
        assert (await settled(own_book, operation)).state is State.REJECTED

    bank.effects = (seen(GOOD),)
    void_meanwhile(bank, ends)
    await look(own_book.ports, operation)
    await Dispatch(own_book.ports)._record(claim, told(GOOD), Wire())
    assert await contradictions(own_book, operation) == []
    assert not await listed(own_book, operation)


async def test_a_look_that_was_under_way_at_the_end_tells_that_the_effect_is_void(
    own_book: Book, bank: Clearing
) -> None:
    """It succeeds on a late answer while a look is under way, which has seen the effect void. Told once, and listed.

    Red: `look` that asks `against_end` only for operations without an effect.
    """
    operation, claim = await held_back(own_book)
    await Dispatch(own_book.ports)._record(claim, told(GOOD), Wire())
    assert (await settled(own_book, operation)).standing is GOOD
    bank.effects = (seen(VOID),)
    await look(own_book.ports, operation)
    await look(own_book.ports, operation)
    assert (await own_book.find(operation)).standing is VOID
    assert await contradictions(own_book, operation) == UNDONE
    assert await listed(own_book, operation)


async def test_a_late_answer_tells_that_the_effect_is_void(own_book: Book, bank: Clearing) -> None:
    """The second attempt succeeded; the first, sent late, is answered that the effect exists no longer.

    Red: `_record_once` that asks `against_end` only about other receipts.
    """
    operation, first = await held_back(own_book)
    await own_book.set_clock(timedelta(seconds=120))
    second = await claimed(own_book, operation)
    assert (await Dispatch(own_book.ports)._record(second, told(GOOD), Wire())).state == "succeeded"
    await Dispatch(own_book.ports)._record(first, told(VOID), Wire())
    assert (await own_book.find(operation)).standing is VOID
    assert await contradictions(own_book, operation) == UNDONE


@pytest.mark.parametrize("before", [GOOD, PENDING])
async def test_a_reading_from_before_does_not_undo_that_a_receipt_is_void(
    own_book: Book, bank: Clearing, before: Standing
) -> None:
    """Two follow the same receipt; the one that has read it before it turned void writes last.

    Red: `note_standing` that writes whatever it is told: good again, and nobody follows it any more.
    """
    operation = await own_book.approved()
    await Dispatch(own_book.ports)._record(await claimed(own_book, operation), told(PENDING), Wire())
    follow = Reconcile(own_book.ports).reconcile
    bank.effects = (seen(before),)
    void_meanwhile(bank, lambda: own_book.run(follow, ref(operation)))
    progress = await own_book.run(follow, ref(operation))
    assert (progress.standing, progress.next) == ("void", "done")
    assert (await own_book.find(operation)).standing is VOID
    assert await contradictions(own_book, operation) == UNDONE
