"""Draft invoices against a real Tryton: what is sent, lost, held back, refused and found. The ERP's books are the judge."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import httpx
import pytest

from devstack.faults import BlackHole, CutReply, Fault, HoldRequest, ReplaceReply
from devstack.tryton import names
from ledger.model import Hint, Operation, Outcome, Standing
from providers import tryton_rpc
from providers.port import Classified, Look
from providers.tryton_invoices import CONTRACT, TrytonInvoices
from providers.tryton_rpc import Kind, Logins, TrytonSession, context_of
from tests.providers.raw_tryton_rpc import error, http
from tests.providers.rigs_tryton_invoices import CREATE, SURVEY, WIDGETS, TrytonInvoicesRig, arguments_of

# Where nobody has run `python -m devstack.tryton`, the first fixture makes the database.
pytestmark = [pytest.mark.asyncio, pytest.mark.timeout(900)]

Rig = TrytonInvoicesRig


@pytest.fixture
def rig(tryton_invoices_rig: Rig) -> Rig:
    return tryton_invoices_rig


async def look(rig: Rig, operation: Operation) -> Look:
    return await rig.provider.look(rig.credential, operation, datetime.now(UTC) - timedelta(minutes=5))


def ours(seen: Look) -> list[str]:
    assert seen.complete
    return [effect.receipt for effect in seen.effects if effect.ours]


def said(seen: Classified) -> tuple[Outcome, Hint]:
    return seen.outcome, seen.hint


async def test_a_plain_send_drafts_exactly_what_was_asked(rig: Rig) -> None:
    operation = rig.operation()
    before = rig.arrivals()
    seen = await rig.send(operation)
    [invoice] = rig.books(operation)
    assert said(seen) == (Outcome.APPLIED, Hint.NONE) and seen.standing is Standing.GOOD
    assert seen.receipt == f"account.invoice,{invoice.id}" and seen.detail["read_back"]
    assert (invoice.state, invoice.number, invoice.party) == ("draft", None, operation.target)
    assert (invoice.company, invoice.created_by) == (names.ACME, names.SERVICE.name)
    # What the form proposes was sent: taxes of the products, so that the sum with tax is right as well.
    assert (invoice.untaxed, invoice.tax, invoice.total) == (Decimal("217.50"), Decimal("7.50"), Decimal("225.00"))
    assert [(line.product, line.quantity, line.unit_price) for line in invoice.lines] == [
        ("WIDGET", 3.0, Decimal("12.5000")),
        ("SURVEY", 1.0, Decimal("180.0000")),
    ]
    assert ours(await look(rig, operation)) == [seen.receipt] and rig.arrivals() == before + 1
    again = await rig.provider.read_receipt(rig.credential, operation, seen.receipt)
    assert again is not None and again.ours and again.summary["amount"] == 21_750


async def test_ten_at_once_are_ten_invoices(rig: Rig) -> None:
    operations = [rig.operation(target=names.CUSTOMER_HARBOUR) for _ in range(10)]
    contract = rig.brief_contract(60)
    seen = await asyncio.gather(*(rig.send(operation, contract=contract) for operation in operations))
    for operation, one in zip(operations, seen, strict=True):
        assert one.outcome is Outcome.APPLIED and rig.effects(operation) == [one.receipt]


async def test_an_answer_that_is_lost_is_found_by_a_look(rig: Rig) -> None:
    operation = rig.operation()
    with rig.cut("after"):
        assert said(await rig.send(operation)) == (Outcome.UNKNOWN, Hint.LOST)
    assert ours(await look(rig, operation)) == await rig.committed(operation)


async def test_a_request_that_is_lost_leaves_nothing(rig: Rig) -> None:
    operation = rig.operation()
    with rig.cut("before"):
        assert said(await rig.send(operation)) == (Outcome.UNKNOWN, Hint.LOST)
    assert ours(await look(rig, operation)) == [] == rig.effects(operation)


HTML = http(200, b"<html><body>maintenance</body></html>", "text/html")
REFUSAL = error("UserError", ["Not today.", "", None])
# What happens to the create, what it leaves in the books, and what the adapter must say.
FAULTS: list[tuple[str, Callable[[], Fault], int, Outcome, Hint]] = [
    ("black hole", lambda: BlackHole(), 0, Outcome.UNKNOWN, Hint.LOST),
    ("cut in the answer", lambda: CutReply(after=CREATE, passing=40), 1, Outcome.UNKNOWN, Hint.LOST),
    ("ended in the answer", lambda: CutReply(after=CREATE, passing=150, reset=False), 1, Outcome.UNKNOWN, Hint.LOST),
    ("html after", lambda: ReplaceReply(after=CREATE, answer=HTML), 1, Outcome.UNKNOWN, Hint.UNREADABLE),
    ("html before", lambda: ReplaceReply(after=CREATE, answer=HTML, deliver=False), 0, Outcome.UNKNOWN, Hint.UNREADABLE),
    ("502 after", lambda: ReplaceReply(after=CREATE, answer=http(502, b"")), 1, Outcome.UNKNOWN, Hint.LOST),
    ("empty after", lambda: ReplaceReply(after=CREATE, answer=http(200, b"")), 1, Outcome.UNKNOWN, Hint.UNREADABLE),
    # As a server without a queue worker may answer: the commit stands, and a task after it raised.
    ("refused after the commit", lambda: ReplaceReply(after=CREATE, answer=REFUSAL), 1, Outcome.UNKNOWN, Hint.MISMATCH),
    ("refused", lambda: ReplaceReply(after=CREATE, answer=REFUSAL, deliver=False), 0, Outcome.REFUSED,
     Hint.BUSINESS_RULE),
    ("another's id", lambda: ReplaceReply(after=CREATE, answer=http(200, b'{"id": 1, "result": [1]}')), 1,
     Outcome.UNKNOWN, Hint.MISMATCH),
    ("an id of nothing", lambda: ReplaceReply(after=CREATE, answer=http(200, b'{"id": 1, "result": [1]}'),
                                              deliver=False), 0, Outcome.UNKNOWN, Hint.MISMATCH),
]  # fmt: skip


@pytest.mark.parametrize(("name", "fault", "effects", "outcome", "hint"), FAULTS, ids=[row[0] for row in FAULTS])
async def test_every_fault_is_judged_as_the_books_do(
    rig: Rig, name: str, fault: Callable[[], Fault], effects: int, outcome: Outcome, hint: Hint
) -> None:
    """Call a timeout or HTML `refused`, or believe an id or a refusal without reading, to see one of these red."""
    operation = rig.operation()
    rig.requests[operation.operation_id] = await rig.request(operation)
    armed = rig.proxy.arm(fault())
    seen = await rig.send(operation, contract=rig.brief_contract(3 if name == "black hole" else 20))
    rig.proxy.disarm(armed)
    armed.wait_fired(1)
    found = await rig.committed(operation) if effects else rig.effects(operation)
    assert said(seen) == (outcome, hint) and len(found) == effects
    assert seen.receipt is None or [seen.receipt] == found
    assert ours(await look(rig, operation)) == found


async def test_a_commit_that_a_lock_holds_back_is_absent_first_and_there_later(rig: Rig) -> None:
    """The lines' table is locked while the client gives up; absence at the first look is no proof.

    Read "not found" after a timeout as "did not happen" anywhere, and this invoice is drafted a second time.
    """
    operation = rig.operation()
    request = await rig.request(operation)
    rig.requests[operation.operation_id] = request
    with rig.world.hold("account_invoice_line") as held:
        sending = asyncio.create_task(rig.send(operation, contract=rig.brief_contract()))
        await asyncio.to_thread(held.await_waiter)
        assert said(await sending) == (Outcome.UNKNOWN, Hint.LOST)
        first = await look(rig, operation)
        assert first.complete and first.effects == () and rig.effects(operation) == []
        held.release()
        [receipt] = await rig.committed(operation)
    assert ours(await look(rig, operation)) == [receipt]


async def test_a_request_that_arrives_after_the_client_has_gone_is_executed(rig: Rig) -> None:
    """A proxy may deliver late, so a look must come back to it. All of the request is held: half of it would stall Tryton.

    (On Python 3.11 it reads every body under one lock.)
    """
    operation = rig.operation()
    rig.requests[operation.operation_id] = await rig.request(operation)
    held = rig.proxy.arm(HoldRequest())
    assert said(await rig.send(operation, contract=rig.brief_contract(3))) == (Outcome.UNKNOWN, Hint.LOST)
    assert ours(await look(rig, operation)) == []
    await asyncio.to_thread(held.release)
    assert ours(await look(rig, operation)) == rig.effects(operation) != []


async def test_a_no_of_the_guard_arrives_nowhere(rig: Rig) -> None:
    operation = rig.operation()
    before = rig.arrivals()
    assert said(await rig.send(operation, allowed=False)) == (Outcome.NO_EFFECT, Hint.NOT_SENT)
    assert rig.arrivals() == before and rig.effects(operation) == []


async def test_a_server_that_is_gone_was_not_reached_and_its_sessions_survive(rig: Rig) -> None:
    """Connection refused is proof that nothing was sent; a look that cannot be made is not complete."""
    operation = rig.operation()
    rig.requests[operation.operation_id] = await rig.request(operation)
    sessions = _sessions(rig)
    with rig.proxy.down():
        assert said(await rig.send(operation)) == (Outcome.NO_EFFECT, Hint.NOT_SENT)
        seen = await rig.provider.preflight(rig.credential, operation.target, operation.arguments, "m")
        assert not seen.complete and seen.unfit == ""
        assert not (await look(rig, operation)).complete
        assert await rig.provider.whose(rig.credential) is None
        assert await rig.provider.read_receipt(rig.credential, operation, "account.invoice,1") is None
    rig.server.kill()
    try:
        # The proxy still accepts, and hangs up before or after our first byte.
        assert (await rig.send(operation)).outcome in (Outcome.NO_EFFECT, Outcome.UNKNOWN)
    finally:
        rig.server.restart()
    assert rig.effects(operation) == []
    assert (await rig.send(operation)).outcome is Outcome.APPLIED
    assert _sessions(rig) == sessions


async def test_a_revoked_session_executes_nothing_and_the_next_send_logs_in(rig: Rig) -> None:
    """A password set anew ends every session of its user: the write's 401 is proof. Red: call a 401 `unknown`."""
    operation = rig.operation()
    rig.requests[operation.operation_id] = await rig.request(operation)
    rig.world.admin.write("res.user", [_user(rig)], {"password": names.SERVICE.password})
    assert said(await rig.send(operation)) == (Outcome.NO_EFFECT, Hint.NONE)
    assert rig.effects(operation) == []
    assert (await rig.send(operation)).outcome is Outcome.APPLIED
    assert len(rig.effects(operation)) == 1


