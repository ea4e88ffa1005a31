"""Verifies an evidence bundle of Effect Ledger without the ledger: `python3 -I verify_evidence.py BUNDLE`.

It needs Python 3.11 and the package `cryptography`, and nothing of Effect Ledger: it follows the rules of docs/evidence.md,
written down once more. Every `check_` function is one line of the answer, in this order. Exit code 0: all of them hold.
1: at least one does not. 2: wrong usage. Without `--config SHA256` you believe the keys that stand in the bundle. Without
`--checkpoint FILE X`, X being its signer's public key, you believe that this is the whole trail, and that there was no other.
"""

import argparse
import base64
import hashlib
import json
import sys
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

# Every edge: its number, where it starts, where it ends. Nothing else moves an operation.
EDGES = """
1 - proposed, 2 proposed awaiting_approval, 3 proposed approved, 4 proposed blocked, 5 awaiting_approval approved,
6 awaiting_approval blocked, 7 approved in_flight, 8 approved blocked, 9 approved awaiting_approval,
10 in_flight succeeded, 11 in_flight rejected, 12 in_flight approved, 13 in_flight unknown, 14 unknown in_flight,
15 unknown succeeded, 16 unknown rejected, 17 unknown approved, 18 unknown needs_review, 19 needs_review succeeded,
20 needs_review rejected, 21 needs_review undetermined, 22 needs_review unknown, 23 needs_review rejected,
23 needs_review approved"""
MOVES = {(int(number), source, target) for number, source, target in map(str.split, EDGES.split(","))}
# Every field of format v1: what is not expected is not believed. An event of the ledger's that concerns others has no body.
EVENT = "number at kind edge source target fence hash"
TRAIL = "event_count head_hash events"
TOP = "kind ledger configurations operation sheets statements unproved"
OPERATION = "operation_id canonical token state receipt standing contradicted frozen_request frozen_contract"
ENDED_BY_PEOPLE = {19: "happened", 20: "did_not_happen", 21: "undetermined"}
LEEWAY = 120 + 60  # seconds: that of the ledger on times of tokens, and what a transaction may take to write its event
_P, _Y8 = 2**255 - 19, 0x05FC536D880238B13933C6D305ACDFD5F098EFF289F4C345B027B2C28F95E826
WEAK = {0, 1, _P - 1, _P, _P + 1, _Y8, _P - _Y8}  # points of small order: under such a key anything verifies


class Doubt(Exception):
    """Something in the bundle is not what it must be."""


def need(fits: object, what: str) -> None:
    """Doubt, unless it fits."""
    if not fits:
        raise Doubt(what)


def read(text: str) -> Any:
    """JSON in which no object has a key twice."""

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        need(len(dict(pairs)) == len(pairs), "an object has a key twice")
        return dict(pairs)

    return json.loads(text, object_pairs_hook=once)


def canonical(value: Any) -> str:
    """RFC 8785 for JSON without fractions, which is all that is signed: keys in the order of their UTF-16, no spaces."""

    def ordered(part: Any) -> Any:
        need(not isinstance(part, float), "a fraction has no canonical form here")
        if isinstance(part, dict):
            return {key: ordered(part[key]) for key in sorted(part, key=lambda name: name.encode("utf-16-be"))}
        return [ordered(one) for one in part] if isinstance(part, list) else part

    return json.dumps(ordered(value), ensure_ascii=False, separators=(",", ":"))


def read_canonical(text: str) -> Any:
    """The value of a text that must be the canonical form of it."""
    value = read(text)
    need(canonical(value) == text, "it is not in canonical form")
    return value


def sha256(text: str) -> str:
    """As 64 hex digits."""
    return hashlib.sha256(text.encode()).hexdigest()


def unbase64(text: str) -> bytes:
    """Base64url without padding, in its only spelling."""
    raw = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
    need(base64.urlsafe_b64encode(raw).rstrip(b"=").decode() == text, "base64url in another spelling")
    return raw


