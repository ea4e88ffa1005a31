"""Both conditional writes on a real Tryton: races, stale parts, lost answers, overwritten marks. The judge is the ERP's log."""

import asyncio
import json
from dataclasses import replace
from typing import Any
from uuid import uuid4

import pytest

from devstack.faults import BlackHole, HoldRequest, ReplaceReply
from devstack.tryton import names
from devstack.tryton.rpc import TrytonError
from ledger.errors import Broken
from ledger.model import Hint, Operation, Outcome, Standing
from providers.port import Look
from providers.tryton_versions import ids_of, mark_of, read_version
from tests.providers.rigs_tryton_updates import TrytonUpdatesRig

pytest_plugins = ["tests.providers.rigs_tryton_updates"]
pytestmark = [pytest.mark.asyncio, pytest.mark.timeout(600)]

PARTS = {"purchase.purchase": "purchase.line", "party.party": "party.contact_mechanism"}
TABLES = {"purchase.purchase": "purchase_line", "party.party": "party_contact_mechanism"}
STALE = (Outcome.REFUSED, Hint.VERSION_STALE)
LOST = (Outcome.UNKNOWN, Hint.LOST)


@pytest.fixture
def rig(tryton_updates_rig: TrytonUpdatesRig) -> TrytonUpdatesRig:
    return tryton_updates_rig


def edit_header(rig: TrytonUpdatesRig, operation: Operation) -> None:
    """The buyer writes the record itself, and none of its parts."""
    values = {"comment": "urgent"} if rig.action == "change_delivery_date" else {"name": "Renamed"}
    rig.world.edit_record(rig.provider.header, rig.record(operation), **values)


def edit_part(rig: TrytonUpdatesRig, operation: Operation, values: dict[str, Any] | None = None) -> None:
    """The buyer writes one part that our write would touch, and nothing else."""
    model = PARTS[rig.provider.header]
    part = ids_of(read_version(operation.expected_version), model)[-1]
    written = {"note": "fragile"} if model == "purchase.line" else {"name": "reception"}
    rig.world.edit_record(model, part, **(values or written))


def overwrite_marks(rig: TrytonUpdatesRig, operation: Operation) -> None:
    """The buyer clears every text that can hold a mark."""
    if rig.action == "change_delivery_date":
        rig.world.edit_order(rig.record(operation), comment="call the supplier")
        return
    [row] = rig.world.admin.read("party.party", [rig.record(operation)], ["contact_mechanisms"])
    for contact in row["contact_mechanisms"]:
        rig.world.edit_record("party.contact_mechanism", contact, comment=None)


def books(rig: TrytonUpdatesRig, operation: Operation) -> dict[str, Any]:
    """What was asked for, as it stands in the ERP."""
    if rig.action == "change_delivery_date":
        order = rig.world.order(rig.record(operation))
        return {"dates": [str(line.delivery_date) for line in order.lines], "comment": order.comment}
    customer = rig.world.customer(rig.record(operation))
    return {"email": customer.email, "phone": customer.phone}


def as_asked(rig: TrytonUpdatesRig, operation: Operation) -> bool:
    """Whether the ERP says what was asked."""
    found = books(rig, operation)
    if rig.action == "change_delivery_date":
        return set(found["dates"]) == {operation.arguments["delivery_date"]}
    return all(found[kind] == value for kind, value in operation.arguments.items())


def proves_ours(look: Look, receipt: str) -> bool:
    """Whether recovery may call the operation done on this look (D1)."""
    return look.complete and [(e.receipt, e.ours, e.standing) for e in look.effects] == [(receipt, True, Standing.GOOD)]


def proves_not_ours(look: Look) -> bool:
    """Whether recovery may call the operation stale on this look (D5)."""
    return look.complete and look.effects == () and (look.version_moved, look.witness_has_marker) == (True, False)


# One write.


