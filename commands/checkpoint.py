"""`checkpoint`, and `verify --checkpoint`: write the head of every trail down, signed; and ask later whether all still stand."""

from collections.abc import AsyncIterator, Iterator
from datetime import UTC
from pathlib import Path
from uuid import UUID

from commands import tell
from commands.exits import Misuse
from commands.keys import signer
from commands.page import Page
from commands.reading import reading
from commands.surroundings import ledger_dsn, settings
from commands.voice import Voice
from commands.writing import new_file
from ledger.checkpoint import LONGEST_LINE, Checkpoint, Head, Seal, lines_digest, read_line, seal, verify
from ledger.errors import Broken, LedgerError, Refused
from ledger.store import checkpoints, operations, views
from ledger.store.database import Connection, now
from ledger.store.verify import Verified

MOST_NAMED = 200  # trails that one checkpoint shows to be gone; the others are counted


async def write(voice: Voice, out: Path | None, who: str, key_file: Path | None) -> Page:
    """Write one line a trail and the signature to a new file; reads the ledger in one pass and holds nothing in memory."""
    async with reading(ledger_dsn(settings())) as reader:
        one = await signer(reader, who, key_file)
        if one.document.person_keys()[one.kid].revoked:
            raise Refused("key_revoked", "sign with a key that is not revoked", field="kid")
        async with reader.snapshot() as conn:
            version, document = await views.configuration_in_force(conn)
            at = (await now(conn)).astimezone(UTC)
            namespace = await operations.namespace(conn)
            file = out or Path(f"checkpoint-{at:%Y%m%dT%H%M%SZ}.jsonl")
            digest, trails = lines_digest(), 0
            with new_file(file) as to:
                async for head in checkpoints.heads(conn):
                    line = head.line()
                    digest.update(line)
                    to.write(line)
                    trails += 1
                said = Checkpoint(
                    iss=one.owner,
                    aud=document.ledger.name,
                    namespace=str(namespace),
                    at=int(at.timestamp()),
                    config_version=version,
                    config_digest=document.digest().hex(),
                    trails=trails,
                    digest=digest.hexdigest(),
                )
                to.write(seal(said, one.key, one.kid))
    page = Page({"file": str(file), "kid": one.kid, **said.model_dump(mode="json")})
    page.title(f"Checkpoint of {trails} trail(s), signed by {one.owner}")
    page.fact("file", file)
    page.fact("as of", tell.clock(at))
    page.say("Keep it where whoever owns the database cannot change it; `effects verify --checkpoint` reads it.")
    return page


async def compare(conn: Connection, found: Verified, file: Path) -> None:
    """Add a difference for everything that this checkpoint shows to be gone or made anew, or for the checkpoint itself."""
    name = f"checkpoint {file}"
    try:
        sealed = proved_by_itself(file)
        said = sealed.said
        namespace, digest, document = await checkpoints.namespace_and_configuration(conn, said.config_version)
        if said.namespace != str(namespace):
            raise Broken("it is of another ledger")
        if said.config_digest != digest.hex():
            raise Broken(f"configuration {said.config_version} is not the one by whose keys it was signed")
        verify(sealed, document.person_keys(), aud=document.ledger.name)
    except LedgerError as error:
        found.differ(name, str(error))
        return
    missing = 0
    async for head in _gone(conn, file):
        missing += 1
        if missing <= MOST_NAMED:
            found.differ(_trail_name(head, namespace), f"event {head.events} is not the one that {file} has signed")
    if missing > MOST_NAMED:
        found.differ(name, f"{missing - MOST_NAMED} more trails do not begin with what it has signed")
    found.count("checkpointed trails", said.trails)


def proved_by_itself(file: Path) -> Seal:
    """The seal of a file whose lines are those that it counts and digests. Nobody's signature is verified yet.

    Refused: `checkpoint_malformed`. `Broken`: lines are missing, added or changed.
    """
    digest, trails = lines_digest(), 0
    sealed: Seal | None = None
    for line, told in _lines(file):
        if sealed is not None:
            raise Broken("something follows its signature: give each checkpoint a file of its own")
        if isinstance(told, Seal):
            sealed = told
            continue
        digest.update(line)
        trails += 1
    if sealed is None:
        raise Broken("it has no last line with a signature: it was not written to its end")
    if (sealed.said.trails, sealed.said.digest) != (trails, digest.hexdigest()):
        raise Broken("its lines are not those that were signed")
    return sealed


def _lines(file: Path) -> Iterator[tuple[bytes, Head | Seal]]:
    try:
        with file.open("rb") as lines:
            while line := lines.readline(LONGEST_LINE):
                yield line, read_line(line)
    except OSError as error:
        raise Misuse(f"{file} cannot be read: {error.strerror}") from error


async def _gone(conn: Connection, file: Path) -> AsyncIterator[Head]:
    waiting: list[Head] = []
    for _, told in _lines(file):
        if isinstance(told, Head):
            waiting.append(told)
        if len(waiting) == checkpoints.ROWS_AT_ONCE or isinstance(told, Seal):
            for head in await checkpoints.gone(conn, waiting):
                yield head
            waiting = []
        if isinstance(told, Seal):
            return


def _trail_name(head: Head, namespace: UUID) -> str:
    return "the ledger's own trail" if head.stream == namespace else f"operation {head.stream}"