def signed_by(x: str, header: str, payload: str, signature: str) -> None:
    """Return only if the Ed25519 key `x` signed header and payload, as a JWS joins them."""
    raw = unbase64(x)
    need((int.from_bytes(raw, "little") & (2**255 - 1)) not in WEAK, "the key is weak: it proves nothing")
    Ed25519PublicKey.from_public_bytes(raw).verify(unbase64(signature), f"{header}.{payload}".encode())


def detached(proof: str, payload: str, typ: str, x: str) -> str:
    """The key id of a detached JWS (RFC 7797) whose header has exactly our fields and that the key `x` made."""
    header, nothing, signature = proof.split(".")
    said = read(unbase64(header).decode())
    wanted = {"alg": "EdDSA", "b64": False, "crit": ["b64"], "kid": said.get("kid"), "typ": typ}
    need(not nothing and said == wanted, "the header of the proof has other fields")
    signed_by(x, header, payload, signature)
    return str(said["kid"])


def in_time(claims: dict[str, Any], at: str) -> bool:
    """Whether what was signed was valid when its event was written."""
    return bool(claims["iat"] - LEEWAY <= datetime.fromisoformat(at).timestamp() <= claims["exp"] + LEEWAY)


class Bundle:
    """The parts of a bundle, read and not believed."""

    def __init__(self, text: str, known: list[str], checkpoint: list[str]) -> None:
        self.known, self.checkpoint = known, checkpoint  # what the auditor has from elsewhere
        self.all: dict[str, Any] = read(text)
        self.ledger, self.operation = self.all["ledger"], self.all["operation"]
        self.bodies = {event["number"]: read(event["body"]) for event in self.operation["events"]}
        self.asked: dict[str, Any] = read_canonical(self.operation["canonical"])
        self.fingerprint = sha256("effect-ledger/operation/v1\n" + self.operation["canonical"])
        self.documents = {one["version"]: read_canonical(one["document"]) for one in self.all["configurations"]}
        self.applied = [(e["at"], read(e["body"])) for e in self.ledger["events"] if e["kind"] == "config_applied"]
        self.statements = [read_canonical(one["statement"]) for one in self.all["statements"]]
        first = self.documents[self.asked["config_version"]]
        self.name: str = first["ledger"]["name"]
        rules = {(r["tenant"], r["action"], r.get("currency", "")): r for r in first["rules"]}
        self.rule = rules[self.asked["tenant"], self.asked["action"], self.asked["currency"] or ""]

    def told(self, *kinds: str) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
        """The operation's events of these kinds, or all, with what their bodies say."""
        return ((e, self.bodies[e["number"]]) for e in self.operation["events"] if not kinds or e["kind"] in kinds)

    def in_force(self, at: str) -> Any:
        """The configuration at that moment, by the ledger's own trail: it cannot change while somebody judges by it."""
        return self.documents[[body["version"] for applied, body in self.applied if applied < at][-1]]

    def standing(self, person: str, kid: str, at: str) -> dict[str, Any]:
        """The person, with the key as `x`; nothing if either of them was unknown or revoked at that moment."""
        people = [one for one in self.in_force(at)["people"] if one["name"] == person and not one.get("revoked")]
        keys = [key for one in people for key in one["keys"] if key["kid"] == kid and not key.get("revoked")]
        return {**people[0], "x": keys[0]["x"]} if keys else {}

    def signers(self, decision: str, before: int) -> dict[str, str]:
        """Who said this in a statement that was accepted before this event, with the key."""
        told = [body for event, body in self.told("statement_accepted") if event["number"] < before]
        return {body["person"]: body["kid"] for body in told if body["decision"] == decision}


