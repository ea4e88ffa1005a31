"""What people and agents sign, the sheet a person signs on, and the keys: made and verified from bytes alone.

1. A statement is canonical bytes with `typ` inside; the proof is a detached JWS over exactly these bytes.
2. One algorithm (EdDSA on Ed25519), one header of each kind, exact fields. A header chooses nothing but the key id.
3. The signature is checked before the content is read; a claim has exactly one form, so equal meaning is equal bytes.
4. Times are carried, never compared: the database compares them with the ledger's clock.
5. Whoever holds a key is who the configuration says; `iss` must agree, and proves nothing by itself.
"""

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, NoReturn, Self, TypeVar

import jwt
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from jwt.api_jws import PyJWS
from pydantic import BaseModel, ConfigDict, Field, ValidationError, ValidationInfo, field_validator, model_validator

from ledger.errors import Refused
from ledger.fingerprint import MAX_SHEET, canonical_bytes, check_text, from_base64url, to_base64url, visible
from ledger.fingerprint import build_sheet as build_sheet
from ledger.fingerprint import read_sheet as read_sheet
from ledger.fingerprint import sheet_digest as sheet_digest

ALGORITHM = "EdDSA"
SCHEME = "jws"
STATEMENT_HEADER = "effect-statement"
PROPOSAL_HEADER = "proposal+jwt"
MAX_STATEMENT = 32 * 1024
MAX_TOKEN = 8 * 1024

PRINCIPAL = r"^[a-z0-9][a-z0-9_.@+-]{0,119}$"  # lower-case ASCII, so that no second spelling is a second person

_UUID = r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
_SCOPE = re.compile(rf"all|restored|tenant:[a-z0-9-]{{1,40}}|provider:[a-z0-9_.-]{{1,60}}|operation:{_UUID}")
_PROOF = re.compile(r"[A-Za-z0-9_-]{1,1024}\.\.[A-Za-z0-9_-]{86}")
_TOKEN = re.compile(r"[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]{86}")
_DIGEST, _NOTHING = re.compile(r"[0-9a-f]{64}"), re.compile("")

Seconds = Annotated[int, Field(ge=0, le=253_402_300_799)]  # since the epoch, at most the year 9999
_Model = TypeVar("_Model", bound=BaseModel)
Principal = Annotated[str, Field(pattern=PRINCIPAL)]


class StatementType(StrEnum):
    """What a person says."""

    APPROVAL = "approval"  # may be sent
    DECLINE = "decline"  # must not be sent
    WITHDRAWAL = "withdrawal"  # no longer wanted
    RESOLUTION = "resolution"  # how an operation in review ended
    LOOK_AGAIN = "look_again"  # what is there changed: look at the provider again
    HOLD = "hold"  # stop sending
    RELEASE = "release"  # sending may go on
    DUMMY = "dummy"  # nothing; shows that a signer and its key work


# What `decision` may say.
DECISIONS: Mapping[StatementType, tuple[str, ...]] = {
    **{typ: (typ.value,) for typ in StatementType},
    StatementType.APPROVAL: ("approve",),
    StatementType.WITHDRAWAL: ("withdraw",),
    StatementType.RESOLUTION: ("happened", "did_not_happen", "undetermined"),
}
ON_A_SCOPE = frozenset({StatementType.HOLD, StatementType.RELEASE, StatementType.DUMMY})  # `sub` is a scope
ON_A_SHEET = frozenset({StatementType.APPROVAL, StatementType.DECLINE})  # bound to the sheet that was read
ON_A_TRAIL = frozenset({StatementType.RESOLUTION, StatementType.LOOK_AGAIN})  # bound to the evidence that was seen
_REASONED = frozenset({StatementType.LOOK_AGAIN, StatementType.HOLD, StatementType.RELEASE})


