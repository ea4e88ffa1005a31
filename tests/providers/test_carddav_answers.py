"""What Radicale and those between say to a write of the contacts adapters, and what a change leaves on the card.

The judge is Radicale's own journal of every card, and the clerk's view of the book; never the adapter's answer.
"""

import asyncio
from datetime import UTC, datetime

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from devstack.faults import CutRequest, ReplaceReply
from devstack.radicale import CLERK
from ledger.errors import Refused
from ledger.fingerprint import check_text
from ledger.model import Hint, Operation, Outcome
from providers.port import Credential, Look
from tests.providers.rigs_carddav import (
    NEW,
    WRITE,
    CardDavRig,
    a_contact_operation,
    carddav_create_rig,
    carddav_rig,
    carddav_stage,
    carddav_update_rig,
)

__all__ = ["carddav_create_rig", "carddav_rig", "carddav_stage", "carddav_update_rig"]
pytestmark = pytest.mark.asyncio
APPLIED, REFUSED, UNKNOWN = Outcome.APPLIED, Outcome.REFUSED, Outcome.UNKNOWN


async def look(rig: CardDavRig, operation: Operation) -> Look:
    return await rig.provider.look(rig.credential, operation, datetime(2020, 1, 1, tzinfo=UTC))


async def _yes() -> bool:
    return True


# Refusals and other answers -------------------------------------------------------------------------------------------


async def test_a_card_too_large_is_malformed_and_not_stale(carddav_update_rig: CardDavRig) -> None:
    """Radicale says 412 for that too; the version stands, so that it is no stale one.

    Red: call every 412 `version_stale` in `settled`: the agent would read again, ask again, for ever.
    """
    rig = carddav_update_rig
    card = rig.book.add("Big", f"PHOTO;ENCODING=b;TYPE=JPEG:{'QUJD' * 24_900}", "NOTE:n", version="3.0")
    target = card.href.rpartition("/")[2].removesuffix(".vcf")
    operation = await rig.operation(target=target, arguments={"note": "x" * 1000})
    seen = await rig.send(operation)
    assert (seen.outcome, seen.hint, seen.detail["http_status"]) == (REFUSED, Hint.MALFORMED, 412)
    assert rig.book.read(card.href) == card


async def test_a_book_that_is_not_there_leaves_it_open(carddav_create_rig: CardDavRig) -> None:
    """Radicale says 409, and where nothing can be searched nothing is concluded. `whose` would have stopped this before."""
    rig = carddav_create_rig
    operation = a_contact_operation("create_contact", rig.a_target(), "absent", account="crm/nothing-here")
    request = rig.provider.build_request(operation, {"version": "absent"})
    credential = Credential("crm/nothing-here", False, rig.credential.secret, endpoint=rig.credential.endpoint)
    seen = await rig.provider.send(credential, operation, request, rig.provider.contract, _yes, lambda: None)
    assert (seen.outcome, seen.hint, seen.detail["http_status"]) == (UNKNOWN, Hint.LOST, 409)


ANSWERS: list[tuple[str, bytes, Outcome, Hint]] = [
    ("html 200", b"HTTP/1.0 200 OK\r\nContent-Type: text/html\r\n\r\n<html>Welcome</html>", UNKNOWN, Hint.UNREADABLE),
    ("html 502", b"HTTP/1.0 502 Bad Gateway\r\n\r\n<html>502</html>", UNKNOWN, Hint.LOST),
    ("500", b"HTTP/1.0 500 X\r\nContent-Length: 0\r\n\r\n", UNKNOWN, Hint.LOST),
    ("202", b"HTTP/1.0 202 Accepted\r\nContent-Length: 0\r\n\r\n", UNKNOWN, Hint.UNREADABLE),
    ("302", b"HTTP/1.0 302 X\r\nLocation: /login\r\nContent-Length: 0\r\n\r\n", UNKNOWN, Hint.UNREADABLE),
    ("429", b"HTTP/1.0 429 X\r\nRetry-After: 5\r\nContent-Length: 0\r\n\r\n", UNKNOWN, Hint.UNREADABLE),
    ("cut in its headers", b"HTTP/1.0 20", UNKNOWN, Hint.LOST),
    ("cut in its body", b"HTTP/1.0 204 X\r\nContent-Length: 0", UNKNOWN, Hint.LOST),
    ("garbage", b"\x00\x01\x02 not http\r\n\r\n", UNKNOWN, Hint.LOST),
    ("nothing", b"", UNKNOWN, Hint.LOST),
]