async def test_a_plain_send_makes_one_effect_and_its_look_finds_it(rig: TrytonUpdatesRig) -> None:
    operation = await rig.operation()
    before = await rig.look(operation)
    assert before.complete and before.effects == () and before.version_moved is False
    assert before.witness_has_marker is False
    seen = await rig.send(operation)
    assert rig.effects(operation) == [seen.receipt] and as_asked(rig, operation)
    assert (seen.outcome, seen.standing, seen.detail["read_again"]) == (Outcome.APPLIED, Standing.GOOD, True)
    look = await rig.look(operation)
    assert proves_ours(look, rig.receipt(operation)) and look.version_moved and look.witness_has_marker
    read = await rig.provider.read_receipt(rig.credential, rig.claimed(operation), rig.receipt(operation))
    assert read == look.effects[0]
    found = await rig.preflight(operation)
    assert [(e.receipt, e.ours) for e in found.effects] == [(seen.receipt, True)] and found.unfit == ""
    assert found.version != operation.expected_version


async def test_the_log_bears_the_moment_of_the_version(rig: TrytonUpdatesRig) -> None:
    """What the witness rests on: a row for the record and for each part, by our user, of the moment of the new version."""
    operation = await rig.operation()
    await rig.send(operation)
    (header,) = rig.our_writes(operation)
    model = PARTS[rig.provider.header]
    for part in ids_of(read_version(operation.expected_version), model):
        [stamp] = rig.world.admin.read(model, [part], ["_timestamp", "write_date"])
        ours = [row for row in rig.world.log(model, part) if row.user == names.SERVICE.name]
        assert [row.at for row in ours] == [header.at] == [stamp["write_date"]]
        assert f"{header.at.timestamp():.6f}" == stamp["_timestamp"]


async def test_nobody_but_an_administrator_can_touch_the_log(rig: TrytonUpdatesRig) -> None:
    """Neither our own user nor the buyer: otherwise the log were no witness."""
    operation = await rig.operation()
    await rig.send(operation)
    (row,) = rig.our_writes(operation)
    for login in (names.SERVICE, names.BUYER):
        with rig.server.session(login) as session:
            for method, *arguments in (("write", [row.id], {"target": "x"}), ("delete", [row.id]), ("create", [{}])):
                with pytest.raises(TrytonError, match="not allowed"):
                    session.call(f"model.ir.model.log.{method}", *arguments)


async def test_a_write_of_a_part_alone_moves_and_logs_only_the_part(rig: TrytonUpdatesRig) -> None:
    """Why every part's version must be sent: the header's says nothing about it."""
    operation = await rig.operation()
    before = rig.world.admin.read(rig.provider.header, [rig.record(operation)], ["_timestamp"])
    rows = len(rig.world.log(rig.provider.header, rig.record(operation)))
    edit_part(rig, operation)
    assert rig.world.admin.read(rig.provider.header, [rig.record(operation)], ["_timestamp"]) == before
    assert len(rig.world.log(rig.provider.header, rig.record(operation))) == rows
    assert (await rig.preflight(operation)).version != operation.expected_version


@pytest.mark.parametrize("turn", range(5))
async def test_of_six_simultaneous_writers_with_one_version_one_wins(rig: TrytonUpdatesRig, turn: int) -> None:
    """Six operations expect the same version and are sent together.

    Red: leave `_timestamp` out of the context in `freeze` and `check_frozen`: all six win.
    """
    first = await rig.operation()
    operations = [first, *(replace(first, operation_id=uuid4(), idempotency_key=f"effect-{n}") for n in range(5))]
    for operation in operations:
        await rig.request(operation)
    seen = await asyncio.gather(*(rig.send(operation) for operation in operations))
    told = sorted((one.outcome.value, one.hint.value) for one in seen)
    assert told == [("applied", ""), *[("refused", "version_stale")] * 5]
    assert len(rig.effects(first)) == 1
    (winner,) = (op for op, one in zip(operations, seen, strict=True) if one.outcome is Outcome.APPLIED)
    assert proves_ours(await rig.look(winner), rig.receipt(winner))
    losers = [await rig.look(op) for op in operations if op is not winner]
    # The losers' user is the winner's: what tells them apart is the mark.
    assert all(proves_not_ours(look) for look in losers)


# Stale versions.


