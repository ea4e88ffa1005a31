"""A checkpoint: the head of every trail at one moment, signed, to be kept where whoever owns the database cannot reach it.

1. One line a trail, `[stream, events, head]` in canonical form: the ledger's own first, then every operation's by its id.
2. The last line is a statement over the SHA-256 of all lines before it, with a detached JWS over exactly its bytes.
3. A trail that is still whole begins with every head that was ever written down of it; a trail made anew does not.
4. It gives no authority: any person of the configuration may sign one, best one who has no role and no other duty.
"""

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Literal
from uuid import UUID

import jwt
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from jwt.api_jws import PyJWS
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ledger.errors import Refused
from ledger.fingerprint import canonical_bytes
from ledger.statement import ALGORITHM, Principal, PublicKeyEntry, Seconds, public_key, signer_of

CHECKPOINT_HEADER = "effect-checkpoint"
PREFIX = b"effect-ledger/checkpoint/v1\n"  # before the lines, in the digest
LONGEST_LINE = 4096  # bytes; the last line is the longest

_PROOF = re.compile(r"[A-Za-z0-9_-]{1,1024}\.\.[A-Za-z0-9_-]{86}")
_DIGEST = r"^[0-9a-f]{64}$"
_SEAL_FIELDS = {"proof", "statement"}


@dataclass(frozen=True)
class Head:
    """Where one trail stood: how many events it had, and the hash of the last."""

    stream: UUID
    events: int
    head: bytes

    def line(self) -> bytes:
        """The line of a checkpoint, with its line feed: canonical as it stands, there is nothing in it to be escaped."""
        return f'["{self.stream}",{self.events},"{self.head.hex()}"]\n'.encode()


class Checkpoint(BaseModel):
    """What is signed: whose trails, as of when, how many, and the digest of their lines."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    typ: Literal["checkpoint"] = "checkpoint"
    iss: Principal
    aud: Annotated[str, Field(min_length=1, max_length=120)]  # the ledger's name
    # and the name of its own trail
    namespace: Annotated[str, Field(pattern=r"^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$")]
    at: Seconds  # ledger time
    config_version: Annotated[int, Field(ge=1)]  # in force then: its keys verify this
    config_digest: Annotated[str, Field(pattern=_DIGEST)]
    trails: Annotated[int, Field(ge=1)]
    digest: Annotated[str, Field(pattern=_DIGEST)]  # SHA-256 of PREFIX and all lines

    def to_bytes(self) -> bytes:
        """The canonical form, which is what gets signed."""
        return canonical_bytes(self.model_dump(mode="json"))


@dataclass(frozen=True)
class Seal:
    """The last line: the exact bytes that were signed, what they say, and the proof. Nothing of it is verified yet."""

    statement: bytes
    said: Checkpoint
    proof: str


def lines_digest() -> "hashlib._Hash":
    """A SHA-256 that has begun with the prefix; feed it every line in order."""
    return hashlib.sha256(PREFIX)


def seal(said: Checkpoint, key: Ed25519PrivateKey, kid: str) -> bytes:
    """The last line of a checkpoint, with its line feed."""
    statement = said.to_bytes()
    headers = {"kid": kid, "typ": CHECKPOINT_HEADER}
    proof = PyJWS().encode(statement, key, algorithm=ALGORITHM, headers=headers, is_payload_detached=True)
    return canonical_bytes({"proof": proof, "statement": statement.decode()}) + b"\n"


def read_line(line: bytes) -> Head | Seal:
    """A head, or the seal in the last line. Refused: `checkpoint_malformed` unless these are the very bytes we write."""
    try:
        parts = json.loads(line)
        if isinstance(parts, dict):
            statement = parts["statement"].encode()
            said = Checkpoint.model_validate_json(statement)
            if said.to_bytes() != statement or canonical_bytes(parts) + b"\n" != line or set(parts) != _SEAL_FIELDS:
                raise ValueError
            return Seal(statement, said, parts["proof"])
        stream, events, head = parts
        found = Head(UUID(stream), events, bytes.fromhex(head))
        if type(events) is not int or found.line() != line:
            raise ValueError
        return found
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError, ValidationError, Refused) as error:
        raise Refused("checkpoint_malformed", "a line of it is none of a checkpoint", field="checkpoint") from error


def verify(sealed: Seal, keys: Mapping[str, PublicKeyEntry], *, aud: str) -> str:
    """Who signed it. `keys` are people's keys by kid, of the configuration that it names. Its lines are not looked at.

    Refused: `proof_malformed`, `signature_wrong`, `audience_wrong`, `issuer_wrong`, and what `signer_of` says of a key.
    """
    if type(sealed.proof) is not str or not _PROOF.fullmatch(sealed.proof):
        raise Refused("proof_malformed", "give a detached JWS: header, two dots, signature", field="proof")
    entry = signer_of(sealed.proof, {"b64": False, "crit": ["b64"], "typ": CHECKPOINT_HEADER}, keys)
    try:
        PyJWS().decode_complete(sealed.proof, public_key(entry.x), [ALGORITHM], detached_payload=sealed.statement)
    except jwt.PyJWTError as error:
        raise Refused("signature_wrong", "its signature is not one over these bytes", field="proof") from error
    if sealed.said.aud != aud:
        raise Refused("audience_wrong", f"it is a checkpoint of {sealed.said.aud}, not of {aud}", field="aud")
    if sealed.said.iss != entry.owner:
        raise Refused("issuer_wrong", "it does not name the owner of its key", field="iss")
    return entry.owner
