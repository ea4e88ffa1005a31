"""The world's state: clock, settings, accounts, payments, refunds and what is due later; SQL and nothing else."""

from __future__ import annotations

import json
import secrets
import sqlite3
import time
from typing import Any

from devstack.stripe_standin.refunds import RefundQuery
from devstack.stripe_standin.rules import Settings
from devstack.stripe_standin.schema import Database
from devstack.stripe_standin.shapes import FREED, Payment, Refund
from devstack.stripe_standin.webhooks import event_text, events_of_change, events_of_new

_PAYMENT = """
    select payment_intent, charge, account, livemode, amount, captured, currency, status, disputed, refundable,
           customer, metadata, created
      from payments
"""
_REFUND = """
    select r.number, r.refund, r.payment_intent, p.charge, p.account, p.livemode, r.amount, p.currency, r.status,
           r.reason, r.failure_reason, r.pending_reason, r.metadata, r.flags, r.created
      from refunds r
      join payments p using (payment_intent)
     where r.rolled_back = 0
"""


class World:
    """Callers open the transaction where several of these belong together."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self.sql = database.connection

    # Clock and settings.

    def now(self) -> float:
        """Real time and the offset; everything that has an age here has it on this clock."""
        return time.time() + self.offset()

    def offset(self) -> float:
        row = self.sql.execute("select value from settings where name = 'offset_seconds'").fetchone()
        return 0.0 if row is None else float(row["value"])

    def set_offset(self, seconds: float) -> None:
        self._set("offset_seconds", str(seconds))

    def settings(self) -> Settings:
        row = self.sql.execute("select value from settings where name = 'settings'").fetchone()
        return Settings() if row is None else Settings.model_validate_json(row["value"])

    def set_settings(self, settings: Settings) -> None:
        self._set("settings", settings.model_dump_json())

    def _set(self, name: str, value: str) -> None:
        self.sql.execute(
            "insert into settings (name, value) values (:name, :value)"
            " on conflict (name) do update set value = excluded.value",
            {"name": name, "value": value},
        )

    # Accounts and keys.

    def add_account(self, account: str, platform: str | None) -> None:
        self.sql.execute(
            "insert into accounts (account, platform, created) values (:account, :platform, :created)"
            " on conflict (account) do update set platform = excluded.platform",
            {"account": account, "platform": platform, "created": self.now()},
        )

    def add_key(self, secret_key: str, account: str) -> None:
        """The prefix of a key says its mode, as with Stripe's own."""
        self.sql.execute(
            "insert into secret_keys (secret_key, account, livemode) values (:secret_key, :account, :livemode)"
            " on conflict (secret_key) do update set account = excluded.account",
            {"secret_key": secret_key, "account": account, "livemode": "_live_" in secret_key[:8]},
        )

    def find_key(self, secret_key: str) -> tuple[str, bool] | None:
        row = self.sql.execute(
            "select account, livemode from secret_keys where secret_key = :secret_key", {"secret_key": secret_key}
        ).fetchone()
        return None if row is None else (row["account"], bool(row["livemode"]))

    def find_account(self, account: str) -> tuple[str | None, float] | None:
        row = self.sql.execute(
            "select platform, created from accounts where account = :account", {"account": account}
        ).fetchone()
        return None if row is None else (row["platform"], row["created"])

    # Payments.

    def add_payment(self, payment: Payment) -> None:
        self.sql.execute(
            "insert into payments (payment_intent, charge, account, livemode, amount, captured, currency, status,"
            " disputed, refundable, customer, metadata, created) values (:payment_intent, :charge, :account,"
            " :livemode, :amount, :captured, :currency, :status, :disputed, :refundable, :customer, :metadata,"
            " :created)",
            {**vars(payment), "metadata": json.dumps(payment.metadata)},
        )

    def change_payment(self, payment: Payment) -> None:
        self.sql.execute(
            "update payments set captured = :captured, status = :status, disputed = :disputed,"
            " refundable = :refundable, metadata = :metadata where payment_intent = :payment_intent",
            {**vars(payment), "metadata": json.dumps(payment.metadata)},
        )

    def find_payment(self, payment_intent: str) -> Payment | None:
        return _payment(self.sql.execute(f"{_PAYMENT} where payment_intent = ?", (payment_intent,)).fetchone())

    def find_charge(self, charge: str) -> Payment | None:
        return _payment(self.sql.execute(f"{_PAYMENT} where charge = ?", (charge,)).fetchone())

    def refunded(self, payment_intent: str, *, with_pending: bool = True) -> int:
        """What is taken from the payment: canceled and failed refunds have given it back."""
        row = self.sql.execute(
            "select coalesce(sum(amount), 0) as total from refunds where payment_intent = :payment_intent"
            " and rolled_back = 0 and status not in ('failed', 'canceled')"
            " and (:with_pending or status <> 'pending')",
            {"payment_intent": payment_intent, "with_pending": with_pending},
        ).fetchone()
        return int(row["total"])

    # Refunds and effects.

    def add_refund(
        self,
        payment: Payment,
        *,
        amount: int,
        status: str,
        at: float,
        origin: str,
        arrival: int | None,
        marker: str | None,
        reason: str | None = None,
        failure_reason: str | None = None,
        pending_reason: str | None = None,
        metadata: dict[str, str] | None = None,
        flags: dict[str, Any] | None = None,
    ) -> Refund:
        """Makes the refund and the line of the journal that proves it, in one transaction."""
        refund = new_id("re")
        with self.database.transaction():
            self.sql.execute(
                "insert into refunds (refund, payment_intent, amount, status, reason, failure_reason, pending_reason,"
                " metadata, flags, created) values (:refund, :payment_intent, :amount, :status, :reason,"
                " :failure_reason, :pending_reason, :metadata, :flags, :created)",
                {
                    "refund": refund,
                    "payment_intent": payment.payment_intent,
                    "amount": amount,
                    "status": status,
                    "reason": reason,
                    "failure_reason": failure_reason,
                    "pending_reason": pending_reason,
                    "metadata": json.dumps(metadata or {}),
                    "flags": json.dumps(flags or {}),
                    "created": at,
                },
            )
            self.sql.execute(
                "insert into effects (arrival, refund, payment_intent, account, livemode, amount, currency, marker,"
                " origin, at) values (:arrival, :refund, :payment_intent, :account, :livemode, :amount, :currency,"
                " :marker, :origin, :at)",
                {
                    "arrival": arrival,
                    "refund": refund,
                    "payment_intent": payment.payment_intent,
                    "account": payment.account,
                    "livemode": payment.livemode,
                    "amount": amount,
                    "currency": payment.currency,
                    "marker": marker,
                    "origin": origin,
                    "at": at,
                },
            )
            if status in FREED:
                self._void(refund, status, at)
            made = self._made(refund)
            self._tell(made, events_of_new(made, payment, self.refunded(payment.payment_intent)), at, arrival)
        return made

    def _made(self, refund: str) -> Refund:
        made = self.find_refund(refund)
        if made is None:
            raise LookupError(refund)
        return made

    def find_refund(self, refund: str) -> Refund | None:
        row = self.sql.execute(f"{_REFUND} and r.refund = ?", (refund,)).fetchone()
        return None if row is None else _refund(row)

    def refunds_of(self, payment_intent: str) -> list[Refund]:
        rows = self.sql.execute(f"{_REFUND} and r.payment_intent = ? order by r.number desc", (payment_intent,))
        return [_refund(row) for row in rows]

    def list_refunds(
        self, query: RefundQuery, *, account: str, livemode: bool, made_before: float, cursor: int | None
    ) -> tuple[list[Refund], bool]:
        """Newest first, and whether there are more in the direction of travel."""
        backwards = query.ending_before is not None
        rows = self.sql.execute(
            _REFUND + " and p.account = :account and p.livemode = :livemode and r.created <= :made_before"
            " and (:payment_intent is null or r.payment_intent = :payment_intent)"
            " and (:charge is null or p.charge = :charge)"
            " and (:gt is null or cast(r.created as integer) > :gt)"
            " and (:gte is null or cast(r.created as integer) >= :gte)"
            " and (:lt is null or cast(r.created as integer) < :lt)"
            " and (:lte is null or cast(r.created as integer) <= :lte)"
            " and (:cursor is null or (:backwards and r.number > :cursor)"
            " or (not :backwards and r.number < :cursor))"
            " order by iif(:backwards, r.number, -r.number) limit :rows",
            {
                "account": account,
                "livemode": livemode,
                "made_before": made_before,
                "payment_intent": query.payment_intent,
                "charge": query.charge,
                **dict.fromkeys(("gt", "gte", "lt", "lte")),
                **query.created,
                "cursor": cursor,
                "backwards": backwards,
                "rows": query.limit + 1,
            },
        ).fetchall()
        found = [_refund(row) for row in rows[: query.limit]]
        return (found[::-1] if backwards else found), len(rows) > query.limit

    def change_refund(
        self,
        refund: str,
        *,
        status: str,
        failure_reason: str | None,
        pending_reason: str | None,
        metadata: dict[str, str],
        at: float,
    ) -> None:
        with self.database.transaction():
            before = self._made(refund).status
            self.sql.execute(
                "update refunds set status = :status, failure_reason = :failure_reason,"
                " pending_reason = :pending_reason, metadata = :metadata where refund = :refund",
                {
                    "status": status,
                    "failure_reason": failure_reason,
                    "pending_reason": pending_reason,
                    "metadata": json.dumps(metadata),
                    "refund": refund,
                },
            )
            if status in FREED:
                self._void(refund, status, at)
            changed = self._made(refund)
            self._tell(changed, events_of_change(changed, before), at)

    def roll_back(self, refund: str, at: float) -> None:
        with self.database.transaction():
            self.sql.execute("update refunds set rolled_back = 1 where refund = :refund", {"refund": refund})
            self._void(refund, "rolled_back", at)

    def _void(self, refund: str, why: str, at: float) -> None:
        self.sql.execute(
            "insert into voids (effect, why, at) select effect, :why, :at from effects where refund = :refund"
            " on conflict (effect) do nothing",
            {"refund": refund, "why": why, "at": at},
        )

    # Events.

    def _tell(
        self, refund: Refund, told: list[tuple[str, dict[str, Any]]], at: float, arrival: int | None = None
    ) -> None:
        asked = self.sql.execute(
            "select request_id, idempotency_key from arrivals where arrival = ?", (arrival,)
        ).fetchone()
        request = {"id": asked and asked["request_id"], "idempotency_key": asked and asked["idempotency_key"]}
        connected = self.find_account(refund.account)
        for kind, thing in told:
            event_id = new_id("evt")
            text = event_text(
                event_id,
                kind,
                thing,
                at=at,
                livemode=refund.livemode,
                account=refund.account if connected is not None and connected[0] is not None else None,
                request=request,
            )
            self.sql.execute(
                "insert into events (event_id, payment_intent, body, due) values (?, ?, ?, 0)",
                (event_id, refund.payment_intent, text),
            )

    def events(self, payment_intent: str) -> list[str]:
        """The bodies of all events about a payment, oldest first."""
        rows = self.sql.execute(
            "select body from events where payment_intent = ? order by number", (payment_intent,)
        ).fetchall()
        return [row["body"] for row in rows]

    def events_due(self, now: float) -> list[tuple[int, int, str]]:
        """(number, tries, body) of events that nobody has taken and whose next try is due, on the real clock."""
        rows = self.sql.execute(
            "select number, tries, body from events where due <= ? order by number limit 20", (now,)
        ).fetchall()
        return [(row["number"], row["tries"], row["body"]) for row in rows]

    def event_tried(self, number: int, taken: bool, again_at: float) -> None:
        self.sql.execute(
            "update events set tries = tries + 1, due = ? where number = ?", (None if taken else again_at, number)
        )

    # What is due later.

    def schedule(self, due: float, what: str, body: dict[str, Any]) -> None:
        self.sql.execute(
            "insert into scheduled (due, what, body) values (:due, :what, :body)",
            {"due": due, "what": what, "body": json.dumps(body)},
        )

    def next_due(self, now: float) -> tuple[int, float, str, dict[str, Any]] | None:
        row = self.sql.execute(
            "select number, due, what, body from scheduled where done = 0 and due <= :now order by due, number limit 1",
            {"now": now},
        ).fetchone()
        return None if row is None else (row["number"], row["due"], row["what"], json.loads(row["body"]))

    def mark_done(self, number: int) -> None:
        self.sql.execute("update scheduled set done = 1 where number = :number", {"number": number})


def new_id(prefix: str) -> str:
    return f"{prefix}_{secrets.token_hex(12)}"


def _payment(row: sqlite3.Row | None) -> Payment | None:
    if row is None:
        return None
    values = dict(row)
    for name in ("livemode", "disputed", "refundable"):
        values[name] = bool(values[name])
    return Payment(**{**values, "metadata": json.loads(values["metadata"])})


def _refund(row: sqlite3.Row) -> Refund:
    values = dict(row)
    return Refund(
        **{
            **values,
            "livemode": bool(values["livemode"]),
            "metadata": json.loads(values["metadata"]),
            "flags": json.loads(values["flags"]),
        }
    )
