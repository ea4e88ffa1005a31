"""`review`, `resolve`, `look`: settling by people what machines cannot, on all the evidence there is."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from shlex import quote

from activities.ports import contract_of
from activities.resolve import check_absence, check_undeterminable, people_missing, still_counts
from activities.settings import Settings
from activities.settle import Evidence
from commands import facts, tell
from commands.amounts import lasting
from commands.decide import agreed, heard_page, longest, not_signed
from commands.exits import Misuse
from commands.following import hear, until
from commands.keys import signer
from commands.page import Page
from commands.reading import named, reading
from commands.show import operation_page
from commands.surroundings import ledger_dsn, settings
from commands.temporal import connected
from commands.voice import Voice
from ledger.config import Document
from ledger.errors import Refused
from ledger.fingerprint import visible
from ledger.model import Operation, Standing
from ledger.statement import Claims, StatementType, sign
from ledger.states import State
from ledger.store import events, statements, views
from ledger.store.database import Connection
from ledger.store.statements import Statement
from ledger.trail import EVIDENCE, sentence
from providers.registry import default_registry


@dataclass(frozen=True)
class Said:
    """What an operator wants to say: exactly one of the four."""

    happened: str = ""
    did_not_happen: bool = False
    undetermined: bool = False
    look_again: bool = False
    evidence: str = ""
    foreign: tuple[str, ...] = ()
    seen: int = 0  # the number of the last event that the signer read; 0: what is shown now

    def check(self) -> None:
        """Misuse unless exactly one thing is said, with its evidence."""
        said = [bool(self.happened), self.did_not_happen, self.undetermined, self.look_again]
        if sum(said) != 1:
            raise Misuse("say one of --happened RECEIPT, --did-not-happen, --undetermined, --look-again")
        if not self.evidence:
            raise Misuse("say what it rests on: --evidence TEXT (request ids, pages, who was asked)")
        if self.look_again and self.foreign:
            raise Misuse("--foreign goes with --happened, --did-not-happen and --undetermined")

    @property
    def decision(self) -> str:
        """The word that is signed."""
        if self.look_again:
            return "look_again"
        return "happened" if self.happened else "did_not_happen" if self.did_not_happen else "undetermined"


async def review(voice: Voice, name: str) -> Page:
    """Everything in review, oldest first; or one operation with its evidence and the commands that settle it."""
    given = settings()
    async with reading(ledger_dsn(given)) as reader, reader.snapshot() as conn:
        if name:
            return await one_page(conn, await named(conn, name), given)
        return await list_page(conn, given)


async def list_page(conn: Connection, given: Settings) -> Page:
    """What people must settle."""
    _, document = await views.configuration_in_force(conn)
    page = Page({"review": []})
    rows = []
    for operation in await views.in_review(conn):
        contract = contract_of(operation, default_registry(given.stripe_base_url), given.timing())
        found = await facts.evidence(conn, document, operation, contract)
        who = await facts.must_act(conn, document, operation)
        against = await views.contradicted(conn, operation.operation_id)
        spoken = await resolutions(conn, document, operation)
        signed = ", ".join(f"{said.person}: {said.decision}" for said, counts in spoken if counts)
        why = "CONTRADICTED: " if against else ""
        rows.append(
            (
                str(operation.operation_id)[:8],
                tell.headline(operation),
                f"{why}{operation.state}: {operation.reason}",
                lasting(found.now - operation.proposed_at),
                len(found.attempts),
                len(found.sightings),
                f"{who}{f' (signed: {signed})' if signed else ''}",
            )
        )
        page.document["review"].append(
            tell.document(operation)
            | {
                "contradicted": against,
                "age_seconds": (found.now - operation.proposed_at).total_seconds(),
                "attempts": len(found.attempts),
                "looks": len(found.sightings),
                "who_must_act": who,
                "signed": signed,
            }
        )
    page.title(f"{len(rows)} in review, oldest first" if rows else "Nothing is in review.")
    page.table(("operation", "what", "why", "age", "attempts", "looks", "who must act"), rows)
    if rows:
        page.say(f"read one: effects review {rows[0][0]}")
    return page


async def one_page(conn: Connection, operation: Operation, given: Settings) -> Page:
    """The evidence about one operation, what the provider's adapter wants to see, and the commands to run."""
    _, document = await views.configuration_in_force(conn)
    registry = default_registry(given.stripe_base_url)
    contract = contract_of(operation, registry, given.timing())
    found = await facts.evidence(conn, document, operation, contract)
    who = await facts.must_act(conn, document, operation)
    told = [e for e in await events.read(conn, operation.operation_id) if e.kind in EVIDENCE]
    adapter = registry.for_action(operation.action)
    page = Page(tell.document(operation))
    page.title(tell.headline(operation))
    page.fact("operation", operation.operation_id)
    page.fact("state", operation.state.value + (f": {operation.reason}" if operation.reason else ""))
    page.fact("age", lasting(found.now - operation.proposed_at))
    page.fact("who must act", who)
    page.fact("at the provider", adapter.link(operation))
    if await views.contradicted(conn, operation.operation_id):
        page.warn("there is evidence against what was recorded: see the contradictions below")
    signed = await resolutions(conn, document, operation)
    for said, counts in signed:
        page.fact("signed" if counts else "no longer counts", f"{said.decision}, by {said.person}")
    tell.attempts(page, found.attempts)
    tell.sightings(page, found.sightings)
    page.table(("#", "when", "evidence"), [(e.number, tell.clock(e.at), sentence(e)) for e in told[-12:]])
    permitted = what_is_permitted(found)
    commands = resolve_commands(operation, found, permitted)
    if operation.state is State.NEEDS_REVIEW:
        page.say("")
        page.title("What each resolution must rest on")
        page.say(adapter.resolution)
        page.say("")
        page.title(f"To settle it (evidence read up to event {operation.event_count})")
        for why in filter(None, permitted.values()):
            page.say(f"  {why}")
        for command in commands:
            page.say(f"  {command}")
    page.document |= {
        "who_must_act": who,
        "signed": [{"person": said.person, "decision": said.decision, "counts": counts} for said, counts in signed],
        "resolution": adapter.resolution,
        "commands": commands,
        "not_yet": {decision: why for decision, why in permitted.items() if why},
        "seen": operation.event_count,
        "evidence": [
            {"number": e.number, "at": e.at.isoformat(), "sentence": sentence(e), "body": e.body} for e in told
        ],
    }
    return page


