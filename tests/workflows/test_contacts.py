"""Records of customers, at an address book and at an ERP, through the whole stack; and when a person is waived for one.

The judge is the journal in which the address book itself keeps every content that a card ever had, or the ERP's log.
"""

import asyncio
import secrets
from typing import Any

from activities.messages import Proposal
from devstack.faults import BlackHole, HoldReply, HoldRequest
from devstack.radicale import SERVICE, Card, Written
from ledger.config import Document
from ledger.store import configuration
from tests.conftest import Rig
from tests.recovery.test_receivers_faults import (
    LETTER,
    NEW_DATE,
    Aim,
    F,
    Job,
    a_job,
    approve,
    aside,
    until_states,
    waiting,
    writes,
)

NEW = {"full_name": "Grace Hopper", "email": "grace@example.com"}
CHANGE = {"phone": "+49 30 7654321"}
ENDED = ("succeeded", "rejected", "blocked", "needs_review")
DEADLINE = 5.0  # of one call, seconds


def create(desk: Rig, name: str, **extra: Any) -> Proposal:
    """A new contact under this name."""
    return desk.ask_for("create_contact", name, dict(NEW), **extra)


def update(desk: Rig, card: Card, asked: dict[str, Any] = CHANGE, **extra: Any) -> Proposal:
    """A change of a card that stands."""
    return desk.ask_for("update_contact", named(card), dict(asked), **extra)


def named(card: Card) -> str:
    """What a proposal calls the card."""
    return card.href.rpartition("/")[2].removesuffix(".vcf")


def ours(desk: Rig, href: str) -> list[Written]:
    """What our login wrote there, by the book's own journal."""
    return [written for written in desk.world.book.written(href) if written.who == SERVICE.user]


def a_card(desk: Rig) -> Card:
    """A card of the clerk's, with something on it that is none of our business."""
    return desk.world.book.add(
        "Ada Lovelace", "NOTE:met in London", "EMAIL;TYPE=INTERNET:ada@example.com", version="3.0"
    )


async def waits(desk: Rig, proposal: Proposal) -> str:
    """Propose it; it waits for a person. Its operation id."""
    answer = await desk.propose(proposal)
    assert answer.operation_id, answer
    await desk.until(answer.operation_id, "awaiting_approval")
    return answer.operation_id


async def ended(desk: Rig, operation_id: str) -> tuple[str, str]:
    """How it ended and why."""
    operation = await desk.until(operation_id, *ENDED)
    return operation.state.value, operation.reason


async def under_way(desk: Rig, operation_id: str, href: str, fault: F) -> F:
    """Approve it; returns when its write has met the fault."""
    fault.after = f"PUT {href}".encode()
    desk.world.proxies["carddav"].arm(fault)
    await desk.approve(operation_id)
    await aside(fault.wait_fired)
    return fault


async def test_a_card_is_made_once_and_changed_at_the_version_that_was_approved(desk: Rig) -> None:
    """The one is conditional on nothing standing there, the other on its tag; the rest of a card stays as it was."""
    book, card = desk.world.book, await aside(a_card, desk)
    new = f"{book.path}{secrets.token_hex(8)}.vcf"
    async with desk.worker():
        made = await waits(desk, create(desk, named(Card(new, b"", ""))))
        changed = await waits(desk, update(desk, card))
        assert (await desk.operation(made)).expected_version == "absent"
        assert (await desk.operation(changed)).expected_version == card.etag
        for operation_id, href in ((made, new), (changed, card.href)):
            await desk.approve(operation_id)
            operation = await desk.until(operation_id, *ENDED)
            assert (operation.state, operation.receipt) == ("succeeded", f"{href[1:]}#{operation_id}")
            assert len(ours(desk, href)) == 1
    there, stands = book.read(new), book.read(card.href)
    assert there is not None and stands is not None
    assert (there.values("FN"), there.values("X-EFFECT-OPERATION")) == (["Grace Hopper"], [made])
    assert (stands.values("NOTE"), stands.values("TEL")) == (["met in London"], [CHANGE["phone"]])


