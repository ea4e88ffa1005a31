"""Statements, proposals and keys: what verifies, and that every single departure from it is refused by its own rule."""

import base64
import hashlib
import json
import uuid
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, generate_private_key
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from jwt.api_jws import PyJWS

from ledger import fingerprint as fp
from ledger import statement as st
from ledger.errors import Refused
from ledger.statement import Claims, Envelope, ProposalClaims, PublicKeyEntry, StatementType

AUD = "ledger-test"
OPERATION = fp.operation_id(uuid.UUID(int=7), "acme", "order-1")
ALICE, BOT = Ed25519PrivateKey.from_private_bytes(b"a" * 32), Ed25519PrivateKey.from_private_bytes(b"b" * 32)
KEYS = {
    "alice-1": PublicKeyEntry("alice-1", st.public_x(ALICE), "alice"),
    "alice-0": PublicKeyEntry("alice-0", st.public_x(ALICE), "alice", revoked=True),
    "bob-1": PublicKeyEntry("bob-1", st.public_x(BOT), "bob"),
    "odd-1": PublicKeyEntry("odd-1", "AAAA", "alice"),
}
GRANTS = {"bot-1": PublicKeyEntry("bot-1", st.public_x(BOT), "support-bot", tenant="acme")}
# Enough of an identity for a sheet: the fields are those of fp.identity, their values do not matter here.
IDENTITY: dict[str, Any] = {**dict.fromkeys(fp.IDENTITY_FIELDS, ""), "operation_id": str(OPERATION)}
FINGERPRINT = fp.fingerprint(fp.canonical_bytes(IDENTITY)).hex()
SHEET = fp.build_sheet(IDENTITY, {"paid_minor": 9000}, [], 1_799_999_000, 1)
HEX = "cd" * 32
BASE: dict[str, Any] = {"iss": "alice", "aud": AUD, "iat": 1000, "exp": 2000, "jti": "0123456789"}
ON_OPERATION: dict[str, Any] = {**BASE, "sub": str(OPERATION), "fingerprint": FINGERPRINT}
FIELDS: dict[str, dict[str, Any]] = {
    "approval": {**ON_OPERATION, "sheet": fp.sheet_digest(SHEET).hex()},
    "decline": {**ON_OPERATION, "sheet": fp.sheet_digest(SHEET).hex(), "reason": "wrong customer"},
    "withdrawal": ON_OPERATION,
    "happened": {**ON_OPERATION, "trail_head": HEX, "evidence": "dashboard", "receipt": "re_1", "foreign": ("re_2",)},
    "did_not_happen": {**ON_OPERATION, "trail_head": HEX, "evidence": "provider's log", "foreign": ("re_2", "re_3")},
    "undetermined": {**ON_OPERATION, "trail_head": HEX, "evidence": "the log is gone"},
    "look_again": {**ON_OPERATION, "trail_head": HEX, "reason": "the provider was repaired"},
    "hold": {**BASE, "sub": "tenant:acme", "reason": "wave of complaints"},
    "release": {**BASE, "sub": "all", "reason": "settled"},
    "dummy": {**BASE, "sub": f"operation:{OPERATION}"},
}


def make(name: str, **changes: Any) -> Claims:
    decided = StatementType.RESOLUTION if name in st.DECISIONS[StatementType.RESOLUTION] else StatementType(name)
    decision = {"decision": name} if decided is StatementType.RESOLUTION else {}
    return Claims.make(**{"typ": decided, **decision, **FIELDS[name], **changes})


def sheet_of(claims: Claims) -> bytes:
    return SHEET if claims.sheet else b""


def refusal(call: Any, *args: Any, **kwargs: Any) -> str:
    with pytest.raises(Refused) as refused:
        call(*args, **kwargs)
    assert str(refused.value)
    return refused.value.rule