@pytest.mark.parametrize("edit", [edit_header, edit_part])
async def test_an_edit_between_preflight_and_send_refuses_the_whole(rig: TrytonUpdatesRig, edit: Any) -> None:
    """A stale record with fresh parts, or a stale part of a fresh record: nothing of the write happens.

    Red: put only the header's version, or only those of the parts, into the condition.
    """
    operation = await rig.operation()
    await rig.request(operation)
    edit(rig, operation)
    before = books(rig, operation)
    seen = await rig.send(operation)
    assert (seen.outcome, seen.hint) == STALE
    assert rig.effects(operation) == [] and books(rig, operation) == before
    assert proves_not_ours(await rig.look(operation))


@pytest.mark.parametrize("edit", [edit_header, edit_part])
async def test_a_moved_version_is_seen_by_preflight(rig: TrytonUpdatesRig, edit: Any) -> None:
    """The core compares the two: a claim is then not made."""
    operation = await rig.operation()
    again = await rig.preflight(operation)
    assert again.version == operation.expected_version
    edit(rig, operation)
    assert (await rig.preflight(operation)).version not in (None, operation.expected_version)


async def test_a_basis_of_another_version_is_broken(rig: TrytonUpdatesRig) -> None:
    """Red: leave the version out of the comparison in `build_request`: an old comment would be written over a new one."""
    operation = await rig.operation()
    edit_header(rig, operation)
    read = await rig.preflight(operation)
    with pytest.raises(Broken):
        rig.provider.build_request(operation, read.basis)
    with pytest.raises(Broken):
        rig.provider.build_request(operation, {})


@pytest.mark.parametrize("version", [None, "", "*", "purchase.purchase,1", "party.party,1@*"])
async def test_nothing_is_built_or_sent_without_a_version(rig: TrytonUpdatesRig, version: str | None) -> None:
    """Tryton would take a write without `_timestamp` as unconditional, in silence.

    Red: let `read_version` return {} for what it cannot read.
    """
    operation = await rig.operation()
    request = await rig.request(operation)
    before, without = rig.arrivals(), replace(operation, expected_version=version)
    basis = (await rig.preflight(operation)).basis
    with pytest.raises(Broken):
        rig.provider.build_request(without, basis)
    rig.requests[without.operation_id] = request
    with pytest.raises(Broken):
        await rig.send(without)
    assert rig.arrivals() == before and rig.effects(operation) == []


async def test_a_frozen_request_without_a_part_of_its_condition_is_not_sent(rig: TrytonUpdatesRig) -> None:
    """Red: compare only the header's `_timestamp` in `check_frozen`."""
    operation = await rig.operation()
    kept = await rig.request(operation)
    before = rig.arrivals()
    for name in kept.parameters["params"][2]["_timestamp"]:
        tampered = replace(kept, parameters=json.loads(json.dumps(kept.parameters)))
        del tampered.parameters["params"][2]["_timestamp"][name]
        rig.requests[operation.operation_id] = tampered
        with pytest.raises(Broken):
            await rig.send(operation)
    rig.requests[operation.operation_id] = kept
    other = replace(operation, operation_id=uuid4())
    rig.requests[other.operation_id] = kept
    with pytest.raises(Broken):
        await rig.send(other)
    assert rig.arrivals() == before and rig.effects(operation) == []


# Lost answers.


async def test_an_answer_lost_after_the_effect_is_settled_by_a_look(rig: TrytonUpdatesRig) -> None:
    operation = await rig.operation()
    await rig.request(operation)
    with rig.cut("after"):
        seen = await rig.send(operation)
    assert (seen.outcome, seen.hint) == LOST
    assert await rig.committed(operation) == [rig.receipt(operation)]
    assert proves_ours(await rig.look(operation), rig.receipt(operation))