async def test_what_cannot_be_is_refused_with_its_field_before_anything_is_recorded(desk: Rig) -> None:
    """For three actions at two receivers. Red: let `_unfit` of either adapter return nothing."""
    erp, card = desk.world.erp, await aside(a_card, desk)
    party, gone = [await aside(erp.add_customer) for _ in range(2)]
    await aside(erp.edit_customer, gone.id, active=False)
    wrong: list[tuple[str, str, dict[str, Any], str, str]] = [
        ("create_contact", named(card), NEW, "target_unfit", "target"),
        ("create_contact", "new", NEW | {"full_name": "Ada\r\nNOTE:x"}, "text_hidden", "full_name"),
        ("create_contact", "../other/new", NEW, "target_malformed", "target"),
        ("create_contact", "new", {"email": "a@b.example"}, "argument_missing", "full_name"),
        ("update_contact", "nobody-has-this-name", CHANGE, "target_unfit", "target"),
        ("update_contact", named(card), {"email": "ada@example.com"}, "target_unfit", "target"),  # it says so already
        ("update_contact", named(card), {"email": "ada"}, "email_malformed", "email"),
        ("update_contact", named(card), {"full_name": "Ada"}, "argument_unknown", "full_name"),
        ("update_customer", "C-NOBODY", {"note": "x"}, "target_unfit", "target"),
        ("update_customer", gone.code, {"note": "x"}, "target_unfit", "target"),
        ("update_customer", party.code, {"email": party.email}, "target_unfit", "email"),
        ("update_customer", party.code, {"phone": "0900 x"}, "phone_malformed", "phone"),
        ("update_customer", party.code, {}, "argument_missing", "email"),
    ]
    async with desk.worker():
        answers = [await desk.propose(desk.ask_for(*case[:3])) for case in wrong]
    assert [(a.state, a.reason, a.field) for a in answers] == [("refused", rule, field) for *_, rule, field in wrong]
    async with desk.ledger.transaction() as conn:
        count = await (await conn.execute("select count(*) as n from operations")).fetchone()
    assert count is not None and count["n"] == 0
    assert ours(desk, card.href) == [] and erp.log("party.party", party.id) == []


async def test_what_a_clerk_did_meanwhile_is_never_overwritten(desk: Rig) -> None:
    """She edits before the approval; she edits, deletes and makes cards while our write is held by the network.

    Red: drop `version_stale` in `judgement._verdict`; send no condition in `http_conditional.condition`.
    """
    book = desk.world.book
    before, edited, deleted = [await aside(a_card, desk) for _ in range(3)]
    new = f"{book.path}{secrets.token_hex(8)}.vcf"
    proposals = [update(desk, card) for card in (before, edited, deleted)] + [create(desk, named(Card(new, b"", "")))]
    hrefs = [before.href, edited.href, deleted.href, new]
    async with desk.worker():
        ids = [await waits(desk, proposal) for proposal in proposals]
        kept = [await aside(book.edit, before.href, "NOTE", "moved to Paris")]
        await desk.approve(ids[0])
        held = [await under_way(desk, ids[at], hrefs[at], HoldRequest()) for at in (1, 2, 3)]
        kept.append(await aside(book.edit, edited.href, "NOTE", "moved to Rome"))
        await aside(book.delete, deleted.href)
        kept.append(await aside(book.write, new, _with_uid_of_its_own(before)))
        for fault in held:
            await aside(fault.release)
        assert await ended(desk, ids[0]) == ("blocked", "version_stale")
        for operation_id in ids[1:]:
            assert await ended(desk, operation_id) == ("rejected", "version_stale")
    assert [book.read(card.href) for card in kept] == kept and book.read(deleted.href) is None
    assert [ours(desk, href) for href in hrefs] == [[], [], [], []]


def _with_uid_of_its_own(card: Card) -> bytes:
    return card.content.replace(card.values("UID")[0].encode(), secrets.token_hex(8).encode())


