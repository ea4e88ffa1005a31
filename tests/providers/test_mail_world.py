"""Both mail actions with a real mail server: the mailbox, read by itself, is the judge."""

import asyncio
import email.policy
from dataclasses import replace
from email.message import EmailMessage
from pathlib import Path
from typing import Any

import pytest

from devstack.faults import BlackHole, CutReply, CutRequest, DripReply, HoldReply, HoldRequest, Refuse, ReplaceReply
from ledger import recovery
from ledger.errors import Broken
from ledger.model import Attempt, Hint, Operation, Outcome, Sighting, Standing
from providers.mail import Mail
from providers.mail_archive import MARKER
from providers.mail_wire import Tls, read_place
from tests.providers.rigs_mail import (
    FIELDS,
    MESSAGE_BEGAN,
    MESSAGE_ENDED,
    PROPOSED_AT,
    SINCE,
    MailRig,
    an_order_mail,
    yes,
)

pytestmark = pytest.mark.asyncio


@pytest.fixture(params=["mail_rig", "mail_unarchived_rig"])
def either(request: pytest.FixtureRequest) -> MailRig:
    """Both actions send alike."""
    rig: MailRig = request.getfixturevalue(request.param)
    return rig


def receipt_of(operation: Operation) -> str:
    return f"<{operation.operation_id}@acme.test>"


async def test_a_mail_arrives_once_as_it_was_shown_and_its_look_finds_it(mail_rig: MailRig) -> None:
    """What the approver read is what the recipient gets. Red: render the body with other fields in `message_bytes`."""
    operation = mail_rig.operation(arguments=an_order_mail(fields=FIELDS | {"customer": "Jürgen Müßig-Çelik"}))
    shown = await mail_rig.provider.preflight(mail_rig.credential, operation.target, operation.arguments, "m")
    seen = await mail_rig.send(operation)
    assert (seen.outcome, seen.receipt, seen.standing) == (Outcome.APPLIED, receipt_of(operation), Standing.GOOD)
    (mail,) = mail_rig.mails(operation)
    assert (mail.sender, mail.recipients) == ("orders@acme.test", (operation.arguments["to"],))
    assert mail.text.splitlines() == shown.facts["text"] and "Jürgen Müßig-Çelik" in mail.text
    assert mail.header("Subject") == shown.facts["subject"] == "Your order SO-4711 is confirmed"
    assert (mail.header("To"), mail.header("From")) == (shown.facts["to"], shown.facts["from"])
    assert mail.header(MARKER) == str(operation.operation_id)
    assert mail.header("Date") == "Mon, 30 Nov 2026 09:15:27 +0000" and PROPOSED_AT.year == 2026
    look = await mail_rig.provider.look(mail_rig.credential, operation, SINCE)
    assert look.complete and [(e.receipt, e.ours) for e in look.effects] == [(seen.receipt, True)]
    told = str(look.effects[0].summary)
    assert operation.arguments["to"] not in told and "Jürgen" not in told
    assert await mail_rig.provider.read_receipt(mail_rig.credential, operation, str(seen.receipt)) == look.effects[0]


async def test_a_lost_answer_is_found_in_the_archive(mail_rig: MailRig) -> None:
    """Red: call a lost answer `refused` in `classify`; or search without a fresh session."""
    operation = mail_rig.operation()
    with mail_rig.cut("after"):
        seen = await mail_rig.send(operation)
    assert (seen.outcome, seen.hint, seen.receipt) == (Outcome.UNKNOWN, Hint.LOST, None)
    assert len(mail_rig.effects(operation)) == 1
    look = await mail_rig.provider.look(mail_rig.credential, operation, SINCE)
    assert look.complete and [(e.receipt, e.ours) for e in look.effects] == [(receipt_of(operation), True)]


async def test_a_mail_cut_off_before_its_final_dot_is_unknown_and_is_not_there(either: MailRig) -> None:
    """Nobody can tell what the kernel had sent. Red: call an end during the message `no_effect`."""
    operation = either.operation()
    with either.cut("before"):
        seen = await either.send(operation)
    assert (seen.outcome, seen.hint) == (Outcome.UNKNOWN, Hint.LOST)
    assert either.effects(operation) == []
    if either.provider.archived:
        look = await either.provider.look(either.credential, operation, SINCE)
        assert look.complete and look.effects == ()