def b64(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


# Claims


@pytest.mark.parametrize("name", FIELDS)
def test_every_kind_of_statement_is_signed_and_verified_on_its_exact_bytes(name: str) -> None:
    claims = make(name)
    envelope = st.sign(claims, ALICE, "alice-1", sheet_of(claims))
    assert st.verify(envelope, KEYS, aud=AUD) == st.Verified(claims, "alice-1", "alice")
    assert envelope.statement_bytes == fp.canonical_bytes(json.loads(envelope.statement_bytes))
    assert json.loads(envelope.statement_bytes).keys() == Claims.model_fields.keys()
    again = Envelope.parse(json.loads(envelope.model_dump_json()))
    assert again == envelope


WRONG: list[tuple[str, str, list[Any]]] = [
    ("approval", "sheet", ["", HEX[:-1], HEX.upper(), HEX + "\n"]),
    ("approval", "fingerprint", [""]),
    ("approval", "trail_head", [HEX]),
    ("approval", "decision", ["decline", ""]),
    ("approval", "sub", ["tenant:acme", str(OPERATION).upper()]),
    ("approval", "evidence", ["x"]),
    ("approval", "receipt", ["re_1"]),
    ("approval", "foreign", [("re_1",)]),
    ("approval", "exp", [1000, 253_402_300_800]),
    ("approval", "iat", [-1, True, 1000.0]),
    ("approval", "jti", ["short", "0123456789\n"]),
    ("approval", "iss", ["Alice", "аlice", ""]),
    ("approval", "aud", [""]),
    ("approval", "typ", ["approval"]),
    ("approval", "more", [1]),
    ("decline", "sheet", [""]),
    ("withdrawal", "sheet", [HEX]),
    ("happened", "receipt", [""]),
    ("happened", "evidence", [""]),
    ("happened", "trail_head", [""]),
    ("happened", "foreign", [("re_1",), ("re_2", "re_2"), tuple(f"re_{i}" for i in range(10, 61))]),
    ("happened", "decision", ["maybe"]),
    ("did_not_happen", "receipt", ["re_1"]),
    ("did_not_happen", "foreign", [("",)]),
    ("undetermined", "evidence", [""]),
    ("look_again", "trail_head", [""]),
    ("look_again", "reason", [""]),
    ("look_again", "foreign", [("re_2",)]),
    ("hold", "reason", ["", "a\u202eb", "x" * 2001]),
    ("hold", "fingerprint", [HEX]),
    ("hold", "sub", ["tenant:ACME", "everything", "all\n", str(OPERATION)]),
    ("dummy", "fingerprint", [HEX]),
]


@pytest.mark.parametrize(("name", "field", "value"), [(n, f, value) for n, f, values in WRONG for value in values])
def test_a_statement_carries_exactly_what_its_type_needs(name: str, field: str, value: Any) -> None:
    with pytest.raises(Refused) as refused:
        make(name, **{field: value})
    assert refused.value.field == field
    assert refused.value.rule in {"statement_malformed", "text_empty", "text_hidden", "text_too_long"}


def test_a_resolution_must_say_which() -> None:
    fields = {**FIELDS["undetermined"], "typ": StatementType.RESOLUTION}
    assert refusal(Claims.make, **fields) == "statement_malformed"


@pytest.mark.parametrize("scope", ["all", "tenant:acme", "provider:stripe", f"operation:{OPERATION}"])
def test_holds_name_a_scope(scope: str) -> None:
    assert make("hold", sub=scope).sub == scope


def rewritten(**changes: Any) -> bytes:
    return json.dumps({**json.loads(make("approval").to_bytes()), **changes}, separators=(",", ":")).encode()


@pytest.mark.parametrize(
    ("statement", "rule"),
    [
        (b"", "statement_malformed"),
        (b"\xff", "statement_malformed"),
        (b"[]", "statement_malformed"),
        (b"null", "statement_malformed"),
        (b"[" * 30_000, "statement_malformed"),
        (b" " * (st.MAX_STATEMENT + 1), "statement_malformed"),
        (b'{"iat":' + b"9" * 5000 + b"}", "statement_malformed"),
        (rewritten(iat=1000.0), "statement_malformed"),
        (rewritten(typ="order"), "statement_malformed"),
        (rewritten(extra=1), "statement_malformed"),
        (make("approval").to_bytes() + b"\n", "statement_not_canonical"),
        (make("approval").to_bytes().replace(b'"aud":', b'"aud": '), "statement_not_canonical"),
        (make("approval").to_bytes().replace(b'"reason":"",', b""), "statement_not_canonical"),
        (make("approval").to_bytes().replace(b'{"aud"', b'{"aud":"x","aud"'), "statement_not_canonical"),
        (make("approval").to_bytes().replace(b'"alice"', b'"\\u0061lice"'), "statement_not_canonical"),
    ],
)
def test_one_meaning_has_one_form(statement: bytes, rule: str) -> None:
    """Signed correctly all the same: only the content is at fault."""
    headers = {"kid": "alice-1", "typ": st.STATEMENT_HEADER}
    proof = PyJWS().encode(statement, ALICE, "EdDSA", headers, is_payload_detached=True)
    assert refusal(Claims.from_bytes, statement) == rule
    envelope = Envelope(statement=b64(statement), scheme="jws", proof=proof)
    assert refusal(st.verify, envelope, KEYS, aud=AUD) == rule


# Proofs


def signed(**changes: Any) -> Envelope:
    return st.sign(make("approval"), ALICE, "alice-1", SHEET).model_copy(update=changes)


def proof_with(key: Any = ALICE, algorithm: str = "EdDSA", drop: str = "", **headers: Any) -> str:
    """A detached JWS over the approval whose header departs from ours in `headers`, made without PyJWT's checks."""
    header = {"alg": algorithm, "b64": False, "crit": ["b64"], "kid": "alice-1", "typ": st.STATEMENT_HEADER, **headers}
    header.pop(drop, None)
    first = b64(json.dumps(header).encode())
    return f"{first}..{b64(key.sign(first.encode() + b'.' + make('approval').to_bytes()))}"


def test_the_hand_made_proof_of_these_tests_is_accepted() -> None:
    assert st.verify(signed(proof=proof_with()), KEYS, aud=AUD).person == "alice"


PROOFS: dict[str, list[str]] = {
    "key_unknown": [proof_with(kid="nobody")],
    "key_revoked": [proof_with(kid="alice-0")],
    "key_malformed": [proof_with(kid="odd-1")],
    "signature_wrong": [proof_with(kid="bob-1"), proof_with(key=BOT), proof_with(b64=0), proof_with()[:-86] + "A" * 86],
    "issuer_wrong": [proof_with(key=BOT, kid="bob-1")],
    "algorithm_wrong": [*(proof_with(alg=alg) for alg in ("none", "HS256", "Ed25519", "")), proof_with(drop="alg")],
    "type_wrong": [proof_with(typ="JWT"), proof_with(typ="proposal+jwt"), proof_with(drop="typ")],
    "proof_malformed": [
        *(proof_with(drop=name) for name in ("kid", "b64", "crit")),
        *(proof_with(kid=kid) for kid in (1, None, ["alice-1"])),
        proof_with(b64=True),
        proof_with(crit=["b64", "exp"], exp=1),
        proof_with(jwk={"kty": "OKP"}),
        proof_with(jku="elsewhere"),
        "",
        "a..b",
        proof_with().replace("..", ".e30."),
        proof_with() + "\n",
        "_" * 40 + ".." + "a" * 86,
        b64(b"[" * 700) + ".." + "a" * 86,
        b64(b"[1]") + ".." + "a" * 86,
    ],
}


@pytest.mark.parametrize(("rule", "proof"), [(rule, proof) for rule, proofs in PROOFS.items() for proof in proofs])
def test_a_proof_that_departs_from_ours_is_refused(rule: str, proof: str) -> None:
    assert refusal(st.verify, signed(proof=proof), KEYS, aud=AUD) == rule


def test_the_proof_covers_every_byte() -> None:
    other = b64(make("approval", exp=2001).to_bytes())
    assert refusal(st.verify, signed(statement=other), KEYS, aud=AUD) == "signature_wrong"


@pytest.mark.parametrize(
    ("changes", "rule"),
    [
        ({"scheme": "webauthn"}, "scheme_unknown"),
        ({"scheme": ""}, "scheme_unknown"),
        ({"statement": "=="}, "statement_malformed"),
        ({"statement": "é"}, "statement_malformed"),
        ({"statement": "A" * 70_000}, "statement_malformed"),
        ({"sheet": "!"}, "statement_malformed"),
        ({"sheet": ""}, "sheet_wrong"),
        ({"sheet": b64(SHEET[:-1])}, "sheet_wrong"),
    ],
)
def test_an_envelope_that_departs_from_ours_is_refused(changes: dict[str, str], rule: str) -> None:
    assert refusal(st.verify, signed(**changes), KEYS, aud=AUD) == rule


def test_a_statement_without_a_sheet_takes_none() -> None:
    envelope = st.sign(make("withdrawal"), ALICE, "alice-1").model_copy(update={"sheet": b64(SHEET)})
    assert refusal(st.verify, envelope, KEYS, aud=AUD) == "sheet_wrong"
    assert refusal(st.sign, make("approval"), ALICE, "alice-1", b"") == "sheet_wrong"


def test_the_sheet_must_show_the_operation_that_is_approved() -> None:
    other = fp.build_sheet({**IDENTITY, "amount_minor": 1501}, {}, [], 1, 1)
    claims = make("approval", sheet=hashlib.sha256(other).hexdigest())
    assert refusal(st.sign, claims, ALICE, "alice-1", other) == "sheet_wrong"
    assert refusal(st.sign, make("approval", sub=str(uuid.uuid4())), ALICE, "alice-1", SHEET) == "sheet_wrong"


def test_a_sheet_that_we_would_not_make_is_refused_even_if_signed() -> None:
    claims = make("approval", sheet=hashlib.sha256(b"{}").hexdigest())
    assert refusal(st.sign, claims, ALICE, "alice-1", b"{}") == "sheet_malformed"


def test_audience_and_issuer_must_be_ours() -> None:
    assert refusal(st.verify, signed(), KEYS, aud="another-ledger") == "audience_wrong"
    envelope = st.sign(make("withdrawal", iss="bob"), ALICE, "alice-1")
    assert refusal(st.verify, envelope, KEYS, aud=AUD) == "issuer_wrong"


@pytest.mark.parametrize("value", [None, "", [], {}, {"statement": 1}, {**signed().model_dump(), "x": 1}, 5, b"{}"])
def test_what_is_no_envelope_is_refused(value: object) -> None:
    assert refusal(Envelope.parse, value) == "statement_malformed"


# Proposals

ASKED: dict[str, Any] = {
    "iss": "support-bot",
    "aud": AUD,
    "sub": "order-1",
    "tenant": "acme",
    "actor": "support-bot",
    "requested_by": "carol",
    "request_digest": HEX,
    "iat": 1000,
    "exp": 2000,
}


def token(key: Any = BOT, headers: dict[str, Any] | None = None, **claims: Any) -> str:
    named = {"kid": "bot-1", "typ": st.PROPOSAL_HEADER, **(headers or {})}
    return jwt.encode({**ASKED, **claims}, key, algorithm="EdDSA", headers=named)


def test_a_signed_proposal_is_verified_and_its_times_are_not_judged() -> None:
    signed_token = st.sign_proposal(ProposalClaims.make(**ASKED), BOT, "bot-1")
    proposal = st.verify_proposal(signed_token, GRANTS, aud=AUD)
    assert proposal == st.VerifiedProposal(ProposalClaims.make(**ASKED), "bot-1")
    assert jwt.get_unverified_header(signed_token) == {"alg": "EdDSA", "kid": "bot-1", "typ": "proposal+jwt"}


TOKENS: dict[str, list[Any]] = {
    "signature_wrong": [token(key=ALICE)],
    "key_unknown": [token(headers={"kid": "bot-2"}), token(headers={"kid": "alice-1"})],
    "type_wrong": [token(headers={"typ": "JWT"}), token(headers={"typ": "effect-statement"})],
    "proof_malformed": [token(headers={"x5u": "elsewhere"})],
    "audience_wrong": [token(aud="another-ledger")],
    "issuer_wrong": [token(iss="other-bot")],
    "tenant_wrong": [token(tenant="other")],
    "proposal_malformed": [
        token(aud=[AUD]),
        token(exp=1000),
        token(iat=1000.5),
        token(sub="a b"),
        token(requested_by="Carol"),
        token(request_digest="ab"),
        token(nbf=5),
        jwt.encode(ASKED, "x" * 40, algorithm="HS256", headers={"kid": "bot-1", "typ": "proposal+jwt"}),
        "",
        token() + "\n",
        "a" * 9000,
        None,
    ],
}


@pytest.mark.parametrize(("rule", "made"), [(rule, made) for rule, tokens in TOKENS.items() for made in tokens])
def test_any_other_proposal_is_refused(rule: str, made: Any) -> None:
    assert refusal(st.verify_proposal, made, GRANTS, aud=AUD) == rule


@pytest.mark.parametrize("missing", ASKED)
def test_every_claim_of_a_proposal_is_required(missing: str) -> None:
    claims = {name: value for name, value in ASKED.items() if name != missing}
    made = jwt.encode(claims, BOT, algorithm="EdDSA", headers={"kid": "bot-1", "typ": st.PROPOSAL_HEADER})
    assert refusal(st.verify_proposal, made, GRANTS, aud=AUD) == "proposal_malformed"


def test_no_algorithm_of_the_tokens_own_choice_is_used() -> None:
    """The classic confusion: a MAC under the public key. Its length is that of a signature; the header says HS512."""
    header = b64(json.dumps({"alg": "HS512", "kid": "bot-1", "typ": st.PROPOSAL_HEADER}).encode())
    made = f"{header}.{b64(json.dumps(ASKED).encode())}.{b64(hashlib.sha512(b'x').digest())}"
    assert refusal(st.verify_proposal, made, GRANTS, aud=AUD) == "algorithm_wrong"


# Keys


def test_private_keys_are_kept_under_a_passphrase() -> None:
    key = st.new_private_key()
    pem = st.private_pem(key, "correct horse")
    assert b"ENCRYPTED" in pem
    assert st.public_x(st.load_private_pem(pem, "correct horse")) == st.public_x(key) == st.public_x(key.public_key())
    assert st.public_x(st.load_private_pem(st.private_pem(key, None), None)) == st.public_x(key)
    for wrong in ("wrong", None):
        assert refusal(st.load_private_pem, pem, wrong) == "key_unreadable"
    assert refusal(st.load_private_pem, b"nonsense", None) == "key_unreadable"
    other = generate_private_key(SECP256R1()).private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    assert refusal(st.load_private_pem, other, None) == "key_unreadable"


def test_the_kid_carries_the_thumbprint_of_rfc_8037() -> None:
    """The key and its thumbprint are those of RFC 8037, appendix A.3."""
    assert st.key_id("alice", "11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo") == "alice-kPrK_qmx"


@pytest.mark.parametrize("x", ["", "AAAA", "A" * 44, "é" * 43, st.public_x(ALICE) + "="])
def test_an_x_that_is_no_key_is_refused(x: str) -> None:
    assert refusal(st.public_key, x) == "key_malformed"


SMALL_ORDER = [  # the y coordinates, little-endian, as libsodium lists them: 0, 1, two of order 8, p - 1, p, p + 1
    "00" * 32,
    "01" + "00" * 31,
    "26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05",
    "c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac037a",
    "ec" + "ff" * 30 + "7f",
    "ed" + "ff" * 30 + "7f",
    "ee" + "ff" * 30 + "7f",
]


@pytest.mark.parametrize("y", SMALL_ORDER)
def test_a_key_under_which_one_signature_proves_many_things_is_refused(y: str) -> None:
    raw = bytes.fromhex(y)
    for sign in (0, 0x80):
        assert refusal(st.public_key, b64(raw[:31] + bytes([raw[31] | sign]))) == "key_weak"


def test_such_a_key_would_otherwise_verify_anything() -> None:
    neutral = (1).to_bytes(32, "little")
    Ed25519PublicKey.from_public_bytes(neutral).verify(neutral + bytes(32), b"any message at all")