class _Strict(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    @classmethod
    def make(cls, **fields: object) -> Self:
        """The constructor with every objection as `Refused`: `statement_malformed`, or a more exact rule."""
        return _validated(cls, fields)


class _Signed(_Strict):
    iss: Principal  # the person, or the name of the grant
    aud: Annotated[str, Field(min_length=1, max_length=120)]  # this ledger's name
    iat: Seconds
    exp: Seconds

    @field_validator("exp")
    @classmethod
    def _ends_after_it_begins(cls, exp: int, others: ValidationInfo) -> int:
        if exp <= others.data.get("iat", -1):
            raise ValueError("let it end after iat")
        return exp


class Claims(_Signed):
    """What one person says about one operation or scope. Every field is written into the signed bytes, even if empty.

    Digests are 64 hex digits. Which fields must and must not be filled depends on `typ`; `_fits_its_type` is the list.
    """

    typ: StatementType
    sub: Annotated[str, Field(max_length=80)]  # operation id, or the scope of a hold
    fingerprint: str = ""  # of the operation; empty for a scope
    decision: str
    jti: Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]{8,64}$")]
    sheet: str = ""  # SHA-256 of the sheet it was given on
    trail_head: str = ""  # head of the trail its signer has seen
    evidence: str = ""  # for a resolution: what it rests on, in words and references
    receipt: str = ""  # for `happened`: the provider's id of the effect
    foreign: tuple[str, ...] = ()  # receipts that look like ours and are certified not to be
    reason: str = ""

    @classmethod
    def make(cls, **fields: object) -> Self:
        """As above; where the type permits only one `decision`, it is filled in."""
        typ = fields.get("typ")
        words = DECISIONS[typ] if isinstance(typ, StatementType) else ()
        return super().make(**({"decision": words[0]} if len(words) == 1 else {}) | fields)

    @model_validator(mode="after")
    def _fits_its_type(self) -> Self:
        typ, scoped, resolution = self.typ, self.typ in ON_A_SCOPE, self.typ is StatementType.RESOLUTION
        if self.decision not in DECISIONS[typ]:
            _malformed("decision", f"a statement of type {typ} says {' or '.join(DECISIONS[typ])}")
        if not (_SCOPE.fullmatch(self.sub) if scoped else re.fullmatch(_UUID, self.sub)):
            _malformed("sub", "give all, restored, tenant:…, provider:… or operation:…" if scoped else "give its id")
        self._digest_if("fingerprint", not scoped)
        self._digest_if("sheet", typ in ON_A_SHEET)
        self._digest_if("trail_head", typ in ON_A_TRAIL)
        self._text_if("evidence", 2000, must=resolution, may=resolution)
        self._text_if("receipt", 255, must=self.decision == "happened", may=self.decision == "happened")
        self._text_if("reason", 2000, must=typ in _REASONED, may=True)
        most = 50 if resolution else 0
        if len(self.foreign) > most or len(set(self.foreign)) != len(self.foreign) or self.receipt in self.foreign:
            _malformed("foreign", f"name at most {most} receipts here, each once, and not our own")
        for receipt in self.foreign:
            check_text(receipt, "foreign", 255)
        return self

    def _digest_if(self, field: str, wanted: bool) -> None:
        if not (_DIGEST if wanted else _NOTHING).fullmatch(getattr(self, field)):
            wish = "needs 64 hex digits" if wanted else "has nothing"
            _malformed(field, f"a statement of type {self.typ} {wish} here")

    def _text_if(self, field: str, max_length: int, *, must: bool, may: bool) -> None:
        value = getattr(self, field)
        if value and not may:
            _malformed(field, f"a statement that says {self.decision} has nothing here")
        check_text(value, field, max_length, empty=not must)

    def to_bytes(self) -> bytes:
        """The one canonical form, which is what gets signed."""
        return canonical_bytes(self.model_dump(mode="json"), max_bytes=MAX_STATEMENT)

    @classmethod
    def from_bytes(cls, statement: bytes) -> Self:
        """The claims in these bytes, if they are the canonical form with every field written out.

        Refused: `statement_malformed`, `statement_not_canonical`, and the rules of `check_text`.
        """
        if len(statement) > MAX_STATEMENT:
            raise Refused("statement_malformed", f"keep a statement within {MAX_STATEMENT} bytes", field="statement")
        claims = _validated(cls, statement)
        if claims.to_bytes() != statement:
            raise Refused("statement_not_canonical", "sign the canonical bytes, every field written", field="statement")
        return claims