def check_form(bundle: Bundle) -> None:
    """It has the fields of format v1 and no others"""
    parts = [(bundle.all, TOP), (bundle.ledger, f"namespace {TRAIL}"), (bundle.operation, f"{OPERATION} {TRAIL}")]
    parts += [(bundle.all["unproved"], "look_details late_sends")]
    parts += [(one, "version document") for one in bundle.all["configurations"]]
    parts += [(one, "statement scheme proof") for one in bundle.all["statements"]]
    parts += [(event, EVENT + " body") for event, _ in bundle.told()]
    parts += [
        (e, EVENT + (" body" if e["kind"] == "config_applied" else " body_digest")) for e in bundle.ledger["events"]
    ]
    for part, fields in parts:
        need(set(part) == set(fields.split()), f"missing or unknown: {set(part) ^ set(fields.split())}")
        numbers = {"version", "event_count", "number", "fence"} & set(part)
        need(all(type(part[name]) is int for name in numbers), "a number is none")
    need(bundle.all["kind"] == "effect-ledger/evidence/v1", "it is of another kind")


def check_chain(bundle: Bundle) -> None:
    """Both trails are whole: numbers without a gap, each event hashed over the one before, up to the head"""
    for trail in (bundle.ledger, bundle.operation):
        stream = trail["namespace" if trail is bundle.ledger else "operation_id"]
        before = b""
        for number, event in enumerate(trail["events"], start=1):
            moment = datetime.fromisoformat(event["at"])
            need(moment.strftime("%Y-%m-%dT%H:%M:%S.%fZ") == event["at"], f"event {number}: a time in another form")
            micros = (moment - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)
            fields = (event["kind"], event["edge"], event["source"], event["target"], event["fence"])
            need("" not in fields, f"event {number} has something empty")  # it would be hashed as nothing is
            words = ["" if field is None else str(field) for field in (stream, number, micros, *fields)]
            line = hashlib.sha256("\n".join(words).encode()).digest()
            body = sha256(event["body"]) if "body" in event else event["body_digest"]
            need(bytes.fromhex(body).hex() == body, f"event {number}: a digest in another form")
            before = hashlib.sha256(before + line + bytes.fromhex(body)).digest()
            need((event["number"], event["hash"]) == (number, before.hex()), f"{stream}: event {number} does not fit")
        ends = trail["event_count"] == len(trail["events"]) and trail["head_hash"] == before.hex()
        need(ends, f"{stream} does not end in its head")


def check_configurations(bundle: Bundle) -> None:
    """Every configuration in force meanwhile is there, as the ledger's own trail tells it, and known if you know any"""
    first, events = bundle.asked["config_version"], bundle.operation["events"]
    need(any(body["version"] == first for at, body in bundle.applied if at < events[0]["at"]), "it came later")
    until = max(body["version"] for at, body in bundle.applied if at < events[-1]["at"])
    versions = [one["version"] for one in bundle.all["configurations"]]
    need(versions == list(range(first, until + 1)), f"{first} to {until} are needed, {versions} are there")
    told = {body["version"]: body["digest"] for _, body in bundle.applied}
    for one in bundle.all["configurations"]:
        digest = sha256(one["document"])
        need(told[one["version"]] == digest, f"configuration {one['version']} is another one")
        need(not bundle.known or digest in bundle.known, f"configuration {one['version']} is {digest}")


def check_state(bundle: Bundle) -> None:
    """Every move goes along an edge from where the last one ended, and the last one ends in the state"""
    state = "-"
    for event, _ in bundle.told():
        need((event["kind"] == "moved") == (event["edge"] is not None), f"event {event['number']} is half a move")
        if event["edge"] is not None:
            move = (event["edge"], event["source"] or "-", event["target"])
            need(move in MOVES and move[1] == state, f"event {event['number']} moves from {move[1]}, it was {state}")
            state = event["target"]
    need(state == bundle.operation["state"], f"the trail ends in {state}")
    need(bundle.operation["contradicted"] is any(bundle.told("contradiction")), "evidence against it is told otherwise")


