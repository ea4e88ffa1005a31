"""Private keys: make, find and try them. A private key never leaves its file, and its passphrase is never printed."""

import getpass
import os
import re
import sys
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from commands.exits import Misuse
from commands.page import Page
from commands.reading import Reader, reading
from commands.surroundings import keys_folder, ledger_dsn, settings
from commands.voice import Voice
from ledger.config import Document
from ledger.errors import Refused
from ledger.statement import (
    PRINCIPAL,
    Claims,
    PublicKeyEntry,
    StatementType,
    key_id,
    load_private_pem,
    new_private_key,
    private_pem,
    public_x,
    sign,
    verify,
)
from ledger.store import views
from ledger.store.database import now

SHORTEST_PASSPHRASE = 12
STATEMENT_SECONDS = 600


@dataclass(frozen=True)
class Signer:
    """Somebody who can sign for this ledger now: key, its id, whose it is by the configuration, and the audience."""

    owner: str
    kid: str
    key: Ed25519PrivateKey
    audience: str
    document: Document
    now: datetime  # the ledger's time: what a signature says is compared with it

    def times(self, longest_seconds: int = STATEMENT_SECONDS) -> dict[str, object]:
        """iss, aud, iat, exp and a fresh jti."""
        at = int(self.now.timestamp())
        until = at + min(STATEMENT_SECONDS, longest_seconds)
        return {"iss": self.owner, "aud": self.audience, "iat": at, "exp": until, "jti": uuid.uuid4().hex}


async def signer(reader: Reader, name: str, key_file: Path | None, *, granted: bool = False) -> Signer:
    """The signer of a private key, as the configuration in force knows its public half; a grant's key if `granted`.

    Refused: `key_file_missing`, `key_unreadable`, `key_unknown`, `key_owner`.
    """
    private = load(name, key_file)
    async with reader.snapshot() as conn:
        _, document = await views.configuration_in_force(conn)
        at = await now(conn)
    entry = entry_of(document.grant_keys() if granted else document.person_keys(), public_x(private))
    if entry is None:
        raise Refused("key_unknown", _not_for_this(document, public_x(private), granted=granted), field="kid")
    if name and entry.owner != name:
        raise Refused("key_owner", f"this key belongs to {entry.owner}: sign --as {entry.owner}", field="iss")
    return Signer(entry.owner, entry.kid, private, document.ledger.name, document, at)


def _not_for_this(document: Document, x: str, *, granted: bool) -> str:
    """What is wrong with a key that the configuration does not name for this use."""
    other = entry_of(document.person_keys() if granted else document.grant_keys(), x)
    if other is not None and granted:
        return f"this is {other.owner}'s key to approve or operate with: a proposal is signed by the key of a grant"
    if other is not None:
        return f"this is the key that {other.owner} proposes with: only people of people.toml approve and operate"
    return f"the configuration in force does not name this key: add it to {'grants' if granted else 'people'}.toml"


def entry_of(keys: Mapping[str, PublicKeyEntry], x: str) -> PublicKeyEntry | None:
    """The entry with this public half, revoked or not: the ledger says what is no longer good."""
    return next((entry for entry in keys.values() if entry.x == x), None)


def load(name: str, key_file: Path | None) -> Ed25519PrivateKey:
    """The private key of a name or file, with its passphrase from the environment or from the person."""
    if not name and key_file is None:
        raise Misuse("say who signs: --as NAME, or --key-file FILE")
    file = key_file or key_path(name, keys_folder())
    try:
        pem = file.read_bytes()
    except OSError as error:
        there = ", ".join(sorted(found.stem for found in file.parent.glob("*.pem"))) or "none"
        why = f"no readable key at {file} (keys there: {there}): set EFFECTS_KEYS_DIR, or --key-file"
        raise Refused("key_file_missing", why, field="as") from error
    locked = b"BEGIN ENCRYPTED" in pem
    return load_private_pem(pem, passphrase(f"passphrase of {file.name}: ") if locked else None)


def key_path(name: str, folder: Path) -> Path:
    """Where the key of a name lies. Refused: `name_malformed`, so that no name leads out of the folder."""
    if not re.fullmatch(PRINCIPAL, name):
        raise Refused("name_malformed", "use lower-case letters, digits and . _ @ + - in a name", field="as")
    return folder / f"{name}.pem"


