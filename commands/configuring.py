"""`config check`, `config diff`, `config apply`: what is written in files, what is in force, and the way between them."""

from dataclasses import dataclass
from pathlib import Path

from activities.judgement import approvals, grant_problem
from activities.ports import leads_elsewhere
from commands import tell
from commands.exits import Exit
from commands.page import Page
from commands.reading import probe, reading, writing
from commands.surroundings import ledger_dsn, owner_dsn, settings
from commands.voice import Voice
from ledger import policy
from ledger.config import FILES, Document, parse
from ledger.config_check import check_succession, diff, problems
from ledger.errors import Refused
from ledger.model import Operation
from ledger.states import BEFORE_FIRST_SEND, BlockReason, State
from ledger.store import configuration, views
from ledger.store.database import Connection


@dataclass(frozen=True)
class Consequence:
    """What a new configuration would do to one open operation."""

    operation: Operation
    what: str
    why: str

    def told(self) -> dict[str, object]:
        """For JSON."""
        about = {"operation_id": str(self.operation.operation_id), "state": self.operation.state.value}
        return {**about, "what": self.what, "why": self.why}


def read(folder: Path) -> Document:
    """The document in the files of a folder. Refused: `config_unreadable`, and the rules of `config.parse`."""
    texts = {}
    for name in FILES:
        try:
            texts[name] = (folder / name).read_text()
        except FileNotFoundError:
            continue
        except (OSError, UnicodeDecodeError) as error:
            raise Refused("config_unreadable", f"{folder / name} cannot be read", field=name) from error
    return parse(texts)


async def check(voice: Voice, folder: Path) -> Page:
    """Whether the files make one document that fits together; every problem, not only the first."""
    document = read(folder)
    found = list(problems(document))
    page = Page(
        {
            "folder": str(folder),
            "digest": document.digest().hex(),
            "problems": [{"rule": p.rule, "field": p.field, "message": str(p)} for p in found],
        },
        Exit.REFUSED if found else Exit.ASKED,
    )
    page.title(f"{len(found)} problem(s) in {folder}" if found else f"{folder} fits together")
    page.table(("rule", "where", "what to do"), [(p.rule, p.field, p) for p in found])
    page.fact("digest", document.digest().hex())
    page.fact(
        "holds", f"{len(document.tenants)} tenant(s), {len(document.rules)} rule(s), {len(document.people)} people"
    )
    return page


async def compare(voice: Voice, folder: Path) -> Page:
    """What changes, and what that would do to operations that have not ended."""
    new = read(folder)
    async with reading(ledger_dsn(settings())) as reader, reader.snapshot() as conn:
        version, old = await views.configuration_in_force(conn)
        found = await consequences(conn, new)
    return comparison(version, old, new, found)


def comparison(version: int, old: Document, new: Document, found: list[Consequence]) -> Page:
    """The page of a comparison; exit code 3 when `config apply` would refuse it."""
    changes = diff(old, new)
    objections = list(problems(new))
    try:
        check_succession(old, new)
    except Refused as refused:
        objections.append(refused)
    page = Page(
        {
            "version_in_force": version,
            "changes": changes,
            "consequences": [one.told() for one in found],
            "problems": [{"rule": p.rule, "field": p.field, "message": str(p)} for p in objections],
        },
        Exit.REFUSED if objections else Exit.ASKED,
    )
    page.title(
        f"{len(changes)} change(s) to configuration {version}" if changes else f"Equal to configuration {version}."
    )
    for change in changes:
        page.say(f"  {change}")
    if found:
        page.title("What it would do to operations that have not ended")
    page.table(
        ("operation", "what it is", "state", "would be", "because"),
        [
            (str(c.operation.operation_id)[:8], tell.headline(c.operation), c.operation.state, c.what, c.why)
            for c in found
        ],
    )
    if changes and not found:
        page.say("No operation that has not ended would be touched.")
    for problem in objections:
        page.warn(f"would be refused: {problem.rule} ({problem.field}): {problem}")
    return page