def check_identity(bundle: Bundle) -> None:
    """What is asked for is told by event 1, and named after ledger, tenant and business key"""
    asked = bundle.asked
    need(bundle.bodies[1]["fingerprint"] == bundle.fingerprint, "event 1 tells another fingerprint")
    namespace = uuid.UUID(bundle.ledger["namespace"])
    derived = str(uuid.uuid5(namespace, canonical([asked["tenant"], asked["business_key"]])))
    need(asked["operation_id"] == derived == bundle.operation["operation_id"], f"its id should be {derived}")
    need(asked["idempotency_key"] == f"effect-{derived}", "its idempotency key is not the one of its id")
    need(asked["policy_version"] == sha256(canonical(bundle.rule)), "its rule is not the one of its configuration")


def check_proposal(bundle: Bundle) -> None:
    """The proposal is signed, in time, by a key that was granted this tenant, actor and action"""
    asked = bundle.asked
    header, payload, signature = bundle.operation["token"].split(".")
    said, claims = read(unbase64(header).decode()), read(unbase64(payload).decode())
    need(said == {"alg": "EdDSA", "kid": said.get("kid"), "typ": "proposal+jwt"}, "its header has other fields")
    grant = next(g for g in bundle.documents[asked["config_version"]]["grants"] if g["kid"] == said["kid"])
    signed_by(grant["x"], header, payload, signature)
    wanted = {"aud": bundle.name, "iss": grant["name"], "sub": asked["business_key"]}
    wanted |= {name: asked[name] for name in ("tenant", "actor", "requested_by", "request_digest")}
    need({name: claims.get(name) for name in wanted} == wanted, "it speaks of something else")
    granted = grant["tenant"] == asked["tenant"] and asked["actor"] in grant["actors"]
    need(granted and asked["action"] in grant["actions"] and not grant.get("revoked"), "its key was not granted this")
    need(in_time(claims, bundle.operation["events"][0]["at"]), "it was not valid when it was recorded")


def check_sheets(bundle: Bundle) -> None:
    """Every sheet that was made is there, and shows this operation"""
    made = list(dict.fromkeys(body["digest"] for _, body in bundle.told("sheet_made")))
    need([sha256(sheet) for sheet in bundle.all["sheets"]] == made, "the trail tells of other sheets")
    shown = {canonical(read_canonical(sheet)["operation"]) for sheet in bundle.all["sheets"]}
    need(shown <= {bundle.operation["canonical"]}, "one of them shows another operation")


def check_statements(bundle: Bundle) -> None:
    """Every accepted statement is there, signed by a key in force then, about this operation, sheet and trail"""
    accepted = list(bundle.told("statement_accepted"))
    need([s["jti"] for s in bundle.statements] == [body["jti"] for _, body in accepted], "the trail tells of others")
    for kept, claims, (event, body) in zip(bundle.all["statements"], bundle.statements, accepted, strict=True):
        need(kept["scheme"] == "jws", "a proof of an unknown scheme")
        signer = bundle.standing(body["person"], body["kid"], event["at"])
        need(signer, f"{body['kid']} of {body['person']} was unknown or revoked")
        kid = detached(kept["proof"], kept["statement"], "effect-statement", signer["x"])
        need((body["person"], body["kid"]) == (claims["iss"], kid), "the trail names another signer")
        told = ("typ", "decision", "evidence", "receipt")
        need([body[name] for name in told] == [claims[name] for name in told], "the trail tells other words")
        about = (claims["aud"], claims["sub"], claims["fingerprint"])
        need(about == (bundle.name, bundle.asked["operation_id"], bundle.fingerprint), "it is about something else")
        need(in_time(claims, event["at"]), "it was accepted outside of its times")
        sheets = [body["digest"] for e, body in bundle.told("sheet_made") if e["number"] < event["number"]]
        heads = [e["hash"] for e, _ in bundle.told() if e["number"] < event["number"]]
        need(claims["sheet"] in (sheets if claims["typ"] in ("approval", "decline") else [""]), "another sheet")
        need(claims["trail_head"] in (heads if claims["typ"] in ("resolution", "look_again") else [""]), "another head")