@pytest.mark.parametrize("said", [b"MAIL FROM", b"RCPT TO", b"DATA\r\n"])
async def test_an_end_before_the_message_is_proved_without_effect(either: MailRig, said: bytes) -> None:
    """Red: set `_sent` before the guard."""
    operation = either.operation()
    fault = either.smtp.arm(CutRequest(after=said))
    seen = await either.send(operation)
    fault.wait_fired()
    assert (seen.outcome, seen.hint, seen.detail["sent"]) == (Outcome.NO_EFFECT, Hint.NOT_SENT, False)
    assert either.effects(operation) == []


async def test_a_no_of_the_guard_leaves_the_mailbox_empty(either: MailRig) -> None:
    """The server had said 354 and waits: what it gets is an end. Red: drop the answer of `_ask_guard`."""
    operation = either.operation()
    talks = len(either.smtp.conversations)
    seen = await either.send(operation, allowed=False)
    assert (seen.outcome, seen.hint, seen.detail["ended"]) == (Outcome.NO_EFFECT, Hint.NOT_SENT, "guard")
    (talk,) = either.smtp.conversations[talks:]
    assert bytes(talk.sent).endswith(b"DATA\r\n") and b"354" in talk.returned
    assert either.effects(operation) == []
    again = await either.send(operation)
    assert again.outcome is Outcome.APPLIED and len(either.effects(operation)) == 1


async def test_a_recipient_that_the_server_refuses_gets_nothing(either: MailRig) -> None:
    operation = either.operation()
    answer = f"550 5.1.1 <{operation.arguments['to']}>: no such user\r\n".encode()
    fault = either.smtp.arm(ReplaceReply(after=b"RCPT TO", answer=answer))
    seen = await either.send(operation)
    fault.wait_fired()
    assert (seen.outcome, seen.hint) == (Outcome.REFUSED, Hint.BUSINESS_RULE)
    assert seen.detail["code"] == 550 and operation.arguments["to"] not in str(seen.detail)
    assert either.effects(operation) == []


async def test_an_answer_that_comes_after_the_deadline_is_lost_and_found(mail_rig: MailRig) -> None:
    operation = mail_rig.operation()
    fault = mail_rig.smtp.arm(HoldReply(after=MESSAGE_ENDED))
    seen = await mail_rig.send(operation, contract=mail_rig.brief_contract())
    fault.release()
    assert (seen.outcome, seen.hint, seen.detail["ended"]) == (Outcome.UNKNOWN, Hint.LOST, "deadline")
    assert len(mail_rig.effects(operation)) == 1


async def test_a_mail_that_is_still_on_its_way_may_land_after_a_look(mail_rig: MailRig) -> None:
    """Absence now is not absence for ever: the network delivers late, and only quiet_at makes a look count."""
    operation = mail_rig.operation()
    fault = mail_rig.smtp.arm(HoldRequest(after=MESSAGE_BEGAN))
    seen = await mail_rig.send(operation, contract=mail_rig.brief_contract())
    assert (seen.outcome, seen.hint) == (Outcome.UNKNOWN, Hint.LOST)
    before = await mail_rig.provider.look(mail_rig.credential, operation, SINCE)
    await asyncio.to_thread(fault.release)
    after = await mail_rig.provider.look(mail_rig.credential, operation, SINCE)
    assert (before.complete, before.effects) == (True, ()) and [e.ours for e in after.effects] == [True]
    contract = mail_rig.provider.contract
    attempt = Attempt(1, PROPOSED_AT, PROPOSED_AT, seen.outcome, seen.hint, answered_at=PROPOSED_AT)
    quiet = recovery.quiet_at(contract, [attempt])
    assert quiet is not None and (quiet - PROPOSED_AT).total_seconds() >= 600


