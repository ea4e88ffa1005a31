"""The contacts adapters against a real Radicale: what they say of a send and a look, and what really happened.

The judge is Radicale's own journal of every card, and the clerk's view of the book; never the adapter's answer.
"""

import asyncio
from datetime import UTC, datetime
from typing import Any

import pytest

from devstack.faults import BlackHole, HoldRequest, ReplaceReply
from ledger.errors import Broken
from ledger.model import Attempt, Hint, MaySend, Operation, Outcome, Sighting, Standing, Step
from ledger.recovery import decide
from providers.port import Credential, Look, Request
from tests.providers.rigs_carddav import (
    ACCOUNT,
    WRITE,
    CardDavRig,
    a_contact_operation,
    carddav_create_rig,
    carddav_rig,
    carddav_stage,
    carddav_update_rig,
)
from tests.unit.recovery_facts import at, unknown

__all__ = ["carddav_create_rig", "carddav_rig", "carddav_stage", "carddav_update_rig"]
pytestmark = pytest.mark.asyncio
LONG_AGO = datetime(2020, 1, 1, tzinfo=UTC)
APPLIED, REFUSED, NO_EFFECT, UNKNOWN = Outcome.APPLIED, Outcome.REFUSED, Outcome.NO_EFFECT, Outcome.UNKNOWN


async def look(rig: CardDavRig, operation: Operation) -> Look:
    return await rig.provider.look(rig.credential, operation, LONG_AGO)


def sighting(seen: Look, began: float) -> Sighting:
    return Sighting(at(began), at(began + 1), seen.complete, seen.effects, seen.version_moved, seen.witness_has_marker)


def step(rig: CardDavRig, attempts: list[Attempt], *looks: tuple[float, Look], now: float) -> tuple[str, Step]:
    """What recovery would do with these attempts and looks, by seconds after the claim."""
    seen = [sighting(one, began) for began, one in looks]
    decision = decide(rig.provider.contract, attempts, seen, at(now), MaySend.YES, at(7200))
    return decision.row, decision.step


# Plain sends ----------------------------------------------------------------------------------------------------------


async def test_a_plain_send_makes_one_effect_and_a_look_finds_it(carddav_rig: CardDavRig) -> None:
    rig, operation = carddav_rig, await carddav_rig.operation()
    seen = await rig.send(operation)
    (receipt,) = rig.effects(operation)
    assert (seen.outcome, seen.receipt, seen.standing) == (APPLIED, receipt, Standing.GOOD)
    found = await look(rig, operation)
    assert found.complete and [(e.receipt, e.ours) for e in found.effects] == [(receipt, True)]
    again = await rig.provider.read_receipt(rig.credential, operation, receipt)
    assert again is not None and again.ours and again.receipt == receipt
    card = rig.book.read(rig.href(operation))
    assert card is not None and card.values("X-EFFECT-OPERATION") == [str(operation.operation_id)]
    for argument, name in (("full_name", "FN"), ("email", "EMAIL"), ("phone", "TEL")):
        if argument in operation.arguments:
            assert card.values(name) == [operation.arguments[argument]]


async def test_the_same_send_again_is_refused_by_the_server_and_known_as_done(carddav_rig: CardDavRig) -> None:
    """Red: take the marker's check out of `settle`: our own write is called a stale version."""
    rig, operation = carddav_rig, await carddav_rig.operation()
    first, second = await rig.send(operation), await rig.send(operation)
    assert (second.outcome, second.receipt) == (APPLIED, first.receipt) and second.detail["http_status"] == 412
    assert len(rig.effects(operation)) == 1 and rig.writes(operation)[1:] == [412]


async def test_the_credential_is_the_book_s_own(carddav_rig: CardDavRig) -> None:
    rig = carddav_rig
    assert await rig.provider.whose(rig.credential) == rig.credential
    for account, secret in (
        (ACCOUNT, "service:wrong"),
        (ACCOUNT, "nobody:x"),
        ("crm/nothing-here", rig.credential.secret),
        ("private/contacts", rig.credential.secret),
        # A folder is no book: a card put into it would become a book of its own.
        ("crm", rig.credential.secret),
    ):
        other = Credential(account, False, secret, endpoint=rig.credential.endpoint)
        assert await rig.provider.whose(other) is None, account


