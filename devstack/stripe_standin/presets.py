"""Fault rules by name, for the demo and the command line's `--fault`; all of them meet refunds only."""

from __future__ import annotations

from devstack.stripe_standin.rules import Match, Move, Rule

CREATE = Match(method="POST", path="/v1/refunds")
LIST = Match(method="GET", path="/v1/refunds")

FAULTS: dict[str, Rule] = {
    # The answer is lost on its way: the effect exists and the caller does not know.
    "lost-answer": Rule(kind="rst", match=CREATE),
    "closed-answer": Rule(kind="fin", match=CREATE),
    "hang-after": Rule(kind="hang", seconds=600, match=CREATE),
    "truncated": Rule(kind="truncated", match=CREATE),
    "drip": Rule(kind="drip", interval=0.25, match=CREATE),
    "html-200": Rule(kind="html200", match=CREATE),
    "html-502": Rule(kind="html502", match=CREATE),
    # The request is lost on its way: the caller sees the same, and there is no effect.
    "lost-request": Rule(kind="rst", when="before", match=CREATE),
    "closed-request": Rule(kind="fin", when="before", match=CREATE),
    "hang-before": Rule(kind="hang", when="before", seconds=600, then="drop", match=CREATE),
    "late-request": Rule(kind="hang", when="before", seconds=20, match=CREATE),
    "html-503": Rule(kind="html503", when="before", match=CREATE),
    # Answers that are stored and never change.
    "stored-500-executed": Rule(kind="stored_500", match=CREATE),
    "stored-500-no-effect": Rule(kind="stored_500", effect=False, match=CREATE),
    "stored-500-roll-forward": Rule(kind="stored_500", effect=False, roll_forward_after_seconds=600, match=CREATE),
    "stored-500-roll-back": Rule(kind="stored_500", roll_back_after_seconds=600, match=CREATE),
    # Refusals that prove that this request had no effect.
    "rate-limited": Rule(kind="rate_limit", match=CREATE),
    "lock-timeout": Rule(kind="lock_timeout", match=CREATE),
    "unauthorized": Rule(kind="unauthorized", match=CREATE),
    "forbidden": Rule(kind="forbidden", match=CREATE),
    "in-flight-409": Rule(kind="in_use", match=CREATE),
    # Execution that does something else than it was asked.
    "slow": Rule(kind="exec_delay", seconds=5, match=CREATE),
    "key-forgotten": Rule(kind="prune_key", match=CREATE.model_copy(update={"replay": True})),
    "duplicate": Rule(kind="duplicate", match=CREATE),
    "tampered-marker": Rule(kind="tamper", metadata={"operation_id": "somebody-else"}, match=CREATE),
    "wrong-amount": Rule(kind="tamper", fields={"amount": 1}, match=CREATE),
    # The money takes its time, or comes back.
    "pending": Rule(
        kind="standing", refund_status="pending", moves=(Move(after_seconds=3600, status="succeeded"),), match=CREATE
    ),
    "pending-then-void": Rule(
        kind="standing",
        refund_status="pending",
        moves=(Move(after_seconds=3600, status="failed", failure_reason="declined"),),
        match=CREATE,
    ),
    "late-void": Rule(
        kind="standing",
        refund_status="succeeded",
        moves=(Move(after_seconds=3600, status="failed", failure_reason="expired_or_canceled_card"),),
        match=CREATE,
    ),
    # Lookups that do not say what is there.
    "hidden-lookup": Rule(kind="list_lag", seconds=120, times=None, match=LIST),
    "hidden-refund": Rule(
        kind="retrieve_lag", seconds=120, times=None, match=Match(method="GET", path="/v1/refunds/*")
    ),
    "broken-lookup": Rule(kind="answer", when="before", answer_status=500, match=LIST),
    "incomplete-lookup": Rule(kind="incomplete_list", match=LIST),
    "lost-lookup": Rule(kind="rst", match=LIST),
}