async def test_a_wrong_password_sends_nothing(rig: Rig) -> None:
    operation = rig.operation()
    request = await rig.request(operation)
    wrong = replace(rig.credential, secret=f"{names.SERVICE.name}:not-the-password")
    before = rig.arrivals()

    async def never() -> bool:
        raise AssertionError("the guard was asked")

    seen = await rig.provider.send(wrong, operation, request, CONTRACT, never, lambda: None)
    assert said(seen) == (Outcome.NO_EFFECT, Hint.NOT_SENT) and "401" in seen.detail["message"]
    assert "not-the-password" not in repr(seen)
    assert rig.arrivals() == before and rig.effects(operation) == []
    assert await rig.provider.whose(wrong) is None


async def test_whose_a_login_is_says_tryton(rig: Rig) -> None:
    """Red: echo the credential's account in `whose`, or name its company in the context, and orders are billed by another.

    The last is a login that may work for both companies: its account is the one that it works for now.
    """
    assert await rig.provider.whose(rig.credential) == rig.credential
    companies = rig.world.companies
    globex = replace(rig.credential, account=f"erp/{companies[names.GLOBEX]}")
    owner = await rig.provider.whose(globex)
    assert owner is not None and owner.account == rig.account != globex.account
    rig.world.admin.write("res.user", [_user(rig)], {"companies": [["add", [companies[names.GLOBEX]]]]})
    try:
        owner = await rig.provider.whose(globex)
    finally:
        rig.world.admin.write("res.user", [_user(rig)], {"companies": [["remove", [companies[names.GLOBEX]]]]})
    assert owner is not None and owner.account == rig.account