async def test_a_card_is_no_address_book(carddav_update_rig: CardDavRig) -> None:
    rig, operation = carddav_update_rig, await carddav_update_rig.operation()
    card = Credential(
        f"{ACCOUNT}/{operation.target}.vcf", False, rig.credential.secret, endpoint=rig.credential.endpoint
    )
    assert await rig.provider.whose(card) is None


# Lost answers ---------------------------------------------------------------------------------------------------------


async def test_an_answer_lost_after_the_effect_is_unknown_until_a_look_finds_it(carddav_rig: CardDavRig) -> None:
    rig, operation = carddav_rig, await carddav_rig.operation()
    await rig.request(operation)
    with rig.cut("after"):
        seen = await rig.send(operation)
    assert (seen.outcome, seen.hint, seen.receipt) == (UNKNOWN, Hint.LOST, None)
    (receipt,) = rig.effects(operation)
    found = await look(rig, operation)
    assert [(e.receipt, e.ours) for e in found.effects] == [(receipt, True)] and found.version_moved is True
    assert step(rig, [unknown()], (50.0, found), now=52.0) == ("D1", Step.SUCCEED)


async def test_a_request_lost_on_its_way_is_unknown_and_ends_with_a_person(carddav_rig: CardDavRig) -> None:
    """Nothing tells it from an effect that somebody undid: see the next test for why it isn't simply sent again."""
    rig, operation = carddav_rig, await carddav_rig.operation()
    await rig.request(operation)
    with rig.cut("before"):
        seen = await rig.send(operation)
    assert (seen.outcome, seen.hint) == (UNKNOWN, Hint.LOST)
    assert rig.effects(operation) == []
    found = await look(rig, operation)
    assert (found.complete, found.effects, found.version_moved) == (True, (), False)
    assert step(rig, [unknown()], (50.0, found), now=52.0)[1] is Step.LOOK
    assert step(rig, [unknown()], (175.0, found), (190.0, found), now=192.0) == ("D10", Step.REVIEW)


async def test_an_undo_brings_the_version_back_so_that_no_machine_repeats(carddav_rig: CardDavRig) -> None:
    """Applied, answer lost, and the clerk restores the exact content: version and look say that nothing was ever done.

    The last lines send it again to show what a repeat would do: Radicale lets it through, a second time.
    Red: set `versions_return=False` in `_contract`: `decide` says REPEAT.
    """
    rig, operation = carddav_rig, await carddav_rig.operation()
    href = rig.href(operation)
    before = rig.book.read(href)
    await rig.request(operation)
    with rig.cut("after"):
        await rig.send(operation)
    assert len(rig.effects(operation)) == 1
    if before is None:
        rig.book.delete(href)
    else:
        rig.book.write(href, before.content)
    found = await look(rig, operation)
    assert (found.complete, found.version_moved) == (True, False)
    assert [e for e in found.effects if e.marked or e.look_alike] == []
    for now in (52.0, 172.0, 400.0, 7000.0):
        assert step(rig, [unknown()], (50.0, found), now=now)[1] is Step.LOOK
    assert step(rig, [unknown()], (175.0, found), (190.0, found), now=192.0) == ("D10", Step.REVIEW)
    assert (await rig.send(operation)).outcome is APPLIED and len(rig.effects(operation)) == 2


async def test_a_request_still_under_way_is_not_absent_for_good(carddav_rig: CardDavRig) -> None:
    """It is held on the wire until the client has given up and looked: the look shows nothing, and then it lands."""
    rig, operation = carddav_rig, await carddav_rig.operation()
    await rig.request(operation)
    held = rig.proxy.arm(HoldRequest(after=WRITE))
    seen = await rig.send(operation, contract=rig.brief_contract())
    assert (seen.outcome, seen.hint, seen.detail["ended"]) == (UNKNOWN, Hint.LOST, "deadline")
    early = await look(rig, operation)
    assert (early.effects, early.version_moved) == ((), False)
    assert step(rig, [unknown()], (50.0, early), now=52.0)[1] is Step.LOOK
    await asyncio.to_thread(held.release)
    late = await look(rig, operation)
    assert len(rig.effects(operation)) == 1 and [e.ours for e in late.effects] == [True]