async def test_an_unchanged_card_is_no_proof_that_nothing_was_done(desk: Rig) -> None:
    """A tag comes back with its content: the clerk undoes our change whose answer was lost, and the same write would apply
    again. A second clerk keeps our marker and changes the rest; a third takes the marker off and leaves the rest; a fourth
    changes a card that our write never reached, and nothing says that it was not ours.

    Red: drop `versions_return` in `recovery._d8_repeat_condition`.
    """
    book = desk.world.book
    undone, kept, stripped, changed = cards = [await aside(a_card, desk) for _ in range(4)]
    async with desk.worker(call_deadline=DEADLINE):
        jobs = [Job(update(desk, card), desk.world.proxies["carddav"], "", lambda _: 0) for card in cards]
        await waiting(desk, *jobs)
        ids = [job.operation_id for job in jobs]
        await under_way(desk, ids[0], undone.href, HoldReply())
        restored = await aside(book.write, undone.href, undone.content)
        assert restored.etag == undone.etag
        await under_way(desk, ids[1], kept.href, HoldReply())
        await aside(book.edit, kept.href, "TEL", "+1 1")
        await under_way(desk, ids[2], stripped.href, HoldReply())
        theirs = await aside(book.edit, stripped.href, "X-EFFECT-OPERATION", "")
        assert theirs.values("TEL") == [CHANGE["phone"]]
        await under_way(desk, ids[3], changed.href, BlackHole())
        await aside(book.edit, changed.href, "NOTE", "moved to Oslo")
        await until_states(desk, jobs, ["needs_review", "succeeded", "needs_review", "needs_review"])
    assert [len(ours(desk, card.href)) for card in cards] == [1, 1, 1, 0]
    assert book.read(undone.href) == restored


async def test_a_customer_at_the_erp_is_changed_once_and_only_at_the_version_that_was_approved(desk: Rig) -> None:
    """An address changed and a first number added; a colleague who renames the customer meanwhile; one who overwrites ours.

    Red: leave `_timestamp` out in `tryton_versions.freeze` and `check_frozen`; see no log in `look_of`.
    """
    erp, aim = desk.world.erp, desk.world.proxies["tryton"].arm(Aim())
    plain, renamed, overwritten = customers = [await aside(erp.add_customer) for _ in range(3)]
    asked = {"email": "office@customer.example", "phone": "+32 2 555 12 12"}
    async with desk.worker(call_deadline=DEADLINE):
        ids = [await waits(desk, desk.ask_for("update_customer", one.code, asked)) for one in customers]
        await desk.approve(ids[0])
        held = aim.at(f"[effect {ids[1]}]".encode(), HoldRequest())
        await desk.approve(ids[1])
        await aside(held.wait_fired)
        await aside(erp.edit_customer, renamed.id, name="Renamed & Sons")
        await aside(held.release)
        lost = aim.at(f"[effect {ids[2]}]".encode(), HoldReply())
        await desk.approve(ids[2])
        await aside(lost.wait_fired)
        contacts = (await aside(erp.customer, overwritten.id)).contacts
        for text, contact in contacts.items():
            theirs = {asked["email"]: "front@customer.example"}.get(text, "+32 2 555 99 99")
            await aside(erp.edit_record, "party.contact_mechanism", contact, value=theirs, comment="by hand")
        assert await ended(desk, ids[0]) == await ended(desk, ids[2]) == ("succeeded", "")
        assert await ended(desk, ids[1]) == ("rejected", "version_stale")
    assert [writes(desk, "party.party", one.id) for one in customers] == [1, 0, 1]
    told = [(now.email, now.phone) for now in (erp.customer(one.id) for one in customers)]
    assert told[0] == (asked["email"], asked["phone"]) and told[1][0] == renamed.email
    assert told[2] == ("front@customer.example", "+32 2 555 99 99")


async def test_of_six_changes_of_one_version_the_receiver_takes_one(desk: Rig) -> None:
    """Six operations say different things about one card; all six writes wait in the network and are let go together.

    So do six creations under one name, of which the ledger lets one through. Red: send no condition in
    `http_conditional.condition`.
    """
    card, name = await aside(a_card, desk), secrets.token_hex(8)
    new = f"{desk.world.book.path}{name}.vcf"
    held = desk.world.proxies["carddav"].arm(HoldRequest(after=f"PUT {card.href}".encode(), times=6))
    async with desk.worker():
        writers = [await waits(desk, update(desk, card, {"phone": f"+49 30 765432{n}"})) for n in range(6)]
        makers = [await waits(desk, create(desk, name)) for _ in range(6)]
        assert len({(await desk.operation(one)).expected_version for one in writers}) == 1
        for operation_id in writers:
            await desk.approve(operation_id)
        await aside(held.wait_fired, times=6)
        await aside(held.release)
        await asyncio.gather(*(desk.approve(operation_id) for operation_id in makers))
        told = sorted([await ended(desk, operation_id) for operation_id in writers])
        made = sorted([await ended(desk, operation_id) for operation_id in makers])
    assert told == [("rejected", "version_stale")] * 5 + [("succeeded", "")]
    assert made[-1] == ("succeeded", "") and {state for state, _ in made[:-1]} == {"blocked"}
    assert len(ours(desk, card.href)) == len(ours(desk, new)) == 1