async def test_another_company_takes_nothing_of_ours(rig: Rig) -> None:
    """Were the account not asked for before, Tryton's own record rules still refuse, and say so."""
    operation = rig.operation()
    request = await rig.request(operation)
    account = f"erp/{rig.world.companies[names.GLOBEX]}"
    other = replace(operation, account=account)
    company = rig.world.companies[names.GLOBEX]
    [[[row], _]] = request.parameters.values()
    lines = [line | {"company": company} for line in row["lines"][0][1]]
    params = [[row | {"company": company, "lines": [["create", lines]]}], context_of(company)]
    moved = replace(request, account=account, parameters={"params": params})

    async def yes() -> bool:
        return True

    credential = replace(rig.credential, account=account)
    seen = await rig.provider.send(credential, other, moved, CONTRACT, yes, lambda: None)
    assert seen.outcome is Outcome.REFUSED and seen.hint in (Hint.NOT_PERMITTED, Hint.BUSINESS_RULE)
    assert rig.effects(operation) == []


@pytest.mark.parametrize(
    ("change", "words"),
    [({"invoice_address": 3}, "domain"), ({"account": 99_999}, "exist"), ({"payment_term": 99_999}, "exist")],
    ids=["address of another", "no such account", "no such term"],
)
async def test_what_tryton_refuses_is_refused_in_its_words(rig: Rig, change: dict[str, int], words: str) -> None:
    operation = rig.operation()
    read = await rig.provider.preflight(rig.credential, operation.target, operation.arguments, "")
    rig.requests[operation.operation_id] = rig.provider.build_request(operation, {**read.basis, **change})
    seen = await rig.send(operation)
    assert said(seen) == (Outcome.REFUSED, Hint.BUSINESS_RULE) and words in seen.detail["message"]
    assert rig.effects(operation) == []