async def test_silence_ends_at_the_deadline(carddav_rig: CardDavRig) -> None:
    rig, operation = carddav_rig, await carddav_rig.operation()
    await rig.request(operation)
    rig.proxy.arm(BlackHole(after=WRITE))
    seen = await rig.send(operation, contract=rig.brief_contract())
    assert (seen.outcome, seen.hint) == (UNKNOWN, Hint.LOST) and rig.effects(operation) == []


async def test_a_server_that_dies_leaves_the_old_card_or_the_new_one(carddav_rig: CardDavRig) -> None:
    """SIGSTOP, then SIGKILL with the request in its socket, then a restart. A look tells which one it is."""
    rig, operation = carddav_rig, await carddav_rig.operation()
    await rig.request(operation)
    rig.server.pause()
    seen = await rig.send(operation, contract=rig.brief_contract())
    rig.server.kill()
    rig.server.restart()
    assert (seen.outcome, seen.hint) == (UNKNOWN, Hint.LOST)
    found = await look(rig, operation)
    assert found.complete and len(found.effects) == len(rig.effects(operation))


# Nothing leaves -------------------------------------------------------------------------------------------------------


async def test_a_no_of_the_guard_arrives_nowhere(carddav_rig: CardDavRig) -> None:
    rig, operation = carddav_rig, await carddav_rig.operation()
    await rig.request(operation)
    arrived = rig.arrivals()
    seen = await rig.send(operation, allowed=False)
    assert (seen.outcome, seen.hint) == (NO_EFFECT, Hint.NOT_SENT)
    assert rig.arrivals() == arrived and rig.effects(operation) == []


async def test_a_server_that_is_away_has_no_effect(carddav_rig: CardDavRig) -> None:
    rig, operation = carddav_rig, await carddav_rig.operation()
    await rig.request(operation)
    rig.break_receiver()
    seen = await rig.send(operation)
    assert await rig.provider.whose(rig.credential) is None
    assert (await look(rig, operation)).complete is False
    read = await rig.provider.preflight(rig.credential, operation.target, operation.arguments, "")
    assert read.complete is False and read.version is None
    rig.mend()
    assert (seen.outcome, seen.hint) == (NO_EFFECT, Hint.NOT_SENT) and rig.effects(operation) == []


@pytest.mark.parametrize("version", [None, "", "*", 'W/"1"', "bare", "the other action's"], ids=repr)
async def test_a_write_without_a_version_is_impossible(version: Any, carddav_rig: CardDavRig) -> None:
    """The operation has none, or the frozen row was emptied: `Broken` each time, and nothing arrives.

    Red: leave `_check_version` out of `_check_frozen`, and let `Line.write` send without a condition: the card is overwritten.
    """
    rig, operation = carddav_rig, await carddav_rig.operation()
    if version == "the other action's":
        version = "absent" if rig.action == "update_contact" else '"x"'
    good = await rig.request(operation)
    arrived = rig.arrivals()
    emptied = Request(**vars(good) | {"parameters": good.parameters | {"version": version}})
    without = await rig.operation(
        target=operation.target, expected_version=version, operation_id=operation.operation_id
    )
    for asked, request in ((operation, emptied), (without, good), (without, emptied)):
        rig.frozen[operation.operation_id] = request
        with pytest.raises(Broken):
            await rig.send(asked)
    with pytest.raises(Broken):
        rig.provider.build_request(without, {"version": version, "card": good.parameters["card"]})
    assert rig.arrivals() == arrived and rig.effects(operation) == []