class ProposalClaims(_Signed):
    """What an agent's service signs when it proposes. It has no authority beyond the grant of its key."""

    sub: Annotated[str, Field(pattern=r"^[A-Za-z0-9._/-]{1,120}$")]  # business key
    tenant: Annotated[str, Field(pattern=r"^[a-z0-9-]{1,40}$")]
    actor: Principal
    requested_by: Principal
    request_digest: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


@dataclass(frozen=True)
class PublicKeyEntry:
    """A public key and its owner. `x` is the raw Ed25519 key in base64url; `tenant` is set for grants only."""

    kid: str
    x: str
    owner: str
    revoked: bool = False
    tenant: str = ""


@dataclass(frozen=True)
class Verified:
    """A statement whose proof holds: what was said, with which key, by whom. Its times are not judged yet."""

    claims: Claims
    kid: str
    person: str


@dataclass(frozen=True)
class VerifiedProposal:
    """A proposal whose signature holds, and its key. Its times, and what the grant permits, are not judged yet."""

    claims: ProposalClaims
    kid: str


class Envelope(_Strict):
    """A statement on its way: base64url of its canonical bytes and of the sheet, without padding, and the proof."""

    statement: str
    scheme: str
    proof: str
    sheet: str = ""

    @classmethod
    def parse(cls, value: object) -> Self:
        """The envelope in a decoded JSON object. Refused: `statement_malformed`."""
        return _validated(cls, value)

    @property
    def statement_bytes(self) -> bytes:
        """The signed bytes. Refused: `statement_malformed`."""
        return _part(self.statement, "statement", MAX_STATEMENT)

    @property
    def sheet_bytes(self) -> bytes:
        """The sheet, or nothing. Refused: `statement_malformed`."""
        return _part(self.sheet, "sheet", MAX_SHEET)


def sign(claims: Claims, private_key: Ed25519PrivateKey, kid: str, sheet: bytes = b"") -> Envelope:
    """The statement with a detached JWS over its canonical bytes. Refused: `sheet_wrong` if it names another sheet."""
    statement = claims.to_bytes()
    _check_sheet(claims, sheet)
    headers = {"kid": kid, "typ": STATEMENT_HEADER}
    proof = PyJWS().encode(statement, private_key, algorithm=ALGORITHM, headers=headers, is_payload_detached=True)
    return Envelope(statement=to_base64url(statement), scheme=SCHEME, proof=proof, sheet=to_base64url(sheet))


def verify(envelope: Envelope, keys: Mapping[str, PublicKeyEntry], *, aud: str) -> Verified:
    """Who says what, proved: header, known and unrevoked key, signature, canonical bytes, audience, issuer, sheet.

    `keys` are people's keys by kid, of the configuration in force at acceptance. Times are not compared.
    Refused: `scheme_unknown`, `proof_malformed`, `algorithm_wrong`, `type_wrong`, `key_unknown`, `key_revoked`,
    `key_malformed`, `key_weak`, `signature_wrong`, `audience_wrong`, `issuer_wrong`, `sheet_wrong`, and the rules of
    `Claims.from_bytes`, `Envelope` and `read_sheet`.
    """
    if envelope.scheme != SCHEME:
        raise Refused("scheme_unknown", f"sign with scheme {SCHEME}", field="scheme")
    statement = envelope.statement_bytes
    if not _PROOF.fullmatch(envelope.proof):
        raise Refused("proof_malformed", "give a detached JWS: header, two dots, signature", field="proof")
    entry = _signer(envelope.proof, {"b64": False, "crit": ["b64"], "typ": STATEMENT_HEADER}, keys)
    try:
        PyJWS().decode_complete(envelope.proof, public_key(entry.x), [ALGORITHM], detached_payload=statement)
    except jwt.PyJWTError as error:
        raise Refused("signature_wrong", "sign exactly these bytes with the key that the kid names") from error
    claims = Claims.from_bytes(statement)
    _check_parties(claims.aud, aud, claims.iss, entry)
    _check_sheet(claims, envelope.sheet_bytes)
    return Verified(claims, entry.kid, entry.owner)