@pytest.mark.parametrize("delivered", [False, True], ids=["not executed", "executed"])
@pytest.mark.parametrize(("name", "reply", "outcome", "hint"), ANSWERS, ids=[row[0] for row in ANSWERS])
async def test_an_answer_of_somebody_between_says_nothing(
    name: str, reply: bytes, outcome: Outcome, hint: Hint, delivered: bool, carddav_update_rig: CardDavRig
) -> None:
    """Whatever the gateway says, the look says what happened. Red: call one of these `refused` or `applied`."""
    rig, operation = carddav_update_rig, await carddav_update_rig.operation()
    await rig.request(operation)
    fault = rig.proxy.arm(ReplaceReply(after=WRITE, answer=reply, deliver=delivered))
    seen = await rig.send(operation)
    fault.wait_fired()
    assert (seen.outcome, seen.hint) == (outcome, hint)
    await asyncio.to_thread(rig.book.read, rig.href(operation))  # waits for a write that is still going on
    effects = rig.effects(operation)
    assert len(effects) == int(delivered)
    assert [e.receipt for e in (await look(rig, operation)).effects if e.ours] == effects


async def test_a_gateway_that_sends_a_write_twice_hides_nothing(carddav_rig: CardDavRig) -> None:
    """It was executed, and the answer is the 412 of the second time: our marker stands there.

    Red: take the reading after a 412 out of `send`.
    """
    rig, operation = carddav_rig, await carddav_rig.operation()
    await rig.request(operation)
    twice = b"HTTP/1.0 412 Precondition Failed\r\nContent-Length: 0\r\n\r\n"
    rig.proxy.arm(ReplaceReply(after=WRITE, answer=twice))
    seen = await rig.send(operation)
    assert (seen.outcome, seen.receipt) == (APPLIED, rig.effects(operation)[0])
    assert (seen.detail["http_status"], seen.detail["read_again"]) == (412, True)


@pytest.mark.parametrize("executed", [False, True])
async def test_a_refusal_after_which_nothing_can_be_read_is_unknown(executed: bool, carddav_rig: CardDavRig) -> None:
    """Red: take a reading that is not complete for "nothing of ours there" in `settled`."""
    rig, operation = carddav_rig, await carddav_rig.operation()
    await rig.request(operation)
    no = b"HTTP/1.0 412 Precondition Failed\r\nContent-Length: 0\r\n\r\n"
    rig.proxy.arm(ReplaceReply(after=WRITE, answer=no, deliver=executed))
    rig.proxy.arm(CutRequest(after=b"GET /crm/contacts/"))
    seen = await rig.send(operation)
    assert (seen.outcome, seen.hint, seen.detail["read_again"]) == (UNKNOWN, Hint.LOST, False)
    assert len(rig.effects(operation)) == int(executed)


@pytest.mark.parametrize(
    ("number", "hint"), [(413, Hint.MALFORMED), (428, Hint.MALFORMED), (400, Hint.MALFORMED), (423, Hint.BUSINESS_RULE)]
)
async def test_a_plain_no_is_told_by_its_kind(number: int, hint: Hint, carddav_rig: CardDavRig) -> None:
    rig, operation = carddav_rig, await carddav_rig.operation()
    await rig.request(operation)
    reply = f"HTTP/1.0 {number} X\r\nContent-Length: 0\r\n\r\n".encode()
    rig.proxy.arm(ReplaceReply(after=WRITE, answer=reply, deliver=False))
    seen = await rig.send(operation)
    assert (seen.outcome, seen.hint) == (REFUSED, hint) and rig.effects(operation) == []


# What stands on the card ----------------------------------------------------------------------------------------------

RICH = (
    "item1.EMAIL;TYPE=INTERNET,PREF:joerg@example.com",
    "EMAIL;TYPE=INTERNET:old@example.com",
    "item1.X-ABLABEL:_$!<Work>!$_",
    "item2.ADR;TYPE=work:;;Hauptstraße 1\\, Hof;Köln;;50667;Germany",
    "item2.X-ABADR:de",
    f"PHOTO;ENCODING=b;TYPE=JPEG:{'QUJD' * 500}",
    "TEL;TYPE=CELL:+49 171 1",
    "CATEGORIES:friends,work",
    f"NOTE:{'sehr lange Notiz mit Umlauten äöü, '.replace(',', chr(92) + ',') * 20}end",
    "X-SOCIALPROFILE;TYPE=mastodon:https://example.social/@j",
    "X-EFFECT-OPERATION:c4ca4238-a0b9-4382-8dcc-509a6f75849b",
    "BDAY:1980-02-29",
)