async def test_a_frozen_request_of_something_else_is_never_sent(carddav_rig: CardDavRig) -> None:
    """Red: leave out a line of `_check_frozen`."""
    rig, operation = carddav_rig, await carddav_rig.operation()
    other = await rig.operation()
    good, foreign = await rig.request(operation), await rig.request(other)
    arrived = rig.arrivals()

    def changed(**changes: Any) -> Request:
        return Request(**vars(good) | {"parameters": good.parameters | changes})

    requests = [
        foreign,
        changed(path=foreign.parameters["path"]),
        changed(card=foreign.parameters["card"]),
        changed(card=good.parameters["card"].replace(str(operation.operation_id), str(other.operation_id))),
        changed(card=""),
        changed(version='"another"'),
        changed(version="absent" if rig.action == "update_contact" else '"x"'),
        Request(**vars(good) | {"operation": "DELETE"}),
        Request(**vars(good) | {"account": "crm/others"}),
        Request(**vars(good) | {"idempotency_key": other.idempotency_key}),
    ]
    for request in requests:
        rig.frozen[operation.operation_id] = request
        with pytest.raises(Broken):
            await rig.send(operation)
    for account, livemode in (("crm/others", False), (ACCOUNT, True)):
        credential = Credential(account, livemode, rig.credential.secret, endpoint=rig.credential.endpoint)
        with pytest.raises(Broken):
            await rig.provider.send(credential, operation, good, rig.provider.contract, _yes, lambda: None)
    assert rig.arrivals() == arrived and rig.effects(operation) == []


async def _yes() -> bool:
    return True


async def test_a_wrong_password_is_never_executed(carddav_rig: CardDavRig) -> None:
    rig, operation = carddav_rig, await carddav_rig.operation()
    request = await rig.request(operation)
    wrong = Credential(ACCOUNT, False, "service:hunter2", endpoint=rig.credential.endpoint)
    seen = await rig.provider.send(wrong, operation, request, rig.provider.contract, _yes, lambda: None)
    assert (seen.outcome, seen.detail["http_status"]) == (NO_EFFECT, 401)
    assert "hunter2" not in repr(seen) and rig.effects(operation) == []
    assert not (await rig.provider.preflight(wrong, operation.target, operation.arguments, "")).complete
    assert not (await rig.provider.look(wrong, operation, LONG_AGO)).complete


async def test_a_book_that_is_not_ours_to_write_refuses(carddav_create_rig: CardDavRig) -> None:
    rig = carddav_create_rig
    operation = a_contact_operation("create_contact", rig.a_target(), "absent", account="private/contacts")
    request = rig.provider.build_request(operation, {"version": "absent"})
    credential = Credential("private/contacts", False, rig.credential.secret, endpoint=rig.credential.endpoint)
    seen = await rig.provider.send(credential, operation, request, rig.provider.contract, _yes, lambda: None)
    assert (seen.outcome, seen.hint, seen.detail["http_status"]) == (REFUSED, Hint.NOT_PERMITTED, 403)


# Others write too -----------------------------------------------------------------------------------------------------


async def test_of_six_writers_with_one_version_exactly_one_wins(carddav_rig: CardDavRig) -> None:
    """Six operations for one card, approved on one version, all sent at once; three rounds.

    Red: send without the condition (leave `condition(version)` out of `Line.write`): several win.
    """
    rig = carddav_rig
    for _ in range(3):
        first = await rig.operation()
        six = [await rig.operation(target=first.target, expected_version=first.expected_version) for _ in range(6)]
        for one in six:
            await rig.request(one)
        told = await asyncio.gather(*(rig.send(one) for one in six))
        outcomes = sorted((seen.outcome, seen.hint) for seen in told)
        assert outcomes == [(APPLIED, Hint.NONE)] + [(REFUSED, Hint.VERSION_STALE)] * 5
        effects = [rig.effects(one) for one in six]
        assert sorted(map(len, effects)) == [0, 0, 0, 0, 0, 1]
        winner = next(one for one, seen in zip(six, told, strict=True) if seen.outcome is APPLIED)
        assert rig.effects(winner) and len(rig.written(first)) == 1


async def test_one_operation_sent_by_six_workers_has_one_effect(carddav_rig: CardDavRig) -> None:
    rig, operation = carddav_rig, await carddav_rig.operation()
    await rig.request(operation)
    told = await asyncio.gather(*(rig.send(operation) for _ in range(6)))
    assert {(seen.outcome, seen.receipt) for seen in told} == {(APPLIED, rig.effects(operation)[0])}
    assert len(rig.effects(operation)) == 1