@pytest.mark.parametrize("after", [b"", b"EHLO", b"RCPT TO", MESSAGE_BEGAN], ids=["all", "ehlo", "rcpt", "message"])
async def test_silence_ends_with_the_deadline(either: MailRig, after: bytes) -> None:
    operation = either.operation()
    fault = either.smtp.arm(BlackHole(after=after))
    seen = await either.send(operation, contract=either.brief_contract(0.5))
    fault.wait_fired()
    unknown = after == MESSAGE_BEGAN
    wanted = (Outcome.UNKNOWN, Hint.LOST) if unknown else (Outcome.NO_EFFECT, Hint.NOT_SENT)
    assert (seen.outcome, seen.hint, seen.detail["ended"]) == (*wanted, "deadline")
    assert either.effects(operation) == []


async def test_answers_that_drip_are_read_whole(either: MailRig) -> None:
    operation = either.operation()
    either.smtp.arm(DripReply(pause=0.001))
    seen = await either.send(operation)
    assert seen.outcome is Outcome.APPLIED and len(either.effects(operation)) == 1


async def test_an_answer_cut_in_the_middle_is_no_answer(mail_rig: MailRig) -> None:
    """ "250 O" without its end proves nothing, though the mail is there."""
    operation = mail_rig.operation()
    mail_rig.smtp.arm(CutReply(after=MESSAGE_ENDED, passing=5))
    seen = await mail_rig.send(operation)
    assert (seen.outcome, seen.hint) == (Outcome.UNKNOWN, Hint.LOST)
    assert len(mail_rig.effects(operation)) == 1


async def test_a_receiver_that_is_gone_was_not_reached(either: MailRig) -> None:
    """Connection refused is proof that nothing was sent; what cannot be read is not complete."""
    operation, provider = either.operation(), either.provider
    either.break_receiver()
    seen = await either.send(operation)
    look = await provider.look(either.credential, operation, SINCE)
    read = await provider.preflight(either.credential, operation.target, operation.arguments, "m")
    assert await provider.whose(either.credential) is None
    assert await provider.read_receipt(either.credential, operation, receipt_of(operation)) is None
    either.mend()
    assert (seen.outcome, seen.hint) == (Outcome.NO_EFFECT, Hint.NOT_SENT)
    assert not look.complete and not read.complete and read.unfit == ""
    assert either.effects(operation) == []


async def test_a_repeat_by_mistake_makes_two_effects_that_recovery_sees(mail_rig: MailRig) -> None:
    """No server drops the second of two equal mails: they have two receipts, and a person is called.

    Red: give every mail of our Message-ID that id as receipt; D1 would then call two mails one.
    """
    operation = mail_rig.operation()
    assert [(await mail_rig.send(operation)).outcome for _ in range(2)] == [Outcome.APPLIED] * 2
    assert len(mail_rig.effects(operation)) == 2
    look = await mail_rig.provider.look(mail_rig.credential, operation, SINCE)
    first, second = (effect.receipt for effect in look.effects)
    assert first == receipt_of(operation) and second.startswith(f"{first}#") and len(second) <= 200
    decision = decide(mail_rig, look.effects)
    assert (decision.row, decision.step) == ("D2", "review")
    again = await mail_rig.provider.read_receipt(mail_rig.credential, operation, second)
    assert again is not None and again.receipt == second


def decide(rig: MailRig, effects: Any) -> Any:
    claimed = PROPOSED_AT
    attempt = Attempt(1, claimed, claimed, Outcome.UNKNOWN, Hint.LOST, answered_at=claimed)
    sighting = Sighting(claimed, claimed, True, effects)
    return recovery.decide(rig.provider.contract, [attempt], [sighting], claimed, recovery.MaySend.YES, claimed)


def forge(operation: Operation, **changes: str) -> EmailMessage:
    """What somebody who may write to the archive can lay into it."""
    forged = EmailMessage(policy=email.policy.SMTP)
    told = {
        "From": "orders@acme.test",
        "To": operation.arguments["to"],
        "Subject": "Your order SO-4711 is confirmed",
        "Message-ID": receipt_of(operation),
        MARKER: str(operation.operation_id),
    }
    for name, value in (told | changes).items():
        if name != "text" and value:
            forged[name] = value
    forged.set_content(changes.get("text", "You won a prize.\n"))
    return forged