def sign_proposal(claims: ProposalClaims, private_key: Ed25519PrivateKey, kid: str) -> str:
    """A compact JWT of type `proposal+jwt`."""
    headers = {"kid": kid, "typ": PROPOSAL_HEADER}
    return jwt.encode(claims.model_dump(mode="json"), private_key, algorithm=ALGORITHM, headers=headers)


def verify_proposal(token: str, keys: Mapping[str, PublicKeyEntry], *, aud: str) -> VerifiedProposal:
    """Who proposes, proved. `keys` are the grants' keys by kid; the key decides the tenant. Times are not compared.

    Refused: `proposal_malformed`, `tenant_wrong`, and what `verify` says of header, key, signature and parties.
    """
    if type(token) is not str or len(token) > MAX_TOKEN or not _TOKEN.fullmatch(token):
        raise Refused("proposal_malformed", "give a compact JWT signed with EdDSA", field="token")
    entry = _signer(token, {"typ": PROPOSAL_HEADER}, keys)
    try:
        payload = PyJWS().decode_complete(token, public_key(entry.x), [ALGORITHM])["payload"]
    except jwt.PyJWTError as error:
        raise Refused("signature_wrong", "sign the token with the key that the kid names", field="token") from error
    claims = _validated(ProposalClaims, payload, rule="proposal_malformed")
    _check_parties(claims.aud, aud, claims.iss, entry)
    if claims.tenant != entry.tenant:
        raise Refused("tenant_wrong", "propose for the tenant that this key was granted", field="tenant")
    return VerifiedProposal(claims, entry.kid)


def new_private_key() -> Ed25519PrivateKey:
    """A fresh key from the operating system's randomness."""
    return Ed25519PrivateKey.generate()


def private_pem(key: Ed25519PrivateKey, passphrase: str | None) -> bytes:
    """The key as PKCS #8 PEM, encrypted unless `passphrase` is None."""
    clear, locked = serialization.NoEncryption, serialization.BestAvailableEncryption
    lock = clear() if passphrase is None else locked(passphrase.encode())
    return key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, lock)


def load_private_pem(pem: bytes, passphrase: str | None) -> Ed25519PrivateKey:
    """The Ed25519 key in this PEM. Refused: `key_unreadable` (damaged, another kind, wrong or missing passphrase)."""
    try:
        key = serialization.load_pem_private_key(pem, None if passphrase is None else passphrase.encode())
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise Refused("key_unreadable", "check the passphrase and the file of the private key") from error
    if not isinstance(key, Ed25519PrivateKey):
        raise Refused("key_unreadable", "use an Ed25519 key; `effects keys` makes one")
    return key


def public_x(key: Ed25519PrivateKey | Ed25519PublicKey) -> str:
    """The raw public key, 32 bytes in base64url: `x` in the configuration."""
    public = key.public_key() if isinstance(key, Ed25519PrivateKey) else key
    return to_base64url(public.public_bytes(serialization.Encoding.Raw, serialization.PublicFormat.Raw))


def key_id(name: str, x: str) -> str:
    """A name for this key: its holder and the first 8 characters of the RFC 7638 thumbprint."""
    thumbprint = hashlib.sha256(canonical_bytes({"crv": "Ed25519", "kty": "OKP", "x": x})).digest()
    return f"{name}-{to_base64url(thumbprint)[:8]}"