async def consequences(conn: Connection, new: Document) -> list[Consequence]:
    """Every open operation that the new document would treat differently, oldest first."""
    found = []
    for operation in await views.before_the_end(conn):
        what, why = await consequence(conn, new, operation)
        if what:
            found.append(Consequence(operation, what, why))
    return found


async def consequence(conn: Connection, new: Document, operation: Operation) -> tuple[str, str]:
    """(what would become of it, why); empty when nothing would. The same questions, in the same order, as a judgement."""
    unsent = operation.state in BEFORE_FIRST_SEND
    if problem := grant_problem(new, operation):
        why = f"the grant of {operation.kid} no longer covers it ({problem})"
        return (f"blocked: {BlockReason.AUTHORITY_REVOKED}" if unsent else "never sent again, only looked for"), why
    if unsent and policy.policy_changed(new, operation):
        return f"blocked: {BlockReason.POLICY_CHANGED}", "the rule it was proposed under says something else"
    if unsent and (why := _rebound(new, operation)):
        return f"blocked: {BlockReason.POLICY_CHANGED}", why
    if not unsent and (why := _moved(new, operation)):
        return "neither sent again nor looked for, until it is bound back", why
    if operation.people_needed:
        given = await approvals(conn, operation)
        standing = policy.approvals_stand(new, operation, given)
        needed = operation.people_needed
        if operation.state is State.APPROVED and standing < needed:
            return "asked for again: another may sign", f"only {standing} of {needed} approvals would still count"
        if not unsent and standing < needed:
            return "never sent again, only looked for", f"only {standing} of {needed} approvals would still count"
        lost = len({one.person for one in given}) - standing
        if operation.state is State.AWAITING_APPROVAL and lost > 0:
            return "waiting for more people", f"{lost} approval(s) would no longer count"
    return "", ""


def _rebound(new: Document, operation: Operation) -> str:
    try:
        binding = new.binding(operation.tenant, operation.provider)
    except Refused as refused:
        return str(refused)
    if (binding.account, binding.livemode) != (operation.account, operation.livemode):
        return f"{operation.tenant} would be bound to {binding.account}, livemode {binding.livemode}"
    return ""


def _moved(new: Document, operation: Operation) -> str:
    try:
        binding = new.binding(operation.tenant, operation.provider)
    except Refused as refused:
        return str(refused)
    if leads_elsewhere(operation, binding.endpoint, binding.archive):
        return f"{operation.tenant} would reach {operation.provider} at {binding.endpoint}, and it was sent elsewhere"
    return ""


async def apply(voice: Voice, folder: Path, by: str, *, yes: bool) -> Page:
    """Make the files the configuration in force, with the owner's role, after every check."""
    given = settings()
    owner = owner_dsn(given)
    new = read(folder)
    for problem in problems(new):
        raise problem
    await probe(owner)
    old, version, found = None, 0, []
    async with reading(owner) as reader, reader.snapshot() as conn:
        try:
            version, old = await views.configuration_in_force(conn)
        except Refused as refused:
            if refused.rule != "config_missing":
                raise
        else:
            found = await consequences(conn, new)
    if old is not None:
        check_succession(old, new)
        page = comparison(version, old, new, found)
        voice.show(page)
        if found and not voice.agreed(f"apply although it touches {len(found)} operation(s)?", yes=yes):
            return Page({"applied": False, **page.document}, Exit.REFUSED)
    async with writing(owner) as conn:
        applied = await _apply(conn, new, by)
    page = Page(
        {"version": applied, "before": version or None, "digest": new.digest().hex(), "applied": applied != version}
    )
    same = "was in force already; nothing changed" if applied == version else "is in force"
    page.say(f"Configuration {applied} {same}.")
    page.document["consequences"] = [one.told() for one in found]
    return page


async def _apply(conn: Connection, new: Document, by: str) -> int:
    """Check against what is in force at this moment, then write: another version may have come since the comparison."""
    try:
        _, old = await configuration.in_force(conn)
    except Refused as refused:
        if refused.rule != "config_missing":
            raise
    else:
        check_succession(old, new)
    return await configuration.apply(conn, new, by)