def may_approve(bundle: Bundle, person: str, kid: str, at: str) -> bool:
    """Whether this person could approve this operation at that moment: in force, in the role, within the limit, another."""
    asked, roles = bundle.asked, bundle.standing(person, kid, at).get("roles", [])
    wanted = (asked["tenant"], bundle.rule["role"], asked["currency"] or "")
    limits = [r.get("limit_minor") or 0 for r in roles if (r["tenant"], r["role"], r.get("currency", "")) == wanted]
    enough = (asked["amount_minor"] or 0) <= max(limits, default=-1)
    return enough and person not in (asked["actor"], asked["requested_by"])


def check_authority(bundle: Bundle) -> None:
    """What was let through was waived by the rule or approved by enough people; where people ended it, operators did"""
    asked, rule, people_needed = bundle.asked, bundle.rule, max(1, bundle.rule["approvers"])
    for event, body in bundle.told("moved"):
        number, at, edge = event["number"], event["at"], event["edge"]
        if edge == 3:
            within = 0 < (asked["amount_minor"] or 0) <= rule.get("waive_up_to_minor", 0)
            free = rule["approvers"] == 0 or rule.get("waive_after") or within
            need(free and not asked["distinct_from"], f"event {number}: the rule does not waive the person")
        if edge == 5:
            said = bundle.signers("approve", number).items()
            able = [person for person, kid in said if person in body["people"] and may_approve(bundle, person, kid, at)]
            need(len(able) >= people_needed, f"event {number}: {len(able)} of those who approved could do so")
        if edge == 7:
            need(bundle.documents[body["config_version"]] == bundle.in_force(at), f"event {number}: by other rules")
        if edge in ENDED_BY_PEOPLE and "by" in body:  # without it, a machine had proof
            said = bundle.signers(ENDED_BY_PEOPLE[edge], number).items()
            tenants = [bundle.standing(person, kid, at).get("operator_of", []) for person, kid in said]
            able = [one for one in tenants if {"*", asked["tenant"]} & set(one)]
            need(len(able) >= 2 - bool(body.get("read_at_provider")), f"event {number}: {len(able)} operators said so")


def check_sent(bundle: Bundle) -> None:
    """Each claim opened one attempt, with the request and contract that were frozen, under the one key"""
    names, opened = ("request", "contract"), list(bundle.told("attempt_opened"))
    texts = {name: bundle.operation[f"frozen_{name}"] for name in names}
    frozen = {name: None if text is None else sha256(text) for name, text in texts.items()}
    claims = [event["fence"] for event, _ in bundle.told() if event["edge"] in (7, 14)]
    need(claims == [event["fence"] for event, _ in opened] == list(range(1, len(claims) + 1)), "claims and attempts")
    told = [{name: body[name] for name in names} for _, body in opened]
    need(frozen == (told[-1] if told else dict.fromkeys(names)), "the trail tells of other frozen bytes")
    need(all(one[name] in (None, frozen[name]) for one in told for name in names), "something else was frozen before")
    request = read(texts["request"] or bundle.operation["canonical"])  # nothing is sent where the effect is there
    need(all(request[name] == bundle.asked[name] for name in ("idempotency_key", "account")), "another key or account")