async def test_a_repeat_after_a_lost_answer_is_refused_and_the_first_is_proved(rig: TrytonUpdatesRig) -> None:
    """The same conditional write again is stale, by our own hand; it has no second effect, and its refusal proves no absence.

    So it is where an intermediary sends one request twice. Red: believe a ConcurrencyException in `needs_look`.
    """
    operation = await rig.operation()
    await rig.request(operation)
    with rig.cut("after"):
        await rig.send(operation)
    await rig.committed(operation)
    again = await rig.send(operation)
    assert (again.outcome, again.hint) == LOST and len(rig.effects(operation)) == 1
    assert proves_ours(await rig.look(operation), rig.receipt(operation))


async def test_a_request_lost_before_the_effect_may_be_repeated(rig: TrytonUpdatesRig) -> None:
    """The look sees the version unmoved, and nothing of ours."""
    operation = await rig.operation()
    await rig.request(operation)
    with rig.cut("before"):
        seen = await rig.send(operation)
    assert (seen.outcome, seen.hint) == LOST and rig.effects(operation) == []
    look = await rig.look(operation)
    assert look.complete and look.version_moved is False and look.effects == ()
    assert (await rig.send(operation)).outcome is Outcome.APPLIED and len(rig.effects(operation)) == 1


async def test_the_log_proves_ours_when_the_mark_is_overwritten(rig: TrytonUpdatesRig) -> None:
    """The answer is lost, and a buyer clears the texts before anybody looks.

    Red: let `hear` return without reading the log.
    """
    operation = await rig.operation()
    await rig.request(operation)
    with rig.cut("after"):
        await rig.send(operation)
    await rig.committed(operation)
    overwrite_marks(rig, operation)
    look = await rig.look(operation)
    assert proves_ours(look, rig.receipt(operation)) and look.witness_has_marker is True
    assert look.effects[0].summary["marker"] is None and look.effects[0].summary["as_asked"] is True


async def test_the_log_proves_ours_when_all_was_changed_again(rig: TrytonUpdatesRig) -> None:
    """A buyer writes header, parts and marks after us: our effect stood, and the records say something else now."""
    operation = await rig.operation()
    await rig.send(operation)
    overwrite_marks(rig, operation)
    edit_header(rig, operation)
    part = {"delivery_date": rig.world.place_order().lines[0].delivery_date}
    edit_part(rig, operation, part if rig.action == "change_delivery_date" else {"value": "later@customer.example"})
    look = await rig.look(operation)
    assert proves_ours(look, rig.receipt(operation)) and look.effects[0].summary["as_asked"] is False


async def test_somebody_elses_change_is_not_ours(rig: TrytonUpdatesRig) -> None:
    """The request is lost on its way, and a buyer does by hand what was asked: same values, same fields, another author.

    She writes everything once more, so that no version tells any more that our mark never stood there.
    Red: call any row in the log ours, whoever wrote it.
    """
    operation = await rig.operation()
    request = await rig.request(operation)
    with rig.cut("before"):
        await rig.send(operation)
    ids, values, _ = request.parameters["params"]
    by_hand = json.dumps(values).replace(mark_of(str(operation.operation_id)), "by hand")
    rig.world.buyer.call(rig.provider.method, ids, json.loads(by_hand))
    edit_header(rig, operation)
    edit_part(rig, operation)
    assert as_asked(rig, operation) and rig.effects(operation) == []
    look = await rig.look(operation)
    assert proves_not_ours(look)
    again = await rig.send(operation)
    assert (again.outcome, again.hint) == STALE and rig.effects(operation) == []


async def test_a_mark_in_a_strangers_write_needs_a_person(rig: TrytonUpdatesRig) -> None:
    """A buyer writes our very values, mark included: the texts say ours, the log says hers. Neither done nor stale."""
    operation = await rig.operation()
    request = await rig.request(operation)
    ids, values, _ = request.parameters["params"]
    rig.world.buyer.call(rig.provider.method, ids, values)
    look = await rig.look(operation)
    assert look.complete and [(e.marked, e.matching) for e in look.effects] == [(True, False)]
    assert look.witness_has_marker is False