async def test_a_forged_mail_with_our_marker_and_another_text_calls_a_person(mail_rig: MailRig) -> None:
    """Red: leave the text out of what must be equal."""
    operation = mail_rig.operation()
    mail_rig.server.box().append(forge(operation))
    look = await mail_rig.provider.look(mail_rig.credential, operation, SINCE)
    (effect,) = look.effects
    assert (effect.marked, effect.matching) == (True, False)
    assert effect.receipt.startswith(f"{receipt_of(operation)}#")
    assert decide(mail_rig, look.effects).row == "D2"
    seen = await mail_rig.send(operation)
    look = await mail_rig.provider.look(mail_rig.credential, operation, SINCE)
    assert seen.receipt in {e.receipt for e in look.effects if e.ours} and len(look.effects) == 2


@pytest.mark.parametrize(
    "changes",
    [
        {"To": "somebody.else@example.org"},
        {"Cc": "somebody.else@example.org"},
        {"From": "orders@acme.test.example.org"},
        {"Subject": "Your order SO-4712 is confirmed"},
        {MARKER: "8f14e45f-ceea-467f-a0e6-1d1f8b5f1c11"},
    ],
    ids=lambda changes: next(iter(changes)),
)
async def test_a_mail_with_our_id_that_is_not_what_was_asked_for_is_not_ours(
    mail_rig: MailRig, changes: dict[str, str]
) -> None:
    operation = mail_rig.operation()
    shown = await mail_rig.provider.preflight(mail_rig.credential, operation.target, operation.arguments, "m")
    mail_rig.server.box().append(forge(operation, text="\n".join(shown.facts["text"]) + "\n", **changes))
    look = await mail_rig.provider.look(mail_rig.credential, operation, SINCE)
    assert [(e.marked, e.matching) for e in look.effects] == [(True, False)]


async def test_a_perfect_copy_in_the_archive_is_taken_for_ours(mail_rig: MailRig) -> None:
    """What the contract says of `lookup.marker_editable`: who may write to the folder can make us believe."""
    operation = mail_rig.operation()
    shown = await mail_rig.provider.preflight(mail_rig.credential, operation.target, operation.arguments, "m")
    mail_rig.server.box().append(forge(operation, text="\n".join(shown.facts["text"]) + "\n"))
    look = await mail_rig.provider.look(mail_rig.credential, operation, SINCE)
    assert [e.ours for e in look.effects] == [True] and mail_rig.effects(operation) == []


async def test_a_marker_that_is_only_part_of_another_is_not_ours(mail_rig: MailRig) -> None:
    """IMAP searches for parts of words. Red: believe the hits of the search without comparing."""
    operation = mail_rig.operation()
    longer = {"Message-ID": f"<x{operation.operation_id}@acme.test>", MARKER: f"{operation.operation_id}0"}
    mail_rig.server.box().append(forge(operation, **longer))
    look = await mail_rig.provider.look(mail_rig.credential, operation, SINCE)
    assert look.complete and look.effects == () and look.detail["hits"] == 1


async def test_our_mail_without_its_marker_is_a_look_alike(mail_rig: MailRig) -> None:
    """A server that writes Message-IDs anew, or a hand: absence is then not certified over it. Red: drop the third search."""
    operation = mail_rig.operation()
    shown = await mail_rig.provider.preflight(mail_rig.credential, operation.target, operation.arguments, "m")
    stripped = {"Message-ID": f"<{operation.operation_id.hex}@elsewhere.test>", MARKER: ""}
    mail_rig.server.box().append(forge(operation, text="\n".join(shown.facts["text"]) + "\n", **stripped))
    look = await mail_rig.provider.look(mail_rig.credential, operation, SINCE)
    (effect,) = look.effects
    assert effect.look_alike and effect.receipt == stripped["Message-ID"]
    later = await mail_rig.provider.look(mail_rig.credential, operation, SINCE.replace(year=2100))
    assert later.complete and later.effects == ()