@pytest.mark.parametrize("version", ["3.0", "4.0"])
@pytest.mark.parametrize(
    "arguments",
    [
        {"email": "new@example.com"},
        {"phone": "+49 30 7654321"},
        {"note": "short; and, new \\ ok"},
        dict(email="a@b.de", note="n"),
    ],
    ids=lambda a: "+".join(a),
)
async def test_a_change_keeps_everything_else_on_the_card(
    arguments: dict[str, str], version: str, carddav_update_rig: CardDavRig
) -> None:
    """Groups, photos, folded lines, other properties of one kind, other people's markers. Red: see `edited`."""
    rig = carddav_update_rig
    before = rig.book.add("Dr. Jörg Müller, Head; of \\ it", *RICH, version=version)
    operation = await rig.operation(target=before.href.rpartition("/")[2].removesuffix(".vcf"), arguments=arguments)
    assert (await rig.send(operation)).outcome is APPLIED
    after = rig.book.read(before.href)
    assert after is not None
    changed = {"email": "EMAIL", "phone": "TEL", "note": "NOTE"}
    names = {changed[one] for one in arguments}
    kept = [_lines(card.content, without=names | {"X-EFFECT-OPERATION"}) for card in (before, after)]
    assert kept[0] == kept[1]
    assert after.values("X-EFFECT-OPERATION") == [RICH[-2].partition(":")[2], str(operation.operation_id)]
    for argument, value in arguments.items():
        assert value in after.values(changed[argument])
    if "email" in arguments:
        assert after.values("EMAIL") == [arguments["email"], "old@example.com"]
        assert f"item1.EMAIL;TYPE=INTERNET,PREF:{arguments['email']}".encode() in after.content
    (written,) = rig.written(operation)
    assert written.content == after.content


def _lines(content: bytes, without: set[str]) -> list[str]:
    unfolded = content.decode().replace("\r\n ", "").split("\r\n")
    return sorted(
        line for line in unfolded if line.partition(":")[0].partition(";")[0].rpartition(".")[2] not in without
    )


async def test_a_card_with_two_numbers_is_not_guessed_at(carddav_update_rig: CardDavRig) -> None:
    rig = carddav_update_rig
    card = rig.book.add("Two", "TEL;TYPE=work:1", "TEL;TYPE=cell:2", version="3.0")
    target = card.href.rpartition("/")[2].removesuffix(".vcf")
    read = await rig.provider.preflight(rig.credential, target, {"phone": "+49 30 7"}, "")
    assert (read.complete, read.unfit, read.unfit_field) == (True, "property_unclear", "phone")
    missing = await rig.provider.preflight(rig.credential, "nobody-here", {"phone": "+49 30 7"}, "")
    assert (missing.complete, missing.unfit) == (True, "contact_missing")


def _visible(text: str) -> bool:
    try:
        check_text(text, "x", 200)
    except Refused:
        return False
    return text == text.strip() and not set(text) & {"\ufffe", "\uffff"}


VISIBLE = st.text(
    alphabet=st.characters(exclude_categories=["Cs", "Cc", "Cf", "Zl", "Zp"])
    | st.sampled_from(list(",;\\:\"'nN=äß€🎉ﬁ\u00a0 .")),
    min_size=1,
    max_size=90,
).filter(_visible)


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(name=VISIBLE, note=VISIBLE)
async def test_any_visible_text_arrives_as_it_is(name: str, note: str, carddav_create_rig: CardDavRig) -> None:
    """Through our escaping, Radicale's parser and its own serializer, and read back by the clerk's client and by ours."""
    rig = carddav_create_rig
    arguments = {"full_name": name, "note": note}
    rig.provider.check_arguments(arguments)
    operation = await rig.operation(arguments=arguments)
    assert (await rig.send(operation)).outcome is APPLIED
    card = rig.book.read(rig.href(operation))
    assert card is not None and (card.values("FN"), card.values("NOTE")) == ([name], [note])
    assert sorted(line.partition(b":")[0].decode() for line in _unfolded(card.content)) == sorted(
        ["BEGIN", "VERSION", "UID", "FN", "N", "NOTE", "X-EFFECT-OPERATION", "END"]
    )
    (effect,) = (await look(rig, operation)).effects
    assert effect.ours and effect.summary["says_what_was_asked"] is True


def _unfolded(content: bytes) -> list[bytes]:
    return content.replace(b"\r\n ", b"").strip(b"\r\n").split(b"\r\n")


async def test_what_the_clerk_did_is_never_called_ours(carddav_create_rig: CardDavRig) -> None:
    """The rig's own judge: a card that the clerk made with our marker is no effect of our login."""
    rig, operation = carddav_create_rig, await carddav_create_rig.operation(arguments=NEW)
    forged = f"BEGIN:VCARD\r\nVERSION:3.0\r\nUID:f-{operation.target}\r\nFN:F\r\nX-EFFECT-OPERATION:{operation.operation_id}\r\n"
    rig.book.write(rig.href(operation), f"{forged}END:VCARD\r\n".encode())
    assert rig.effects(operation) == []
    assert [one.who for one in rig.book.written(rig.href(operation))] == [CLERK.user]