def public_key(x: str) -> Ed25519PublicKey:
    """The public key for `x`. Refused: `key_malformed`; `key_weak` for a point under which anything verifies."""
    raw = from_base64url(x, 32) or b""
    if len(raw) != 32:
        raise Refused("key_malformed", "give x as 32 bytes in base64url without padding", field="x")
    if (int.from_bytes(raw, "little") & (2**255 - 1)) in _SMALL_ORDER:
        raise Refused("key_weak", "make a new key; signatures under this one prove nothing", field="x")
    return Ed25519PublicKey.from_public_bytes(raw)


# The y coordinates of the points of small order, in both encodings: OpenSSL takes these as keys, and one signature then
# verifies for many messages, so that its holder could deny having signed.
_P, _Y8 = 2**255 - 19, 0x05FC536D880238B13933C6D305ACDFD5F098EFF289F4C345B027B2C28F95E826
_SMALL_ORDER = frozenset({0, 1, _P - 1, _P, _P + 1, _Y8, _P - _Y8})


def _signer(token: str, exact: dict[str, object], keys: Mapping[str, PublicKeyEntry]) -> PublicKeyEntry:
    """The key that the header names. A header holds the algorithm, the key id and `exact`, and nothing else."""
    try:
        header = PyJWS().get_unverified_header(token)
    except jwt.PyJWTError as error:
        raise Refused("proof_malformed", "sign again; the header cannot be read", field="proof") from error
    if header.get("alg") != ALGORITHM:
        raise Refused("algorithm_wrong", f"sign with {ALGORITHM}", field="proof")
    if header.get("typ") != exact["typ"]:
        raise Refused("type_wrong", f"sign with the header typ {exact['typ']}", field="proof")
    kid = header.get("kid")
    if type(kid) is not str or header != {**exact, "alg": ALGORITHM, "kid": kid}:
        raise Refused("proof_malformed", "sign with exactly the header fields alg, kid and typ", field="proof")
    entry = keys.get(kid)
    if entry is None:
        raise Refused("key_unknown", "sign with a key that the configuration names", field="kid")
    if entry.revoked:
        raise Refused("key_revoked", "sign with a key that is not revoked", field="kid")
    return entry


def _check_parties(said_aud: str, aud: str, iss: str, entry: PublicKeyEntry) -> None:
    if said_aud != aud:
        raise Refused("audience_wrong", f"sign for this ledger: aud is {aud}", field="aud")
    if iss != entry.owner:
        raise Refused("issuer_wrong", "sign in the name of the key's owner", field="iss")


def _check_sheet(claims: Claims, sheet: bytes) -> None:
    """The sheet is the one that the claims name, and shows the operation that they speak about."""
    if (sheet_digest(sheet).hex() if sheet else "") != claims.sheet:
        raise Refused("sheet_wrong", "send the sheet that the statement names, and only that", field="sheet")
    if sheet:
        parts = read_sheet(sheet)
        if (parts["fingerprint"], parts["operation"]["operation_id"]) != (claims.fingerprint, claims.sub):
            raise Refused("sheet_wrong", "the sheet shows another operation than the statement names", field="sheet")


def _validated(model: type[_Model], value: object, *, rule: str = "statement_malformed") -> _Model:
    try:
        return model.model_validate_json(value) if isinstance(value, bytes) else model.model_validate(value)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        field = visible(".".join(map(str, first["loc"]))[:80])
        raise Refused(rule, f"{field or model.__name__}: {first['msg'].lower()}", field=field) from None


def _malformed(field: str, message: str) -> NoReturn:
    raise Refused("statement_malformed", f"{field}: {message}", field=field)


def _part(text: str, field: str, max_bytes: int) -> bytes:
    raw = from_base64url(text, max_bytes)
    if raw is None:
        _malformed(field, f"give at most {max_bytes} bytes in base64url without padding")
    return raw
