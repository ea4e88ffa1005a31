"""`evidence`: everything about one operation in one file, for whoever must be shown it and does not believe our database."""

import hashlib
from pathlib import Path

from commands import tell
from commands.page import Page
from commands.reading import named, reading
from commands.surroundings import ledger_dsn, settings
from commands.voice import Voice
from commands.writing import new_file
from ledger.errors import Refused
from ledger.evidence import bundle, written
from ledger.store import evidence


async def write(voice: Voice, name: str, out: Path | None) -> Page:
    """Write the bundle to a new file that only its owner can read; nothing in it is judged here. Refused: `erased`."""
    async with reading(ledger_dsn(settings())) as reader, reader.snapshot() as conn:
        operation = await named(conn, name)
        if operation.erased_at is not None:
            why = (
                "its personal fields were erased, and what was signed with them: a bundle made before that still holds"
            )
            raise Refused("erased", why, field="operation")
        document = bundle(await evidence.rows_of(conn, operation.operation_id))
    file = out or Path(f"evidence-{operation.operation_id}.json")
    raw = written(document)
    with new_file(file) as to:
        to.write(raw)
    digest = hashlib.sha256(raw).hexdigest()
    told = {"file": str(file), "bytes": len(raw), "sha256": digest, "events": operation.event_count}
    page = Page({**tell.document(operation), **told})
    page.title(f"Evidence of {tell.headline(operation)}")
    page.fact("file", f"{file} ({len(raw)} bytes)")
    page.fact("sha256", digest)
    page.fact("as of", f"event {operation.event_count}, {operation.state.value}")
    page.warn("it holds personal data: whoever asked, signed or is written about; docs/personal-data.md says what")
    page.say("Anybody can verify it without this ledger: docs/verify_evidence.py, explained in docs/evidence.md.")
    return page
