"""What the stand-in writes down about requests: stored answers of idempotency keys, fault rules, and the journal."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from devstack.stripe_standin.rules import Arrival, Effect, Rule
from devstack.stripe_standin.schema import Database


@dataclass(frozen=True)
class KeyScope:
    """Keys are one namespace for an account and mode, not for a path."""

    account: str
    livemode: bool
    idempotency_key: str


@dataclass(frozen=True)
class StoredAnswer:
    endpoint: str
    params_sha256: str
    status: int
    body: dict[str, Any]
    request_id: str
    created: float


class Records:
    """Callers open the transaction where a record belongs to an effect."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self.sql = database.connection

    # Idempotency keys.

    def find_answer(self, scope: KeyScope) -> StoredAnswer | None:
        row = self.sql.execute(
            "select endpoint, params_sha256, status, body, request_id, created from idempotency_keys"
            " where account = :account and livemode = :livemode and idempotency_key = :idempotency_key",
            vars(scope),
        ).fetchone()
        return None if row is None else StoredAnswer(**{**dict(row), "body": json.loads(row["body"])})

    def store_answer(self, scope: KeyScope, answer: StoredAnswer) -> None:
        self.sql.execute(
            "insert into idempotency_keys (account, livemode, idempotency_key, endpoint, params_sha256, status, body,"
            " request_id, created) values (:account, :livemode, :idempotency_key, :endpoint, :params_sha256, :status,"
            " :body, :request_id, :created)",
            {**vars(scope), **vars(answer), "body": json.dumps(answer.body)},
        )

    def forget_answer(self, scope: KeyScope) -> None:
        self.sql.execute(
            "delete from idempotency_keys where account = :account and livemode = :livemode"
            " and idempotency_key = :idempotency_key",
            vars(scope),
        )

    # Fault rules.

    def add_rule(self, rule: Rule) -> int:
        cursor = self.sql.execute(
            "insert into fault_rules (body, remaining) values (:body, :remaining)",
            {"body": rule.model_dump_json(), "remaining": rule.times},
        )
        return int(cursor.lastrowid or 0)

    def rules(self, *, armed_only: bool = True) -> list[tuple[int, Rule, int | None]]:
        rows = self.sql.execute(
            "select rule, body, remaining from fault_rules"
            " where not :armed_only or remaining is null or remaining > 0 order by rule",
            {"armed_only": armed_only},
        )
        return [(row["rule"], Rule.model_validate_json(row["body"]), row["remaining"]) for row in rows]

    def take_rule(self, number: int, rule: Rule, arrival: int, at: float) -> None:
        """Uses up one firing, durably, before it acts: a restart does not arm it again."""
        with self.database.transaction():
            self.sql.execute(
                "update fault_rules set remaining = remaining - 1 where rule = :rule and remaining is not null",
                {"rule": number},
            )
            self.sql.execute(
                "insert into firings (arrival, rule, kind, at) values (:arrival, :rule, :kind, :at)",
                {"arrival": arrival, "rule": number, "kind": rule.kind, "at": at},
            )

    def disarm(self, number: int | None) -> int:
        return self.sql.execute(
            "delete from fault_rules where :rule is null or rule = :rule", {"rule": number}
        ).rowcount

    # Journal.

    def arrive(self, line: dict[str, Any]) -> int:
        cursor = self.sql.execute(
            "insert into arrivals (request_id, at, method, path, idempotency_key, account, livemode, params,"
            " params_sha256, body_sha256, marker, payment_intent, refunded_before) values (:request_id, :at, :method,"
            " :path, :idempotency_key, :account, :livemode, :params, :params_sha256, :body_sha256, :marker,"
            " :payment_intent, :refunded_before)",
            {**line, "params": json.dumps(line["params"])},
        )
        return int(cursor.lastrowid or 0)

    def end(
        self, arrival: int, ended: str, *, answer: int | None, replayed: bool, refunded: int | None, at: float
    ) -> None:
        self.sql.execute(
            "insert into endings (arrival, ended, answer, replayed, refunded_after, at)"
            " values (:arrival, :ended, :answer, :replayed, :refunded_after, :at)",
            {
                "arrival": arrival,
                "ended": ended,
                "answer": answer,
                "replayed": replayed,
                "refunded_after": refunded,
                "at": at,
            },
        )

    def arrivals(self, marker: str | None, payment_intent: str | None, idempotency_key: str | None) -> list[Arrival]:
        """In order of arrival; of several endings (hanging, then answered) the last one counts."""
        rows = self.sql.execute(
            "select a.arrival as number, a.request_id, a.at, a.method, a.path, a.idempotency_key, a.account,"
            " a.livemode, a.params, a.params_sha256, a.body_sha256, a.marker, a.payment_intent, a.refunded_before,"
            " (select json_group_array(f.kind) from firings f where f.arrival = a.arrival) as faults,"
            " coalesce(e.replayed, 0) as replayed, e.answer, e.ended, e.refunded_after"
            " from arrivals a left join endings e on e.arrival = a.arrival"
            " and e.rowid = (select max(l.rowid) from endings l where l.arrival = a.arrival)"
            " where (:marker is null or a.marker = :marker)"
            " and (:payment_intent is null or a.payment_intent = :payment_intent)"
            " and (:idempotency_key is null or a.idempotency_key = :idempotency_key)"
            " order by a.arrival",
            {"marker": marker, "payment_intent": payment_intent, "idempotency_key": idempotency_key},
        )
        return [
            Arrival(
                **{
                    **dict(row),
                    "livemode": None if row["livemode"] is None else bool(row["livemode"]),
                    "params": json.loads(row["params"]),
                    "faults": tuple(json.loads(row["faults"])),
                    "replayed": bool(row["replayed"]),
                }
            )
            for row in rows
        ]

    def effects(self, marker: str | None, payment_intent: str | None, idempotency_key: str | None) -> list[Effect]:
        rows = self.sql.execute(
            "select e.effect as number, e.arrival, e.refund, e.payment_intent, e.account, e.livemode, e.amount,"
            " e.currency, e.marker, e.origin, e.at, v.why as voided"
            " from effects e left join voids v on v.effect = e.effect"
            " left join arrivals a on a.arrival = e.arrival"
            " where (:marker is null or e.marker = :marker)"
            " and (:payment_intent is null or e.payment_intent = :payment_intent)"
            " and (:idempotency_key is null or a.idempotency_key = :idempotency_key)"
            " order by e.effect",
            {"marker": marker, "payment_intent": payment_intent, "idempotency_key": idempotency_key},
        )
        return [Effect(**{**dict(row), "livemode": bool(row["livemode"])}) for row in rows]