async def test_a_late_write_is_seen_once_it_is_there(rig: TrytonUpdatesRig) -> None:
    """A lock holds the commit back; the client gives up; the look finds nothing until the lock goes."""
    operation = await rig.operation()
    await rig.request(operation)
    with rig.world.hold(TABLES[rig.provider.header]) as held:
        seen = await rig.send(operation, contract=rig.brief_contract())
        await asyncio.to_thread(held.await_waiter)
        early = await rig.look(operation)
        assert (seen.outcome, seen.hint) == LOST
        assert early.complete and early.version_moved is False and early.effects == ()
    assert await rig.committed(operation) == [rig.receipt(operation)]
    assert proves_ours(await rig.look(operation), rig.receipt(operation))


async def test_a_request_that_arrives_late_meets_the_moved_version(rig: TrytonUpdatesRig) -> None:
    """The network holds our request until a buyer has written: then it has no effect.

    It is held from its first byte: on a Python before 3.12 a request that has arrived in part stops all of Tryton.
    """
    operation = await rig.operation()
    await rig.request(operation)
    fault = rig.proxy.arm(HoldRequest())
    seen = await rig.send(operation, contract=rig.brief_contract())
    assert (seen.outcome, seen.hint) == LOST
    edit_header(rig, operation)
    await asyncio.to_thread(fault.release)
    assert rig.effects(operation) == [] and proves_not_ours(await rig.look(operation))


async def test_a_network_that_swallows_all_is_unknown(rig: TrytonUpdatesRig) -> None:
    operation = await rig.operation()
    await rig.request(operation)
    fault = rig.proxy.arm(BlackHole(after=rig.marker))
    seen = await rig.send(operation, contract=rig.brief_contract())
    rig.proxy.disarm(fault)
    assert (seen.outcome, seen.hint) == LOST and rig.effects(operation) == []


# Answers that are not what they seem.


def http(body: bytes, status: str = "200 OK") -> bytes:
    """An answer of the proxy's own making."""
    head = f"HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    return head.encode() + body


REFUSAL = http(b'{"id":1,"error":["UserError",["The stock says no.","",null]]}')


async def test_a_refusal_after_the_commit_is_not_believed(rig: TrytonUpdatesRig) -> None:
    """As a task that the server queues may refuse, when the write itself stands.

    Red: return what `classify` says without a look.
    """
    operation = await rig.operation()
    await rig.request(operation)
    rig.proxy.arm(ReplaceReply(after=rig.marker, answer=REFUSAL))
    seen = await rig.send(operation)
    assert (seen.outcome, seen.hint) == LOST and len(rig.effects(operation)) == 1
    assert proves_ours(await rig.look(operation), rig.receipt(operation))


async def test_a_refusal_of_what_never_happened_is_believed(rig: TrytonUpdatesRig) -> None:
    operation = await rig.operation()
    await rig.request(operation)
    rig.proxy.arm(ReplaceReply(after=rig.marker, answer=REFUSAL, deliver=False))
    seen = await rig.send(operation)
    assert (seen.outcome, seen.hint) == (Outcome.REFUSED, Hint.BUSINESS_RULE) and rig.effects(operation) == []


@pytest.mark.parametrize("body", [b"<html>welcome</html>", b"", b'{"id":1,"result":[7]}', b'{"result":null}'])
async def test_a_page_of_somebody_else_is_unknown(rig: TrytonUpdatesRig, body: bytes) -> None:
    operation = await rig.operation()
    await rig.request(operation)
    rig.proxy.arm(ReplaceReply(after=rig.marker, answer=http(body)))
    seen = await rig.send(operation)
    assert (seen.outcome, seen.hint) == (Outcome.UNKNOWN, Hint.UNREADABLE) and len(rig.effects(operation)) == 1


@pytest.mark.parametrize(
    ("body", "complete"),
    [
        (b"<html>welcome</html>", False),
        (b'{"id":1,"result":[{"id":1}]}', False),
        (b'{"id":1,"error":["UserError",["You are not allowed to access \\"Model Log\\".","",null]]}', True),
    ],
)
async def test_a_log_that_cannot_be_read_says_nothing(rig: TrytonUpdatesRig, body: bytes, complete: bool) -> None:
    """Neither yes nor no: what says what was asked could be ours with its mark edited away.

    Red: call it a no when the log cannot be read.
    """
    operation = await rig.operation()
    await rig.send(operation)
    overwrite_marks(rig, operation)
    fault = rig.proxy.arm(ReplaceReply(after=b"model.ir.model.log", answer=http(body), times=None))
    look = await rig.look(operation)
    rig.proxy.disarm(fault)
    assert (look.complete, look.witness_has_marker) == (complete, None)
    assert [(e.marked, e.matching) for e in look.effects] == [(False, True)]