def check_answers(bundle: Bundle) -> None:
    """Outcomes become definite once, and the receipt is one that an answer, a look or people proved"""
    outcomes: dict[int, str] = {}
    seen = [(s["receipt"], standing) for s in bundle.statements if s["receipt"] for standing in ("good", "pending")]
    for event, body in bundle.told("attempt_answered", "late_answer", "sighting", "sighting_same"):
        if "attempt" in body:
            need(outcomes.get(body["attempt"], "unknown") == "unknown", f"event {event['number']}: answered before")
            outcomes[body["attempt"]] = body["outcome"]
            seen += [(body["receipt"], body["standing"])] if body["outcome"] == "applied" else []
        else:
            seen += [(e["receipt"], e["standing"]) for e in body["effects"] if e["marked"] and e["matching"]]
    changed = [(body["receipt"], body["standing"]) for _, body in bundle.told("standing_changed")]
    seen = changed[-1:] or seen
    kept = (bundle.operation["receipt"], bundle.operation["standing"])
    need(kept in (seen if bundle.operation["state"] == "succeeded" else [(None, None)]), "the trail does not prove it")


def check_checkpoint(bundle: Bundle) -> None:
    """The checkpoint is signed by the key that you gave, and both trails begin with what it says of them"""
    file, x = bundle.checkpoint
    *lines, last = Path(file).read_text().splitlines(keepends=True)
    seal = read(last)
    detached(seal["proof"], seal["statement"], "effect-checkpoint", x)
    said, digest = read_canonical(seal["statement"]), sha256("effect-ledger/checkpoint/v1\n" + "".join(lines))
    whose = (bundle.name, bundle.ledger["namespace"], len(lines), digest)
    need((said["aud"], said["namespace"], said["trails"], said["digest"]) == whose, "it signs something else")
    heads = {stream: (count, head) for stream, count, head in map(read, lines)}
    for stream, trail in ((said["namespace"], bundle.ledger), (bundle.asked["operation_id"], bundle.operation)):
        need(stream in heads, f"it does not name {stream}: take one that was written later")
        count, head = heads[stream]
        need([e["hash"] for e in trail["events"]][count - 1 : count] == [head], f"{stream} was cut or made anew")


CHECKS = (
    check_form, check_chain, check_configurations, check_state, check_identity, check_proposal, check_sheets,
    check_statements, check_authority, check_sent, check_answers, check_checkpoint,
)  # fmt: skip
UNBELIEVED = (Doubt, InvalidSignature, LookupError, ValueError, TypeError, AttributeError, StopIteration, OSError)


def objections(text: str, known: list[str], checkpoint: list[str]) -> dict[str, str]:
    """Each check in words, with what it objects to: nothing where it holds. What cannot be read does not hold."""
    found: dict[str, str] = {}
    try:
        bundle = Bundle(text, known, checkpoint)
        for check in CHECKS if checkpoint else CHECKS[:-1]:
            words = str(check.__doc__)
            found[words] = ""
            try:
                check(bundle)
            except UNBELIEVED as error:
                found[words] = f"{type(error).__name__} {error}".removeprefix("Doubt ")
    except (*UNBELIEVED, RecursionError) as error:
        found["It can be read"] = f"{type(error).__name__} {error}"
    return found


def main() -> int:
    """Print every check with its answer, and what to compare with what you know."""
    parser = argparse.ArgumentParser(description="Verify an evidence bundle of Effect Ledger, offline.")
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--config", metavar="SHA256", action="append", default=[], help="a configuration that you know")
    parser.add_argument("--checkpoint", metavar=("FILE", "X"), nargs=2, default=[], help="one you kept, and its key")
    given = parser.parse_args()
    if not given.bundle.is_file():
        parser.error(f"there is no file {given.bundle}")
    text = given.bundle.read_bytes().decode(errors="replace")
    found = objections(text, given.config, given.checkpoint)
    for words, why in found.items():
        print(ascii(f"NO  {words}: {why}" if why else f"ok  {words}")[1:-1])  # no text of a bundle acts on a terminal
    if any(found.values()):
        return 1
    bundle = Bundle(text, [], [])
    for version, document in bundle.documents.items():
        print(f"compare: configuration {version} is {sha256(canonical(document))}")
    print(ascii(f"It holds: {bundle.asked['operation_id']} of {bundle.name} is {bundle.operation['state']}.")[1:-1])
    return 0


if __name__ == "__main__":
    sys.exit(main())