def passphrase(question: str, *, twice: bool = False) -> str:
    """From EFFECTS_PASSPHRASE_FILE, EFFECTS_PASSPHRASE, or asked. Refused: `passphrase_missing`, `passphrase_differs`."""
    if file := os.environ.get("EFFECTS_PASSPHRASE_FILE"):
        try:
            return Path(file).read_text().rstrip("\r\n")
        except OSError as error:
            raise Refused(
                "passphrase_missing", f"EFFECTS_PASSPHRASE_FILE names {file}, which cannot be read"
            ) from error
    if told := os.environ.get("EFFECTS_PASSPHRASE"):
        return told
    if not sys.stdin.isatty():
        raise Refused("passphrase_missing", "set EFFECTS_PASSPHRASE_FILE: nobody can be asked here")
    given = getpass.getpass(question)
    if twice and getpass.getpass("once more: ") != given:
        raise Refused("passphrase_differs", "type the same passphrase twice")
    return given


async def new(voice: Voice, name: str, folder: Path | None) -> Page:
    """Make a key, encrypted, for one person or service; print its public half as TOML to paste."""
    file = key_path(name, folder or keys_folder())
    if file.exists():
        raise Refused("key_exists", f"{file} is there already: a key is never overwritten", field="name")
    words = passphrase("passphrase for the new key: ", twice=True)
    if len(words) < SHORTEST_PASSPHRASE:
        raise Refused("passphrase_short", f"use at least {SHORTEST_PASSPHRASE} characters", field="passphrase")
    private = new_private_key()
    x = public_x(private)
    kid = key_id(name, x)
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    number = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(number, "wb") as out:
        out.write(private_pem(private, words))
    page = Page({"name": name, "kid": kid, "x": x, "file": str(file), "toml": toml(name, kid, x)})
    page.fact("private key", f"{file} (encrypted; keep its passphrase elsewhere)")
    page.fact("kid", kid)
    page.fact("x", x)
    page.say("Paste into people.toml (or kid and x into a grant of grants.toml), then `effects config apply`:\n")
    page.say(toml(name, kid, x))
    return page


def toml(name: str, kid: str, x: str) -> str:
    """A person with this key, as people.toml wants it."""
    return f'[[people]]\nname = "{name}"\n\n[[people.keys]]\nkid = "{kid}"\nx = "{x}"'


async def test(voice: Voice, name: str, key_file: Path | None) -> Page:
    """Sign a dummy and verify it as the ledger would, with the configuration in force."""
    async with reading(ledger_dsn(settings())) as reader:
        private = load(name, key_file)
        async with reader.snapshot() as conn:
            _, document = await views.configuration_in_force(conn)
            at = await now(conn)
    x = public_x(private)
    grant = entry_of(document.grant_keys(), x)
    entry = entry_of(document.person_keys(), x) or grant
    if entry is None:
        raise Refused(
            "key_unknown", f"the configuration in force does not name {key_id(name or 'key', x)}", field="kid"
        )
    who = Signer(entry.owner, entry.kid, private, document.ledger.name, document, at)
    claims = Claims.make(typ=StatementType.DUMMY, sub="all", **who.times())
    verify(sign(claims, private, entry.kid), {entry.kid: entry}, aud=document.ledger.name)
    person = document.person(entry.owner) if grant is None else None
    page = Page({"kid": entry.kid, "owner": entry.owner, "audience": document.ledger.name, "grant": grant is not None})
    page.say(f"{entry.owner} can sign: a dummy signed with {entry.kid} verifies for {document.ledger.name}.")
    if grant is not None:
        page.fact("may propose for", f"{entry.tenant} (a grant: it approves nothing)")
    for role in () if person is None else person.roles:
        limit = "" if role.limit_minor is None else f" up to {role.limit_minor} minor units of {role.currency}"
        page.fact("may approve", f"{role.role} of {role.tenant}{limit}")
    if person is not None and person.operator_of:
        page.fact("operator of", ", ".join(person.operator_of))
    return page


async def show(voice: Voice, name: str, key_file: Path | None) -> Page:
    """The public half of one key; without a name, every key that the configuration in force names."""
    given = settings()  # beside `make up` its keys are meant
    if name or key_file is not None:
        private = load(name, key_file)
        x = public_x(private)
        kid = key_id(name or "key", x)
        page = Page({"kid": kid, "x": x})
        page.fact("kid", kid)
        page.fact("x", x)
        return page
    async with reading(ledger_dsn(given)) as reader, reader.snapshot() as conn:
        version, document = await views.configuration_in_force(conn)
    people = document.person_keys()
    told = [
        {
            "kid": entry.kid,
            "owner": entry.owner,
            "revoked": entry.revoked,
            "grant": entry.kid not in people,
            "x": entry.x,
        }
        for entry in [*people.values(), *document.grant_keys().values()]
    ]
    page = Page({"config_version": version, "keys": told})
    page.title(f"Keys of configuration {version}")
    page.table(
        ("kid", "owner", "standing"),
        [(key["kid"], key["owner"], "revoked" if key["revoked"] else "good") for key in told],
    )
    return page
