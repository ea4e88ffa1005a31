"""`hold`, `release`, `holds`: one operator stops sending in a scope, two let it go on."""

from pathlib import Path

from commands import tell
from commands.decide import agreed, not_signed
from commands.keys import signer
from commands.page import Page
from commands.reading import Reader, named, reading
from commands.surroundings import ledger_dsn, settings
from commands.temporal import connected
from commands.voice import Voice
from ledger.errors import Refused
from ledger.statement import Claims, StatementType, sign
from ledger.store import holds as stored
from ledger.store import statements

LONGEST_SECONDS = 3600


async def sign_about(
    voice: Voice, scope: str, typ: StatementType, reason: str, who: str, key_file: Path | None, *, yes: bool
) -> Page:
    """Sign a hold or a release of a scope and have it recorded."""
    given = settings()
    async with reading(ledger_dsn(given)) as reader:
        scope = await whole_scope(reader, scope)
        one = await signer(reader, who, key_file)
        claims = Claims.make(typ=typ, sub=scope, reason=reason, **one.times(LONGEST_SECONDS))
        if not agreed(voice, claims, one, yes=yes):
            return not_signed(scope=scope)
        temporal = await connected(given)
        answer = await temporal.hold(claims.jti, sign(claims, one.key, one.kid))
    if not answer.accepted:
        raise Refused(answer.rule, answer.message)
    page = Page(answer.model_dump(mode="json") | {"jti": claims.jti})
    page.title(f"{typ} of {one.owner} accepted: {scope} is {'held' if answer.held else 'not held'}")
    if answer.still_needed:
        page.say(f"{answer.still_needed} more operator must sign the release.")
    if answer.wake:
        page.fact("woken", f"{len(answer.wake)} open operation(s)")
    return page


async def whole_scope(reader: Reader, scope: str) -> str:
    """The scope as it is signed: an operation by its full id. Its form is judged when it is signed."""
    kind, _, name = scope.partition(":")
    if kind != "operation":
        return scope
    async with reader.snapshot() as conn:
        return f"operation:{(await named(conn, name)).operation_id}"


async def current(voice: Voice) -> Page:
    """What is held now, since when, by whom and why, and who has released already."""
    page = Page({"holds": []})
    rows = []
    async with reading(ledger_dsn(settings())) as reader, reader.snapshot() as conn:
        for hold in await stored.current(conn):
            said = await statements.of_scope(conn, hold.scope, hold.since) if hold.since is not None else []
            by = sorted({s.person for s in said if s.typ == StatementType.HOLD})
            released = sorted({s.person for s in said if s.typ == StatementType.RELEASE})
            rows.append((hold.scope, tell.clock(hold.since), ", ".join(by), hold.reason, ", ".join(released)))
            page.document["holds"].append(
                {
                    "scope": hold.scope,
                    "since": None if hold.since is None else hold.since.isoformat(),
                    "by": by,
                    "reason": hold.reason,
                    "released_by": released,
                }
            )
    page.title(f"{len(rows)} held; a release needs two operators" if rows else "Nothing is held.")
    page.table(("scope", "since", "by", "reason", "released by"), rows)
    return page