async def test_the_marker_alone_is_enough_where_the_message_id_was_written_anew(mail_rig: MailRig) -> None:
    operation = mail_rig.operation()
    shown = await mail_rig.provider.preflight(mail_rig.credential, operation.target, operation.arguments, "m")
    text = "\n".join(shown.facts["text"]) + "\n"
    mail_rig.server.box().append(forge(operation, text=text, **{"Message-ID": "<other@elsewhere.test>"}))
    look = await mail_rig.provider.look(mail_rig.credential, operation, SINCE)
    assert [(e.receipt, e.ours) for e in look.effects] == [(receipt_of(operation), True)]


async def test_a_mail_with_nothing_but_our_marker_is_found(mail_rig: MailRig) -> None:
    """Somebody used our marker for another mail: a person sees it. Red: drop the search for the marker."""
    operation = mail_rig.operation()
    other = {"Message-ID": "<other@elsewhere.test>", "To": "somebody.else@example.org"}
    mail_rig.server.box().append(forge(operation, **other))
    look = await mail_rig.provider.look(mail_rig.credential, operation, SINCE)
    assert look.complete and [(e.marked, e.matching) for e in look.effects] == [(True, False)]


async def test_the_same_text_sent_before_is_seen_before_it_is_sent_again(mail_rig: MailRig) -> None:
    """Another operation's mail is a look-alike with that operation's marker: the core knows whose it is."""
    first = mail_rig.operation()
    await mail_rig.send(first)
    second = mail_rig.operation(arguments=first.arguments)
    read = await mail_rig.provider.preflight(
        mail_rig.credential, second.target, second.arguments, str(second.operation_id)
    )
    assert read.complete and read.unfit == "" and read.version is None
    assert [(e.receipt, e.look_alike) for e in read.effects] == [(receipt_of(first), True)]
    assert read.markers == {receipt_of(first): str(first.operation_id)}


async def test_what_preflight_finds_of_our_own_is_marked(mail_rig: MailRig) -> None:
    """A ledger restored from an old backup sends nothing a second time."""
    operation = mail_rig.operation()
    await mail_rig.send(operation)
    marker = mail_rig.provider.marker_of(operation)
    read = await mail_rig.provider.preflight(mail_rig.credential, operation.target, operation.arguments, marker)
    assert [e.ours for e in read.effects] == [True]


async def test_a_deleted_mail_is_not_seen_any_more(mail_rig: MailRig) -> None:
    """Why the contract calls the marker editable: absence proves nothing."""
    operation = mail_rig.operation()
    await mail_rig.send(operation)
    (mail,) = mail_rig.mails(operation)
    mail_rig.server.box().delete(mail)
    look = await mail_rig.provider.look(mail_rig.credential, operation, SINCE)
    assert look.complete and look.effects == ()


@pytest.mark.parametrize("said", [b"AUTHENTICATE", b"EXAMINE", b"HEADER Message-ID", b"UID FETCH", b"BODY.PEEK[])"])
@pytest.mark.parametrize("fault", [CutReply, CutRequest, BlackHole])
async def test_an_archive_that_goes_away_is_not_read_to_its_end(mail_rig: MailRig, said: bytes, fault: Any) -> None:
    """Red: call a reading complete whatever a search or a fetch says."""
    operation = mail_rig.operation()
    await mail_rig.send(operation)
    armed = mail_rig.imap.arm(fault(after=said))
    adapter = Mail(archived=True, read_deadline_seconds=1.0)
    look = await adapter.look(mail_rig.credential, operation, SINCE)
    armed.wait_fired()
    assert not look.complete and look.effects == () and look.detail["why"]


@pytest.mark.parametrize("said", [b"HEADER Message-ID", b"UID FETCH"])
async def test_an_archive_that_says_no_is_not_read_to_its_end(mail_rig: MailRig, said: bytes) -> None:
    operation = mail_rig.operation()
    await mail_rig.send(operation)
    mail_rig.imap.arm(ReplaceReply(after=said, answer=b"* BYE gone\r\n"))
    adapter = Mail(archived=True, read_deadline_seconds=1.0)
    look = await adapter.look(mail_rig.credential, operation, SINCE)
    assert not look.complete