async def test_there_is_no_key_a_second_send_is_a_second_invoice(rig: Rig) -> None:
    """Measured for the contract's `key`: recovery must never repeat. A look tells both, and that is for a person."""
    operation = rig.operation()
    await rig.send(operation)
    second = await rig.send(operation)
    assert said(second) == (Outcome.UNKNOWN, Hint.MISMATCH)
    assert len(rig.effects(operation)) == 2 == len(ours(await look(rig, operation)))


async def test_what_people_do_to_a_draft_is_seen(rig: Rig) -> None:
    """Measured for `marker_editable` and `effect_can_change`: draft, edited marker, edited line, cancelled, deleted."""
    world = rig.world
    operation = rig.operation()
    receipt = (await rig.send(operation)).receipt
    assert receipt is not None
    invoice = int(receipt.partition(",")[2])

    async def now() -> list[tuple[bool, bool, Standing]]:
        seen = await look(rig, operation)
        assert seen.complete
        return [(effect.marked, effect.matching, effect.standing) for effect in seen.effects]

    world.edit_record("account.invoice", invoice, reference="a person's own words")
    assert await now() == [(False, True, Standing.GOOD)]
    world.edit_record("account.invoice", invoice, reference=str(operation.operation_id), description="edited")
    assert await now() == [(True, False, Standing.GOOD)]
    description = f"Order {operation.arguments['order']}"
    world.edit_record("account.invoice", invoice, description=description)
    [line, _] = world.buyer.read("account.invoice", [invoice], ["lines"])[0]["lines"]
    world.edit_record("account.invoice.line", line, quantity=4.0)
    assert await now() == [(True, False, Standing.GOOD)]
    world.edit_record("account.invoice.line", line, quantity=3.0)
    world.buyer.press("account.invoice", "cancel", [invoice])
    assert await now() == [(True, True, Standing.VOID)]
    again = await rig.provider.read_receipt(rig.credential, operation, receipt)
    assert again is not None and again.ours and again.standing is Standing.VOID
    world.buyer.call("model.account.invoice.delete", [invoice])
    assert await now() == []
    assert await rig.provider.read_receipt(rig.credential, operation, receipt) is None
    # What RESOLUTION sends people to: Tryton's own log still tells that it was there, and who deleted it.
    assert [(row.user, row.event) for row in world.log("account.invoice", invoice)][-1] == (names.BUYER.name, "delete")


async def test_a_posted_invoice_is_still_the_effect(rig: Rig) -> None:
    operation = rig.operation()
    receipt = (await rig.send(operation)).receipt
    assert receipt is not None
    rig.world.buyer.press("account.invoice", "post", [int(receipt.partition(",")[2])])
    [effect] = (await look(rig, operation)).effects
    assert effect.ours and effect.standing is Standing.GOOD
    assert effect.summary["state"] == "posted" and effect.summary["number"]