async def resolutions(conn: Connection, document: Document, operation: Operation) -> list[tuple[Statement, bool]]:
    """Accepted resolutions, oldest first, and whether each still counts."""
    given = [
        s for s in await statements.of_operation(conn, operation.operation_id) if s.typ == StatementType.RESOLUTION
    ]
    return [(said, await still_counts(conn, document, operation, said)) for said in given]


def what_is_permitted(found: Evidence) -> dict[str, str]:
    """For each end without proof: empty, or why the evidence does not permit it now."""
    probe = Claims.model_construct(decision="did_not_happen", foreign=())
    objections = {"did_not_happen": "", "undetermined": ""}
    checks: dict[str, Callable[[], None]] = {
        "did_not_happen": lambda: check_absence(found, probe, found.sightings),
        "undetermined": lambda: check_undeterminable(found),
    }
    for decision, check in checks.items():
        try:
            check()
        except Refused as refused:
            objections[decision] = f"{decision} is not possible yet: {refused.rule}: {refused}"
    return objections


def resolve_commands(operation: Operation, found: Evidence, permitted: dict[str, str]) -> list[str]:
    """The exact commands that the evidence leaves open, bound to what was read. What a provider wrote is quoted."""
    base = f"effects resolve {operation.operation_id} --as NAME --seen {operation.event_count}"
    latest = found.sightings[-1].effects if found.sightings else ()
    living = [e for e in latest if e.standing is not Standing.VOID and (e.ours or e.look_alike)]
    receipts = [quote(visible(e.receipt)) for e in living] or ["RECEIPT"]
    commands = [f'{base} --happened {receipt} --evidence "…"' for receipt in receipts]
    foreign = "".join(f" --foreign {quote(visible(e.receipt))}" for e in living if e.look_alike)
    if not permitted["did_not_happen"] or "absence_unproved" in permitted["did_not_happen"]:
        commands.append(f'{base} --did-not-happen{foreign} --evidence "…"')
    if not permitted["undetermined"]:
        commands.append(f'{base} --undetermined --evidence "…"')
    if found.contract.lookup is not None:
        commands.append(f'{base} --look-again --evidence "what changed"')
    return commands