async def test_threads_of_slow_archives_end(mail_rig: MailRig) -> None:
    """A server that drips satisfies every timeout of the library: its connection is shut from outside."""
    mail_rig.imap.arm(DripReply(pause=0.2))
    adapter = Mail(archived=True, read_deadline_seconds=0.5)
    began = asyncio.get_running_loop().time()
    look = await adapter.look(mail_rig.credential, mail_rig.operation(), SINCE)
    assert (look.complete, look.detail["why"]) == (False, "deadline")
    assert asyncio.get_running_loop().time() - began < 3


async def test_the_owner_is_named_only_if_both_servers_let_the_secret_in(either: MailRig) -> None:
    """Red: name the account without asking. The secret is in no answer, repr or detail."""
    assert await either.provider.whose(either.credential) == either.credential
    wrong = replace(either.credential, secret=f"{either.server.user}:no-such-password")
    assert await either.provider.whose(wrong) is None
    assert "no-such-password" not in repr(wrong)
    either.smtp.arm(ReplaceReply(after=b"MAIL FROM", answer=b"553 5.7.1 not yours\r\n"))
    assert await either.provider.whose(either.credential) is None
    nowhere = replace(either.credential, archive=f"imap://127.0.0.1:{either.imap.port}/Nowhere")
    assert (await either.provider.whose(nowhere) is None) == either.provider.archived
    elsewhere = replace(either.credential, archive="imap://127.0.0.1:1/INBOX")
    assert (await either.provider.whose(elsewhere) is None) == either.provider.archived


async def test_a_wrong_password_sends_nothing_and_can_be_corrected(either: MailRig) -> None:
    operation = either.operation()
    request = either.provider.build_request(operation, {})
    wrong = replace(either.credential, secret=f"{either.server.user}:no-such-password")
    contract = either.provider.contract
    seen = await either.provider.send(wrong, operation, request, contract, yes, lambda: None)
    assert (seen.outcome, seen.hint) == (Outcome.NO_EFFECT, Hint.NOT_SENT)
    assert (seen.detail["phase"], seen.detail["code"]) == ("login", 535)
    assert either.effects(operation) == [] and "no-such-password" not in str(seen)
    assert (await either.send(operation)).outcome is Outcome.APPLIED


async def test_a_binding_that_cannot_be_used_says_why_and_sends_nothing(either: MailRig) -> None:
    """Red: let `way_of` take a plain smtp:// to another machine."""
    operation = either.operation()
    clear = replace(either.credential, endpoint="smtp://mail.example.org:25")
    assert await either.provider.whose(clear) == clear
    read = await either.provider.preflight(clear, operation.target, operation.arguments, "m")
    assert (read.complete, read.unfit, read.unfit_field) == (True, "place_in_the_clear", "endpoint")
    assert "smtp+starttls" in read.facts["unfit"]
    request = either.provider.build_request(operation, {})
    seen = await either.provider.send(clear, operation, request, either.provider.contract, yes, lambda: None)
    assert (seen.outcome, seen.hint, seen.detail["ended"]) == (Outcome.NO_EFFECT, Hint.NOT_SENT, "place_in_the_clear")
    look = await either.provider.look(clear, operation, SINCE)
    assert not look.complete


async def test_an_account_or_request_of_somebody_else_is_broken(either: MailRig) -> None:
    """Red: empty `_check_frozen`."""
    operation, other = either.operation(), either.operation()
    talks = len(either.smtp.conversations)
    request = either.provider.build_request(operation, {})
    foreign = [
        (replace(either.credential, account="sales@acme.test"), operation, request),
        (replace(either.credential, livemode=True), operation, request),
        (either.credential, other, request),
        (either.credential, operation, replace(request, parameters=request.parameters | {"to": "eve@example.org"})),
        (either.credential, operation, replace(request, parameters=request.parameters | {"body_sha256": "0" * 64})),
    ]
    for credential, whose, frozen in foreign:
        with pytest.raises(Broken):
            await either.provider.send(credential, whose, frozen, either.provider.contract, yes, lambda: None)
    assert len(either.smtp.conversations) == talks