async def test_a_receipt_of_something_else_is_not_ours(rig: Rig) -> None:
    first, second = rig.operation(), rig.operation()
    receipt = (await rig.send(first)).receipt
    assert receipt is not None
    seen = await rig.provider.read_receipt(rig.credential, second, receipt)
    assert seen is not None and not seen.marked and not seen.matching
    for nothing in ("account.invoice,999999", "party.party,1", "", "7"):
        assert await rig.provider.read_receipt(rig.credential, first, nothing) is None


async def test_a_look_reads_page_by_page_to_the_end(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two invoices of one order, their lines on several pages. Red: stop after the first page."""
    monkeypatch.setattr(tryton_rpc, "PAGE", 1)
    arguments = arguments_of(WIDGETS, SURVEY)
    target = rig.world.add_customer().code
    operations = [rig.operation(target=target, arguments=arguments) for _ in range(2)]
    receipts = [(await rig.send(operation)).receipt for operation in operations]
    seen = await look(rig, operations[1])
    assert seen.complete and [effect.receipt for effect in seen.effects] == receipts
    assert [(effect.marked, effect.matching) for effect in seen.effects] == [(False, True), (True, True)]


async def test_a_cached_session_makes_looks_cheap(rig: Rig) -> None:
    """One login serves all calls of an adapter; a new one costs Tryton its password hash. Only counted, never timed."""
    provider = TrytonInvoices()
    operation = rig.operation()
    before = rig.proxy.count(b'"method":"common.db.login"')
    began = time.monotonic()
    for _ in range(3):
        await provider.look(rig.credential, operation, datetime.now(UTC))
    assert rig.proxy.count(b'"method":"common.db.login"') == before + 1
    assert time.monotonic() - began < 60


async def test_the_contract_is_about_this_series(rig: Rig) -> None:
    """Another series may answer otherwise: then every `measured_on` of the contract has to be measured again."""
    call = {"id": 1, "method": "common.server.version", "params": []}
    told = httpx.post(f"{rig.server.base_url}/rpc/", json=call).json()
    assert told["result"] == CONTRACT.api_version


CALLS: list[tuple[str, str, list[Any], dict[str, Any], Kind]] = [
    ("value", "model.party.party.search", [[["code", "=", "C-HARBOUR"]], 0, 1, None], {}, Kind.VALUE),
    ("unknown field", "model.party.party.write", [[1], {"frobnicate": 1}], {}, Kind.MALFORMED),
    ("unknown model", "model.party.frob.read", [[1], ["id"]], {}, Kind.MALFORMED),
    ("too few arguments", "model.party.party.write", [[1]], {}, Kind.MALFORMED),
    ("unknown method", "model.party.party.frob", [[1]], {}, Kind.UNAUTHENTICATED),
    ("no such record", "model.party.party.write", [[999_999], {"name": "x"}], {}, Kind.BUSINESS),
    ("wrong type", "model.party.party.create", [[{"name": "x", "lang": 99_999}]], {}, Kind.BUSINESS),
    ("no right", "model.ir.model.log.create", [[{}]], {}, Kind.NOT_PERMITTED),
    ("stale", "model.party.party.write", [[1], {"name": "x"}], {"_timestamp": {"party.party,1": "1.0"}}, Kind.VERSION),
]


@pytest.mark.parametrize(("name", "method", "arguments", "context", "kind"), CALLS, ids=[row[0] for row in CALLS])
async def test_what_a_real_server_answers_has_the_kind_that_was_measured(
    rig: Rig, name: str, method: str, arguments: list[Any], context: dict[str, Any], kind: Kind
) -> None:
    """The words by which kinds are told apart are Tryton's: a new version that says it otherwise turns this red."""
    session = TrytonSession(rig.credential, Logins(), deadline_seconds=20)
    assert (await session.call(method, *arguments, **context)).kind is kind


def _user(rig: Rig) -> int:
    return rig.world.admin.only("res.user", [["login", "=", names.SERVICE.name]])


def _sessions(rig: Rig) -> int:
    """How many sessions our user has at the server."""
    return int(rig.world.admin.read("res.user", [_user(rig)], ["sessions"])[0]["sessions"])