# Whose write it was, between operations of our own.


async def test_what_was_never_claimed_is_not_proved_by_another_operations_write(rig: TrytonUpdatesRig) -> None:
    """One operation is declined, another is made from the same version: the log knows only our user.

    Red: pass `attributable=True` in `look`, whatever was claimed.
    """
    declined = await rig.operation()
    other = replace(declined, operation_id=uuid4(), idempotency_key="effect-other")
    await rig.send(other)
    overwrite_marks(rig, other)
    look = await rig.look(declined)
    assert not any(e.marked for e in look.effects) and look.witness_has_marker is None


async def test_a_receipt_names_the_record_and_the_operation(rig: TrytonUpdatesRig) -> None:
    operation = await rig.operation()
    await rig.send(operation)
    record, other = rig.receipt(operation).split("#")[0], await rig.operation()
    for receipt in (f"{record}#{uuid4()}", f"{record}", rig.receipt(other), "", "x" * 500):
        read = await rig.provider.read_receipt(rig.credential, rig.claimed(operation), receipt)
        assert read is not None and not read.ours and not read.look_alike and len(read.receipt) <= 200
    unsent = await rig.provider.read_receipt(rig.credential, other, rig.receipt(other))
    assert unsent is not None and not unsent.ours and not unsent.look_alike


# The line.


async def test_a_no_of_the_guard_arrives_nowhere(rig: TrytonUpdatesRig) -> None:
    operation = await rig.operation()
    await rig.request(operation)
    before = rig.arrivals()
    seen = await rig.send(operation, allowed=False)
    assert (seen.outcome, seen.hint) == (Outcome.NO_EFFECT, Hint.NOT_SENT)
    assert rig.arrivals() == before and rig.effects(operation) == []


async def test_a_server_that_is_gone_was_not_reached(rig: TrytonUpdatesRig) -> None:
    operation = await rig.operation()
    await rig.request(operation)
    receipt, before = rig.receipt(operation), rig.arrivals()
    rig.break_receiver()
    try:
        seen, look, found = await rig.send(operation), await rig.look(operation), await rig.preflight(operation)
        assert await rig.provider.whose(rig.credential) is None
        assert await rig.provider.read_receipt(rig.credential, operation, receipt) is None
    finally:
        rig.mend()
    assert (seen.outcome, seen.hint) == (Outcome.NO_EFFECT, Hint.NOT_SENT)
    assert not look.complete and not found.complete and found.unfit == "" and look.witness_has_marker is None
    assert rig.effects(operation) == [] and rig.arrivals() == before


async def test_a_wrong_password_has_no_effect(rig: TrytonUpdatesRig) -> None:
    operation = await rig.operation()
    await rig.request(operation)
    wrong = replace(rig.credential, secret=f"{names.SERVICE.name}:not-the-password")
    seen = await rig.send(operation, credential=wrong)
    assert seen.outcome is Outcome.NO_EFFECT and rig.effects(operation) == []
    assert await rig.provider.whose(wrong) is None
    assert "not-the-password" not in repr(seen) + repr(wrong)


async def test_a_credential_of_another_account_is_not_used(rig: TrytonUpdatesRig) -> None:
    operation = await rig.operation()
    await rig.request(operation)
    before = rig.arrivals()
    with pytest.raises(Broken):
        await rig.send(operation, credential=replace(rig.credential, account="erp/2"))
    assert rig.arrivals() == before


async def test_whose_the_credential_is(rig: TrytonUpdatesRig) -> None:
    claimed = replace(rig.credential, account="erp/999")
    assert await rig.provider.whose(claimed) == rig.credential