async def test_many_mails_at_once_keep_their_own_guards(either: MailRig) -> None:
    operations = [either.operation() for _ in range(8)]
    seen = await asyncio.gather(*(either.send(op, allowed=n % 2 == 0) for n, op in enumerate(operations)))
    for number, (operation, said) in enumerate(zip(operations, seen, strict=True)):
        assert (said.outcome is Outcome.APPLIED) == (number % 2 == 0)
        assert len(either.effects(operation)) == (1 if number % 2 == 0 else 0)


async def test_refused_connections_are_not_sent(either: MailRig) -> None:
    either.smtp.arm(Refuse())
    seen = await either.send(either.operation())
    assert (seen.outcome, seen.hint) == (Outcome.NO_EFFECT, Hint.NOT_SENT)


async def test_without_an_archive_nothing_can_be_looked_up(mail_unarchived_rig: MailRig) -> None:
    rig, operation = mail_unarchived_rig, mail_unarchived_rig.operation()
    with rig.cut("after"):
        seen = await rig.send(operation)
    assert (seen.outcome, seen.hint) == (Outcome.UNKNOWN, Hint.LOST) and len(rig.effects(operation)) == 1
    assert rig.provider.contract.lookup is None
    assert not (await rig.provider.look(rig.credential, operation, SINCE)).complete
    assert await rig.provider.read_receipt(rig.credential, operation, receipt_of(operation)) is None
    assert decide(rig, ()).row == "D10"


async def test_a_server_without_starttls_gets_no_password(mail_rig: MailRig) -> None:
    """Red: go on in the clear where STARTTLS is not offered."""
    operation = mail_rig.operation()
    talks = len(mail_rig.smtp.conversations)
    seen = await mail_rig.send(operation, through=f"smtp+starttls://127.0.0.1:{mail_rig.smtp.port}")
    assert (seen.outcome, seen.hint) == (Outcome.NO_EFFECT, Hint.NOT_SENT)
    (talk,) = mail_rig.smtp.conversations[talks:]
    assert b"AUTH" not in talk.sent


async def test_an_archive_without_tls_gets_no_password_where_tls_is_wanted(mail_rig: MailRig) -> None:
    for scheme, tls in (("imaps", Tls.IMPLICIT), ("imap+starttls", Tls.STARTTLS)):
        talks = len(mail_rig.imap.conversations)
        credential = replace(mail_rig.credential, archive=f"{scheme}://127.0.0.1:{mail_rig.imap.port}/INBOX")
        assert read_place(credential.archive, "imap", "archive").tls is tls
        adapter = Mail(archived=True, read_deadline_seconds=2.0)
        look = await adapter.look(credential, mail_rig.operation(), SINCE)
        assert not look.complete
        sent = b"".join(bytes(talk.sent) for talk in mail_rig.imap.conversations[talks:])
        assert b"AUTHENTICATE" not in sent and b"LOGIN" not in sent


async def test_certificates_that_cannot_be_read_make_a_binding_unfit(
    mail_rig: MailRig, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "none.pem"))
    credential = replace(mail_rig.credential, endpoint="smtps://localhost:1")
    read = await mail_rig.provider.preflight(credential, "C-1", mail_rig.operation().arguments, "m")
    assert (read.unfit, read.unfit_field) == ("certificates_unreadable", "endpoint")


async def test_more_hits_than_can_be_read_are_not_absence(mail_rig: MailRig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Red: read the first MOST_HITS and call it complete."""
    operation = mail_rig.operation()
    await mail_rig.send(operation)
    monkeypatch.setattr("providers.mail_archive.MOST_HITS", 0)
    look = await mail_rig.provider.look(mail_rig.credential, operation, SINCE)
    assert not look.complete and "more than" in look.detail["why"]