async def resolve(
    voice: Voice, name: str, said: Said, who: str, key_file: Path | None, wait: float, *, yes: bool
) -> Page:
    """Sign a resolution on the trail as it was read, hand it over, and tell what became of it."""
    said.check()
    given = settings()
    async with reading(ledger_dsn(given)) as reader:
        async with reader.snapshot() as conn:
            operation = await named(conn, name)
            head = await views.head_at(conn, operation.operation_id, said.seen or operation.event_count)
            page = await one_page(conn, operation, given)
        if head is None:
            raise Misuse(f"--seen {said.seen}: the trail has {operation.event_count} events")
        one = await signer(reader, who, key_file)
        if not said.seen:
            voice.show(page)
        claims = resolution(operation, said, head, one.times(longest(one, operation)))
        if not agreed(voice, claims, one, yes=yes):
            return not_signed(operation_id=str(operation.operation_id))
        temporal = await connected(given)
        envelope = sign(claims, one.key, one.kid)
        await temporal.signal(operation, "resolve", envelope.model_dump())
        heard = await hear(reader, operation, claims.jti, envelope, wait)
        told = heard_page(heard, claims)
        missing = 0
        if heard.operation.state is State.NEEDS_REVIEW and not said.look_again:
            async with reader.snapshot() as conn:
                _, document = await views.configuration_in_force(conn)
                missing = await people_missing(conn, document, operation, claims)
    if missing:
        told.say(f"{missing} more operator must sign the same.")
    told.document["still_needed"] = missing
    return told


def resolution(operation: Operation, said: Said, head: bytes, times: dict[str, object]) -> Claims:
    """The sentence that will be signed."""
    fields: dict[str, object] = {
        "sub": str(operation.operation_id),
        "fingerprint": operation.fingerprint.hex(),
        "trail_head": head.hex(),
        **times,
    }
    if said.look_again:
        return Claims.make(typ=StatementType.LOOK_AGAIN, reason=said.evidence, **fields)
    return Claims.make(
        typ=StatementType.RESOLUTION,
        decision=said.decision,
        evidence=said.evidence,
        receipt=said.happened,
        foreign=tuple(said.foreign),
        **fields,
    )


async def look(voice: Voice, name: str, wait: float) -> Page:
    """Wake the operation's workflow, or start it again from the ledger; tell what is new in the trail."""
    given = settings()
    async with reading(ledger_dsn(given)) as reader:
        async with reader.snapshot() as conn:
            operation = await named(conn, name)
        temporal = await connected(given)
        await temporal.signal(operation, "look_now")
        seen = operation.event_count
        after = await until(reader, operation.operation_id, lambda o: o.event_count > seen, wait)
        async with reader.snapshot() as conn:
            new = [e for e in await events.read(conn, operation.operation_id) if e.number > seen]
            page = await operation_page(conn, after, given)
    if not new:
        page.say("Woken; nothing new in the trail yet.")
    page.table(("new in the trail",), [(sentence(e),) for e in new])
    page.document["trail"] = [sentence(e) for e in new]
    return page