def needing(job: Job) -> list[dict[str, str]]:
    """It waits for this one."""
    return [{"business_key": job.proposal.business_key, "state": "succeeded"}]


async def people_asked(desk: Rig, proposal: Proposal) -> int | None:
    """How many people must approve it, once it was judged."""
    answer = await desk.propose(proposal)
    assert answer.operation_id, answer
    await desk.until(answer.operation_id, "awaiting_approval", "approved", "in_flight", "succeeded")
    return (await desk.operation(answer.operation_id)).people_needed


async def test_a_person_is_waived_once_after_an_invoice_that_people_approved_and_that_exists(desk: Rig) -> None:
    """One note and one mail, for the customer of that invoice, where the rule says so. Everything else asks a person.

    Red: leave `n.people_needed`, the state or the target out of `dependencies.approved_before`, or the question whether it
    was used; let `policy.judge` waive wherever the rule has a `waive_after`.
    """
    invoice, later, unseen, contact = [
        await aside(a_job, desk, action) for action in (*["create_draft_invoice"] * 3, "create_contact")
    ]
    customer = invoice.proposal.target
    other, card = await aside(desk.world.erp.add_customer), await aside(a_card, desk)
    order = await aside(desk.world.erp.place_order, lines=1)
    to = f"{secrets.token_hex(8)}@customer.test"

    def note(code: str, text: str = "ordered", **extra: Any) -> Proposal:
        return desk.ask_for("update_customer", code, {"note": text}, **extra)

    def letter(action: str, number: str, **extra: Any) -> Proposal:
        asked = {"to": to, "template": "order-confirmation-1", "fields": LETTER | {"order": number}}
        return desk.ask_for(action, customer, asked, **extra)

    async with desk.worker():
        await waiting(desk, invoice, later, contact)
        assert await people_asked(desk, note(later.proposal.target, depends_on=needing(later))) == 1  # not there yet
        await approve(desk, invoice, contact)
        for job in (invoice, contact):
            await desk.until(job.operation_id, "succeeded")
        after = needing(invoice)
        for proposal in (note(customer, depends_on=after), letter("send_mail", "SO-1", depends_on=after)):
            assert await people_asked(desk, proposal) == 0, proposal.action
            await desk.until((await desk.propose(proposal)).operation_id, "succeeded")
        for proposal in (
            note(customer, "ordered again", depends_on=after),
            letter("send_mail", "SO-2", depends_on=after),
            note(other.code, depends_on=after),
            note(other.code, depends_on=needing(contact)),
            note(other.code),
            letter("send_mail_unarchived", "SO-3", depends_on=after),
            update(desk, card, depends_on=after),
            create(desk, secrets.token_hex(8), depends_on=after),
            desk.ask_for("change_delivery_date", str(order.number), {"delivery_date": NEW_DATE}, depends_on=after),
        ):
            assert await people_asked(desk, proposal) == 1, proposal
        await _waive_invoices(desk)
        assert await people_asked(desk, unseen.proposal) == 0
        await desk.until((await desk.propose(unseen.proposal)).operation_id, "succeeded")
        assert await people_asked(desk, note(unseen.proposal.target, depends_on=needing(unseen))) == 1
    codes = (customer, later.proposal.target, other.code, unseen.proposal.target)
    noted = [writes(desk, "party.party", desk.world.erp.customer_named(code).id) for code in codes]
    assert noted == [1, 0, 0, 0] and len(desk.world.box.to(to)) == 1 and ours(desk, card.href) == []


async def _waive_invoices(desk: Rig) -> None:
    """Small invoices need nobody any more."""
    document = desk.stack.household.document
    bounds = dict.fromkeys(
        ("waive_up_to_minor", "waive_total_per_target_minor", "waive_total_per_actor_day_minor"), 50_00
    )
    rules = [
        {**rule.model_dump(), **(bounds if rule.action == "create_draft_invoice" else {})} for rule in document.rules
    ]
    new = Document.model_validate({**document.model_dump(), "rules": rules})
    async with desk.ledger.transaction() as conn:
        await configuration.apply(conn, new.in_order(), "ops")
