"""`approve`, `decline`, `withdraw`: sign what is shown, hand it over, and tell whether it counts."""

from pathlib import Path

from activities.judgement import approvals
from activities.messages import Answer
from commands import sheets, tell
from commands.exits import Exit, Unsettled
from commands.following import Heard, hear, until
from commands.keys import Signer, signer
from commands.page import Page
from commands.reading import Reader, named, reading
from commands.surroundings import ledger_dsn, settings
from commands.temporal import connected
from commands.voice import Voice
from ledger import policy
from ledger.errors import Refused
from ledger.model import Operation
from ledger.statement import Claims, StatementType, sign
from ledger.states import State
from ledger.store import operations, views

FOLLOW_SECONDS = 5.0


async def on_a_sheet(
    voice: Voice, name: str, who: str, key_file: Path | None, typ: StatementType, reason: str, *, yes: bool
) -> Page:
    """Approve or decline: the update answers, and the ledger says whether the statement was kept."""
    given = settings()
    async with reading(ledger_dsn(given)) as reader:
        async with reader.snapshot() as conn:
            operation = await named(conn, name)
            sheet = await sheets.latest(conn, operation)
        one = await signer(reader, who, key_file)
        voice.show(sheets.sheet_page(sheet))
        claims = Claims.make(
            typ=typ,
            sub=str(operation.operation_id),
            fingerprint=sheet.fingerprint,
            sheet=sheet.digest,
            reason=reason,
            **one.times(longest(one, operation)),
        )
        if not agreed(voice, claims, one, yes=yes):
            return not_signed(operation_id=str(operation.operation_id))
        temporal = await connected(given)
        answer = await temporal.decide(operation, sign(claims, one.key, one.kid, sheet.raw))
        return await _decided(reader, operation, claims, answer)


def longest(one: Signer, operation: Operation) -> int:
    """How long a statement about this operation may live."""
    return one.document.rule_for(operation.tenant, operation.action, operation.currency).statement_lifetime_seconds


def agreed(voice: Voice, claims: Claims, one: Signer, *, yes: bool) -> bool:
    """Say what will be signed, and ask."""
    page = Page()
    page.title(f"To be signed with {one.kid} by {one.owner}")
    for name, value in claims.model_dump(mode="json").items():
        page.fact(f"  {name}", ", ".join(value) if isinstance(value, list) else value)
    voice.show(page)
    return voice.agreed(f"sign as {one.owner}?", yes=yes)


def not_signed(**about: str) -> Page:
    """Nothing was signed and nothing was sent."""
    page = Page({**about, "signed": False}, Exit.REFUSED)
    page.say("Not signed; nothing was sent.")
    return page


async def _decided(reader: Reader, before: Operation, claims: Claims, answer: Answer) -> Page:
    async with reader.snapshot() as conn:
        kept = await views.accepted(conn, claims.jti)
    if not kept:
        if not answer.reason or answer.state == "unrecorded":
            raise Unsettled("handed over, but not recorded yet: sign again later, or watch `effects trail`")
        raise Refused(answer.reason, answer.message or "the ledger refused it: `effects trail`", field=answer.field)
    operation = before
    enough = claims.typ is StatementType.DECLINE
    if not enough:
        async with reader.snapshot() as conn:
            operation = await operations.find(conn, before.operation_id) or before
            given = await approvals(conn, operation)
            _, document = await views.configuration_in_force(conn)
            enough = policy.approvals_stand(document, operation, given) >= (operation.people_needed or 1)
    if enough:
        left = State.AWAITING_APPROVAL
        operation = await until(reader, before.operation_id, lambda o: o.state is not left, FOLLOW_SECONDS)
    page = accepted_page(operation, claims)
    if not enough:
        page.say("More people must sign: `effects show` tells how many.")
    return page


def accepted_page(operation: Operation, claims: Claims) -> Page:
    """It counts; and where the operation stands now."""
    page = Page(tell.document(operation) | {"accepted": True, "jti": claims.jti, "decision": claims.decision})
    page.title(f"{claims.typ} of {claims.iss} accepted")
    page.fact("operation", operation.operation_id)
    page.fact("state", operation.state.value + (f": {operation.reason}" if operation.reason else ""))
    if claims.typ is StatementType.DECLINE and operation.first_claimed_at is not None:
        page.say("It was already sent or settled: nothing can be recalled, and the decline changes nothing.")
    return page


def heard_page(heard: Heard, claims: Claims) -> Page:
    """What the trail told about a statement. Raises what it did not accept."""
    if heard.silent:
        raise Unsettled("Temporal keeps it, but no worker took it yet: it counts as soon as one runs, if still in time")
    if heard.refusal is not None:
        raise heard.refusal
    page = accepted_page(heard.operation, claims)
    page.table(("new in the trail",), [(text,) for text in heard.sentences()])
    page.document["trail"] = heard.sentences()
    return page


async def withdraw(
    voice: Voice, name: str, who: str, key_file: Path | None, reason: str, wait: float, *, yes: bool
) -> Page:
    """Before the first send this ends the operation; later it changes nothing, which is said."""
    given = settings()
    async with reading(ledger_dsn(given)) as reader:
        async with reader.snapshot() as conn:
            operation = await named(conn, name)
        one = await signer(reader, who, key_file)
        claims = Claims.make(
            typ=StatementType.WITHDRAWAL,
            sub=str(operation.operation_id),
            fingerprint=operation.fingerprint.hex(),
            reason=reason,
            **one.times(longest(one, operation)),
        )
        page = Page()
        page.title(tell.headline(operation))
        page.fact("state", operation.state.value)
        voice.show(page)
        if not agreed(voice, claims, one, yes=yes):
            return not_signed(operation_id=str(operation.operation_id))
        temporal = await connected(given)
        envelope = sign(claims, one.key, one.kid)
        await temporal.signal(operation, "withdraw", envelope.model_dump())
        heard = await hear(reader, operation, claims.jti, envelope, wait)
    told = heard_page(heard, claims)
    if heard.operation.state is not State.BLOCKED:
        told.warn("it was already sent or settled: nothing can be recalled, and settling goes on")
    return told
