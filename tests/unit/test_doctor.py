"""What `effects doctor` says to do, and in which order: without a server nothing else can be mended."""

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest
from google.protobuf.timestamp_pb2 import Timestamp
from temporalio.api.taskqueue.v1 import PollerInfo

from commands.doctor import LedgerSeen, TemporalSeen, advice
from ledger.store.gauges import Gauges, Unknown
from ledger.store.holds import Hold
from workflows.polling import recent

AT = datetime(2026, 11, 30, 12, tzinfo=UTC)
WELL: dict[str, Any] = {
    "operations": {}, "oldest": {}, "unknown_past_target": 0, "key_window_closes": None, "overdue": 0, "contradicted": 3,
    "contradictions_last_day": 0, "held": 0, "restored": 0, "audit_age": None,
    "inbox_waiting": 0, "notices_unheard": 0, "audit_findings": 0,
}  # fmt: skip
POLLED = TemporalSeen("127.0.0.1:7233", pollers=["1@vm"], stuck=0)


def seen(*held: str, closes: float | None = None, **changes: Any) -> LedgerSeen:
    """A ledger in which all is well but for this, and sending is held for these scopes; `closes` is in hours."""
    closes_at = None if closes is None else AT + timedelta(hours=closes)
    one = Unknown(
        UUID(int=7), "acme", "k", AT - timedelta(hours=9), closes_at, AT, bool(changes.get("unknown_past_target"))
    )
    holds = [Hold(scope, True, AT, f"why {scope} is held") for scope in held]
    return LedgerSeen("127.0.0.1:5432", at=AT, gauges=Gauges(**WELL | changes), holds=holds, oldest=one, closing=one)


REVIEW = {"operations": {("needs_review", "refund", "stripe"): 2}, "oldest": {"needs_review": 60.0}}


@pytest.mark.parametrize(
    ("ledger", "temporal", "wanted"),
    [
        (seen(), POLLED, []),
        (seen(closes=23), POLLED, []),
        (seen(closes=1.9), POLLED, [f"effects show {UUID(int=7)}"]),
        (seen(unknown_past_target=1), POLLED, [f"effects show {UUID(int=7)}"]),
        (seen(overdue=1), POLLED, ["effects audit --repair"]),
        (seen(audit_age=90_000.0), POLLED, ["effects audit"]),
        (seen(**REVIEW), POLLED, ["effects review"]),
        (seen(restored=1, overdue=1), POLLED, ["effects holds", "effects audit --repair"]),
        (seen(contradictions_last_day=1, overdue=1), POLLED, ["effects review", "effects audit --repair"]),
        (seen(audit_findings=1, notices_unheard=2), POLLED, ["effects audit", "effects inbox"]),
        (seen("all", "restored", restored=1), POLLED, ["effects holds", "effects holds"]),
        (seen(), TemporalSeen("x", pollers=["1@vm"], stuck=2), ["effects audit"]),
        (seen(), TemporalSeen("x", pollers=["1@vm"], stuck=None), []),
        (seen(overdue=1), TemporalSeen("x"), [".venv/bin/python worker.py", "effects audit --repair"]),
        (
            LedgerSeen("x", silent=True, problem="Postgres at x did not answer"),
            TemporalSeen("y", silent=True, problem="Temporal at y did not answer"),
            ["have Postgres answer", "have Temporal answer; nothing is lost, but nothing moves"],
        ),
        (LedgerSeen("x", problem="the database lacks migration 0002: run `effects migrate`"), POLLED, ["mend the ledger"]),
    ],
)  # fmt: skip
def test_what_is_to_be_done_comes_in_order(ledger: LedgerSeen, temporal: TemporalSeen, wanted: list[str]) -> None:
    """Each with the fact that asks for it. Red: swap any two lines of `advice`."""
    todo = advice(ledger, temporal, "effect-ledger")
    assert [one.do for one in todo] == wanted
    assert all(one.because for one in todo)


def test_a_worker_that_is_gone_does_not_poll() -> None:
    """Temporal remembers a poller for minutes. Red: leave the age out of `polling.recent`."""

    def polled(identity: str, ago: float) -> PollerInfo:
        at = Timestamp()
        at.FromDatetime(AT - timedelta(seconds=ago))
        return PollerInfo(identity=identity, last_access_time=at)

    assert recent([polled("gone", 71), polled("waits", 60), polled("new", 0)], AT) == ["new", "waits"]