async def test_a_clerk_s_edit_between_approval_and_send_is_kept(carddav_rig: CardDavRig) -> None:
    """Red: send `If-Match: *`, or no condition."""
    rig, operation = carddav_rig, await carddav_rig.operation()
    href = rig.href(operation)
    await rig.request(operation)
    if rig.action == "create_contact":
        rig.book.write(href, b"BEGIN:VCARD\r\nVERSION:3.0\r\nUID:clerk-1\r\nFN:By hand\r\nEND:VCARD\r\n")
    else:
        rig.book.edit(href, "NOTE", "called today; will call back")
    by_hand = rig.book.read(href)
    seen = await rig.send(operation)
    assert (seen.outcome, seen.hint, seen.detail["http_status"]) == (REFUSED, Hint.VERSION_STALE, 412)
    assert rig.book.read(href) == by_hand and rig.effects(operation) == []
    found = await look(rig, operation)
    assert found.version_moved is True and not any(e.marked or e.look_alike for e in found.effects)


async def test_a_card_that_is_gone_is_not_made_again(carddav_update_rig: CardDavRig) -> None:
    rig, operation = carddav_update_rig, await carddav_update_rig.operation()
    await rig.request(operation)
    rig.book.delete(rig.href(operation))
    seen = await rig.send(operation)
    assert (seen.outcome, seen.hint, seen.detail["version_now"]) == (REFUSED, Hint.VERSION_STALE, "absent")
    assert rig.book.read(rig.href(operation)) is None
    found = await look(rig, operation)
    assert (found.complete, found.effects, found.version_moved) == (True, (), True)
    assert step(rig, [unknown()], (175.0, found), now=176.0) == ("D5", Step.REVIEW)
    receipt = f"{ACCOUNT}/{operation.target}.vcf#{operation.operation_id}"
    assert await rig.provider.read_receipt(rig.credential, operation, receipt) is None


async def test_a_marker_that_was_taken_off_leaves_a_look_alike_for_a_person(carddav_rig: CardDavRig) -> None:
    """Red: let `read_sighting` leave out what only says what was asked: two people could certify that nothing happened."""
    rig, operation = carddav_rig, await carddav_rig.operation()
    href = rig.href(operation)
    await rig.request(operation)
    with rig.cut("after"):
        await rig.send(operation)
    stripped = [line for line in rig.book.read(href).content.split(b"\r\n") if not line.startswith(b"X-EFFECT")]  # type: ignore[union-attr]
    rig.book.write(href, b"\r\n".join(stripped))
    found = await look(rig, operation)
    if rig.action == "create_contact":
        # The UID says it as well, and clients leave that alone.
        assert [e.ours for e in found.effects] == [True]
        content = b"\r\n".join(stripped).replace(str(operation.operation_id).encode(), b"another-uid")
        rig.book.delete(href)
        rig.book.write(href, content)
        found = await look(rig, operation)
    assert [(e.marked, e.look_alike) for e in found.effects] == [(False, True)] and found.version_moved is True
    assert step(rig, [unknown()], (175.0, found), now=176.0) == ("D5", Step.REVIEW)
    seen = await rig.provider.read_receipt(rig.credential, operation, found.effects[0].receipt)
    assert seen is not None and seen.look_alike


async def test_a_later_edit_does_not_undo_our_effect(carddav_rig: CardDavRig) -> None:
    rig, operation = carddav_rig, await carddav_rig.operation()
    await rig.send(operation)
    rig.book.edit(rig.href(operation), "TEL", "+49 1 1")
    (effect,) = (await look(rig, operation)).effects
    assert effect.ours and effect.summary["says_what_was_asked"] is False


async def test_a_moved_card_keeps_its_receipt(carddav_rig: CardDavRig) -> None:
    """The clerk files it under another name. What we say of it does not change, and the next change finds it missing."""
    rig, operation = carddav_rig, await carddav_rig.operation()
    seen = await rig.send(operation)
    href = rig.href(operation)
    content, elsewhere = rig.book.read(href).content, href.replace(".vcf", "-filed.vcf")  # type: ignore[union-attr]
    rig.book.delete(href)
    rig.book.write(elsewhere, content)
    found = await look(rig, operation)
    assert [(e.receipt, e.ours) for e in found.effects] == [(seen.receipt, True)]
    assert found.effects[0].summary["found_at"] == elsewhere.removeprefix("/")
    again = await rig.provider.read_receipt(rig.credential, operation, seen.receipt or "")
    assert again == found.effects[0]
    # The server says no for another reason now (its UID stands elsewhere, or nothing stands here): it is done all the same.
    sent = await rig.send(operation)
    assert (sent.outcome, sent.receipt) == (APPLIED, seen.receipt)
    assert sent.detail.get("precondition") == ("no-uid-conflict" if rig.action == "create_contact" else None)
    assert len(rig.effects(operation)) == 1
    read = await rig.provider.preflight(
        rig.credential, operation.target, operation.arguments, str(operation.operation_id)
    )
    assert (read.unfit, [e.ours for e in read.effects]) == ("", [True])
    rig.provider.build_request(operation, read.basis)


