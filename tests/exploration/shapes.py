"""What is explored: contracts of every shape on a coarse clock, the configuration, and the operations that are asked for.

One tick is ten minutes, so that every pause of the product (five minutes held, an hour between slow looks) is some ticks.
With one attempt claimed at 0: the guard lets through until 1, a stopped sender leaves by 3, the lease is over at 5, quiet at
3, settled at 4, the key's window closes at 6, the approval ends at 6.5, a person is told from 8, the key may go at 12.
"""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any
from uuid import UUID

from ledger import fingerprint
from ledger.config import Binding, Document, Grant, Key, Ledger, Person, Role, Rule, rule_version
from ledger.contract import Contract, KeyTerms, LookupTerms, Timing
from ledger.model import Operation
from ledger.statement import key_id, new_private_key, public_x
from ledger.states import State

TICK = 600.0  # seconds
START = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
APPROVAL_ENDS, REVIEW_AFTER = 6.5, 8  # ticks
LIFETIME = 12
MARGIN = 3  # as long as the slack: what is sent at the last permitted moment may leave that much later
DEADLINE, PROCESSING, ROLLING, SLACK = 1, 1, 2, 3
ACCOUNT, CAPTURED = "acct_1", 4_000


def at(tick: float) -> datetime:
    """The moment of a tick."""
    return START + timedelta(seconds=tick * TICK)


_TIMING = Timing(
    send_within=TICK, call_deadline=DEADLINE * TICK, slack=SLACK * TICK, backoff=TICK, backoff_cap=2 * TICK
)
_KEY = KeyTerms(lifetime=LIFETIME * TICK, margin=MARGIN * TICK, stores_server_errors=True, stores_refusals=True)
_LOOKUP = LookupTerms(marker="id", settling=TICK, complete=True, marker_editable=True)


def _contract(name: str, **terms: Any) -> Contract:
    return Contract(name=name, processing=PROCESSING * TICK, timing=_TIMING, **terms)


KEY_AND_LOOKUP = _contract("key and lookup", key=_KEY, lookup=_LOOKUP, effect_can_change=True)
ROLLING_KEY = _contract("key, lookup and roll-forward", key=_KEY, lookup=_LOOKUP, roll_forward=ROLLING * TICK)
KEY_ONLY = _contract("key only", key=_KEY)
LOOKUP_ONLY = _contract("lookup only", lookup=_LOOKUP, roll_forward=ROLLING * TICK)
WITNESSED = _contract("conditional, witness", lookup=_LOOKUP, conditional_write=True, witness=True)
UNWITNESSED = _contract("conditional, no witness", lookup=_LOOKUP, conditional_write=True, effect_can_change=True)
NEITHER = _contract("neither")
SHAPES = (KEY_AND_LOOKUP, ROLLING_KEY, KEY_ONLY, LOOKUP_ONLY, WITNESSED, UNWITNESSED, NEITHER)

_KEYS = {name: public_x(new_private_key()) for name in ("bot", "alice", "bob")}


def _key_of(name: str, *, revoked: bool = False) -> Key:
    return Key(kid=key_id(name, _KEYS[name]), x=_KEYS[name], revoked=revoked)


@lru_cache
def document(config: int) -> Document:
    """One tenant; alice and bob may approve. 0: all in force, 1: alice is revoked, 2: the grant is, 3: the rule is another."""
    bot = _key_of("bot", revoked=config == 2)
    rule = Rule(
        tenant="acme",
        action="refund",
        currency="eur",
        max_amount_minor=60_000 if config == 3 else 50_000,
        approvers=1,
        role="refunds",
        waive_up_to_minor=3_000,
        waive_total_per_target_minor=9_000,
        waive_total_per_actor_day_minor=90_000,
        evidence_required=False,
        approval_lifetime_seconds=int(APPROVAL_ENDS * TICK),
        review_after_seconds=int(REVIEW_AFTER * TICK),
        statement_lifetime_seconds=3_600,
    )
    role = Role(tenant="acme", role="refunds", limit_minor=50_000, currency="eur")
    return Document(
        ledger=Ledger(name="explored"),
        bindings=(Binding(tenant="acme", provider="bank", account=ACCOUNT, livemode=False, secret="bank_secret"),),
        rules=(rule,),
        grants=(Grant(**bot.model_dump(), name="bot", tenant="acme", actors=("bot",), actions=("refund",)),),
        people=tuple(
            Person(name=name, keys=(_key_of(name),), roles=(role,), revoked=config == 1 and name == "alice")
            for name in ("alice", "bob")
        ),
    ).in_order()


def kid_of(person: str) -> str:
    """The id of somebody's key."""
    return key_id(person, _KEYS.get(person, _KEYS["alice"]))


def _operation_id(index: int) -> UUID:
    return fingerprint.operation_id(UUID(int=4), "acme", f"order-{index}")


def _need(index: int) -> dict[str, str]:
    return {
        "operation_id": str(_operation_id(index)),
        "business_key": f"order-{index}",
        "state": State.SUCCEEDED.value,
    }


@lru_cache
def proposed(index: int, amount: int, versioned: bool, needs: int | None = None) -> Operation:
    """The operation as `propose` would record it at tick 0. Up to 30.00 the rule waives the person.

    `needs` is the index of another one, which must succeed before.
    """
    depends_on = [] if needs is None else [_need(needs)]
    arguments = {"amount_minor": amount, "currency": "eur"}
    operation_id = _operation_id(index)
    version = "v1" if versioned else None
    identity: dict[str, Any] = {
        "operation_id": operation_id,
        "tenant": "acme",
        "business_key": f"order-{index}",
        "actor": "bot",
        "requested_by": "mia",
        "action": "refund",
        "provider": "bank",
        "account": ACCOUNT,
        "livemode": False,
        "target": "pay_1",
        "arguments": arguments,
        "amount_minor": amount,
        "currency": "eur",
        "expected_version": version,
        "evidence": [],
        "distinct_from": [],
        "depends_on": depends_on,
        "supersedes": None,
        "equivalence_key": f"pay_1/{amount}/eur",
        "policy_version": rule_version(document(0), "acme", "refund", "eur"),
        "config_version": 1,
        "request_digest": fingerprint.request_digest("refund", "pay_1", arguments, [], [], version, depends_on, None),
        "idempotency_key": fingerprint.idempotency_key(operation_id),
    }
    expires = at(APPROVAL_ENDS)
    canonical = fingerprint.canonical_bytes(
        fingerprint.identity(**identity, approval_expires_at=int(expires.timestamp()))
    )
    made = Operation(
        **identity,
        canonical=canonical,
        fingerprint=fingerprint.fingerprint(canonical),
        approval_expires_at=expires,
        kid=kid_of("bot"),
        state=State.PROPOSED,
        proposed_at=at(0),
    )
    return replace(made, next_step="judge", next_step_at=at(0))