async def test_a_copy_with_our_marker_is_for_a_person(carddav_rig: CardDavRig) -> None:
    """Red: leave the cards elsewhere out of `read_sighting`: two cards bear our marker, and nobody is told."""
    rig, operation = carddav_rig, await carddav_rig.operation()
    await rig.request(operation)
    with rig.cut("after"):
        await rig.send(operation)
    card = rig.book.read(rig.href(operation))
    assert card is not None
    copy = card.content.replace(f"UID:{card.values('UID')[0]}".encode(), b"UID:copied-" + operation.target.encode())
    rig.book.write(rig.href(operation).replace(".vcf", "-copy.vcf"), copy)
    found = await look(rig, operation)
    assert [(e.marked, e.matching) for e in found.effects] == [(True, True), (True, False)]
    assert step(rig, [unknown()], (50.0, found), now=52.0) == ("D2", Step.REVIEW)


async def test_another_receipt_is_another_effect(carddav_rig: CardDavRig) -> None:
    rig, operation = carddav_rig, await carddav_rig.operation()
    seen, other = await rig.send(operation), await rig.operation()
    for receipt in (seen.receipt, "", "x", f"{ACCOUNT}/{other.target}.vcf#{operation.operation_id}"):
        effect = await rig.provider.read_receipt(rig.credential, other, receipt or "")
        assert effect is not None and not effect.ours and not effect.look_alike


async def test_what_is_done_already_is_found_before_it_is_sent(carddav_rig: CardDavRig) -> None:
    """A ledger restored from an old backup: the preflight shows our effect, nothing is unfit, and the claim settles on it."""
    rig, operation = carddav_rig, await carddav_rig.operation()
    seen = await rig.send(operation)
    marker = rig.provider.marker_of(operation)
    read = await rig.provider.preflight(rig.credential, operation.target, operation.arguments, marker)
    assert (read.complete, read.unfit) == (True, "") and [(e.receipt, e.ours) for e in read.effects] == [
        (seen.receipt, True)
    ]
    rig.provider.build_request(operation, read.basis)
    stranger = await rig.provider.preflight(rig.credential, operation.target, operation.arguments, "")
    assert stranger.unfit == ("contact_exists" if rig.action == "create_contact" else "already_so")


async def test_a_search_that_cannot_be_read_is_not_complete(carddav_rig: CardDavRig) -> None:
    rig, operation = carddav_rig, await carddav_rig.operation()
    for reply in (b"HTTP/1.0 500 X\r\n\r\n", b"HTTP/1.0 200 OK\r\n\r\n<html>", b"HTTP/1.0 207 X\r\n\r\n<multistatus"):
        fault = rig.proxy.arm(ReplaceReply(after=b"REPORT ", answer=reply))
        found = await look(rig, operation)
        fault.wait_fired()
        assert (found.complete, found.effects) == (False, ())
        assert found.detail["why"] == "the address book could not be searched"


async def test_what_comes_between_the_two_reads_of_a_look_is_not_overlooked(carddav_rig: CardDavRig) -> None:
    """The card is read, and our write lands before the search is: neither of them alone is the truth.

    Red: leave out the comparison of both in `read_book`.
    """
    rig, operation = carddav_rig, await carddav_rig.operation()
    await rig.request(operation)
    held = rig.proxy.arm(HoldRequest(after=b"REPORT "))
    looking = asyncio.ensure_future(look(rig, operation))
    await asyncio.to_thread(held.wait_fired)
    assert (await rig.send(operation, through=rig.server.base_url)).outcome is APPLIED
    await asyncio.to_thread(held.release)
    found = await looking
    assert found.complete is False and found.detail["why"] == "the search and the card do not agree"
    assert (await look(rig, operation)).complete
