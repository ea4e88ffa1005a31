"""Mutants of the real code: one line of it changed, one row or edge gone, and where the search must notice.

A mutant is an edit of the source text, so that it names exactly what was changed and goes stale loudly when that line moves.
"""

import inspect
import sys
import textwrap
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any
from unittest.mock import patch

from activities import dependencies, dispatch, judgement, reconcile, resolve, settle
from activities.approve import Approve
from activities.dispatch import Dispatch
from activities.reconcile import Reconcile
from activities.resolve import Resolve
from activities.settle import Evidence
from ledger import policy, recovery, states
from ledger.states import Edge
from ledger.store import attempts
from tests.exploration import memory

Patches = list[tuple[Any, str, Any]]


@contextmanager
def at_work(change: Callable[[], Patches]) -> Iterator[None]:
    """The real code is changed while this lasts."""
    with ExitStack() as stack:
        for holder, name, value in change():
            stack.enter_context(patch.object(holder, name, value))
        yield


def edited(holder: Any, name: str, *texts: str) -> Patches:
    """The function with (old, new) texts replaced in its source, wherever the original is bound."""
    original = inspect.getattr_static(holder, name)
    function: Any = inspect.unwrap(original)
    source = textwrap.dedent(inspect.getsource(function))
    for old, new in zip(texts[::2], texts[1::2], strict=True):
        assert source.count(old) == 1, f"{name} has {source.count(old)} times: {old}"
        source = source.replace(old, new)
    found: dict[str, Any] = {}
    exec(compile(source, f"mutant of {name}", "exec"), function.__globals__, found)
    changed = found[name]
    if inspect.isclass(holder):
        return [(holder, name, changed)]
    bound = [m for m in list(sys.modules.values()) if getattr(m, "__name__", "").startswith(("activities", "ledger"))]
    patches: Patches = [(m, name, changed) for m in bound if vars(m).get(name) is original]
    if original in recovery.ROWS:
        patches.append((recovery, "ROWS", tuple(changed if row is original else row for row in recovery.ROWS)))
    return patches


def without_edge(gone: Edge) -> Patches:
    """The edge table without one edge."""
    return [(states, "TRANSITIONS", tuple(e for e in states.TRANSITIONS if e != gone))]


def without_row(number: int) -> Patches:
    """The recovery table without one row."""
    return [(recovery, "ROWS", (*recovery.ROWS[:number], *recovery.ROWS[number + 1 :]))]


def swapped_rows(number: int) -> Patches:
    """A row and the one after it in the other order."""
    rows = list(recovery.ROWS)
    rows[number], rows[number + 1] = rows[number + 1], rows[number]
    return [(recovery, "ROWS", tuple(rows))]


def clock_before_lock() -> Patches:
    """`now()` is what it was when the worker began to wait for the lock."""

    async def early(desk: memory.Desk) -> Any:
        return desk.began or desk.times[-1]

    return [(memory, "_now", early)]


_edit = partial(partial, edited)
EDITS: dict[str, Callable[[], Patches]] = {
    # Recovery: moments
    "anchor from the last attempt": _edit(recovery, "anchor", "min((", "max(("),
    "anchor from attempts without effect": _edit(recovery, "anchor", " if a.outcome is not Outcome.NO_EFFECT", ""),
    "quiet_at without processing": _edit(recovery, "quiet_at", " + contract.processing", ""),
    "quiet_at without the call": _edit(recovery, "quiet_at", "timing.call_deadline + ", ""),
    "quiet_at without the guard's delay": _edit(
        recovery, "quiet_at", "a.claimed_at + timedelta(seconds=timing.send_within)", "a.claimed_at"
    ),
    "quiet_at without roll-forward": _edit(recovery, "quiet_at", "contract.roll_forward if", "0.0 if"),
    "quiet_at from the first attempt": _edit(recovery, "quiet_at", "last_byte = max(", "last_byte = min("),
    "quiet_at forgets late sends": _edit(recovery, "quiet_at", "if a.late_send_at is not None", "if False"),
    "window without margin": _edit(recovery, "key_window_ends", " - contract.key.margin - busy", ""),
    "window for ever": _edit(recovery, "key_window_ends", "contract.key.lifetime", "9 * contract.key.lifetime"),
    "late sends stop no repeat": _edit(recovery, "stops_repeats", " or a.late_send_at is not None", ""),
    "stored answers stop no repeat": _edit(recovery, "stops_repeats", "_answers_the_same(a) or ", ""),
    "absence trusted at once": _edit(recovery, "_reads_after_quiet", " and s.began_at > settled", ""),
    "absence trusted before settling": _edit(
        recovery, "_reads_after_quiet", "quiet + timedelta(seconds=contract.lookup.settling)", "quiet"
    ),
    "incomplete looks count as absence": _edit(recovery, "_reads_after_quiet", "s.complete and ", ""),
    "one look is enough": _edit(
        recovery,
        "_far_enough_apart",
        "< 2",
        "< 1",
        "(reads[-1].began_at - reads[0].finished_at).total_seconds() >= _settling(contract) / 2",
        "True",
    ),
    "look-alikes are nothing": _edit(recovery, "_nothing_of_ours", "(e.marked or e.look_alike)", "e.marked"),
    "a look-again forgets nothing": _edit(recovery, "after_look_again", "if at is None", "if True"),
    # Recovery: rows
    "D0: leases are over at once": _edit(recovery, "_d0_open_attempt", "f.now < attempt.lease_until", "False"),
    "D0: leases are never over": _edit(recovery, "_d0_open_attempt", "f.now < attempt.lease_until", "True"),
    "D1: strangers do not matter": _edit(recovery, "_d1_one_receipt", " or f.strangers()", ""),
    "D1: void is good": _edit(recovery, "_d1_one_receipt", "standing is Standing.VOID", "False"),
    "D2: misuse does not matter": _edit(recovery, "_d2_too_much", "a.hint is Hint.MISUSED", "False"),
    "D3: unknown is no effect": _edit(
        recovery,
        "_d3_all_proved",
        "outcomes <= {Outcome.NO_EFFECT}",
        "outcomes <= {Outcome.NO_EFFECT, Outcome.UNKNOWN}",
    ),
    "D3: one refusal is enough": _edit(
        recovery, "_d3_all_proved", "outcomes <= {Outcome.NO_EFFECT, Outcome.REFUSED}", "Outcome.REFUSED in outcomes"
    ),
    "D3: stored refusals outside the window": _edit(
        recovery,
        "_refused_for_the_key",
        "_stored_refusal(attempt) and attempt.claimed_at <= closes",
        "_stored_refusal(attempt)",
    ),
    "D3: no look agrees": _edit(recovery, "_d3_all_proved", "reads and _nothing_of_ours(reads[-1])", "True"),
    "D4: void is the end at once": _edit(recovery, "_d4_void", "f.now > f.quiet_at", "True"),
    "D5: looks too early count": _edit(recovery, "_d5_version_moved", "looked.began_at <= f.settled_at or ", ""),
    "D5: needs no witness": _edit(
        recovery, "_d5_version_moved", "not f.contract.witness", "False", "looked.witness_has_marker is False", "True"
    ),
    "D7: window always open": _edit(recovery, "_d7_repeat_with_key", " or f.now > closes", ""),
    "D7: revoked may repeat": _edit(recovery, "_d7_repeat_with_key", " or f.may_send is MaySend.REVOKED", ""),
    "D7: held may repeat": _edit(recovery, "_d7_repeat_with_key", "f.may_send is MaySend.HELD", "False"),
    "D7: what is kept may be asked again": _edit(recovery, "_d7_repeat_with_key", "stops_repeats(f.attempts)", "False"),
    "D7: no pause": _edit(recovery, "_d7_repeat_with_key", "pause is not None and f.now < pause", "False"),
    "D8: older looks count": _edit(
        recovery, "_d8_repeat_condition", " and looked.began_at > (last.answered_at or last.lease_until)", ""
    ),
    "D8: moved may repeat": _edit(recovery, "_d8_repeat_condition", "looked.version_moved is False and ", ""),
    "D8: whatever authority says": _edit(recovery, "_d8_repeat_condition", " and f.may_send is MaySend.YES", ""),
    "D9: looks are not counted": _edit(recovery, "_d9_look", "_far_enough_apart(f.contract, reads)", "False"),
    "D9: one late look is enough": _edit(
        recovery, "_d9_look", "f.now < f.review_at or len(tried) < LOOKS_BEFORE_REVIEW", "f.now < f.review_at"
    ),
    "D9: looks for ever": _edit(
        recovery,
        "_d9_look",
        "_far_enough_apart(f.contract, reads)",
        "False",
        "f.now < f.review_at or len(tried) < LOOKS_BEFORE_REVIEW",
        "True",
    ),
    # Settling
    "holds are not seen": _edit(settle, "evidence_of", "MaySend.HELD if held else", ""),
    "revocations are not seen": _edit(settle, "evidence_of", "MaySend.REVOKED if authority else", ""),
    "a revoked grant is not seen": _edit(settle, "authority_gone", "grant_problem(document, operation)", "False"),
    "a revoked approver is not seen": _edit(settle, "authority_gone", "if operation.people_needed:", "if False:"),
    "a look-again needs no look": _edit(Evidence, "decide", "not self.look_first", "True"),
    "ages are trusted after the clock was set back": _edit(settle, "distrust_ages", "<= CLOCK_TRUSTED", "<= 1e9"),
    "a closed attempt stays open": _edit(settle, "close_attempt_as_unknown", "open_one is not None", "False"),
    "nothing is next": _edit(settle, "_wait", "next_step_at=facts.now + timedelta(seconds=delay)", "next_step_at=None"),
    "approved again without a next step": _edit(
        settle, "_apply", 'next_step="dispatch", next_step_at=at', "next_step_at=None"
    ),
    # Dispatch
    "the guard asks nobody": lambda: [(Dispatch, "_may_still_send", _yes)],
    "the guard reads no clock": _edit(Dispatch, "_send", "return boottime() < claim.send_until", "return True"),
    "late sends are not told": _edit(Dispatch, "_send", "boottime() >= claim.send_until", "False"),
    "late sends are not kept": _edit(Dispatch, "_record_once", "at if wire.late else None", "None"),
    "the guard forgets the fence": _edit(Dispatch, "_may_still_send", " or not claim.is_of(operation)", ""),
    "the guard forgets the state": _edit(Dispatch, "_may_still_send", "operation.state is not State.IN_FLIGHT or ", ""),
    "the guard forgets holds": _edit(Dispatch, "_may_still_send", "await holds.in_force(conn, operation)", "False"),
    "the guard forgets revocations": _edit(
        Dispatch, "_may_still_send", "not await authority_gone(conn, document, operation)", "True"
    ),
    "a first claim ignores holds": _edit(Dispatch, "_first_claim", "if held and not found:", "if False:"),
    "a first claim ignores refusals": _edit(Dispatch, "_first_claim", "refusal is not None", "False"),
    "a first claim ignores what is there": _edit(
        Dispatch, "_first_claim", "tuple(e for e in reading.preflight.effects if e.marked)", "()"
    ),
    "a first claim reads incomplete lists": _edit(
        Dispatch, "_first_claim", "not reading.preflight.complete or reading.credential is None", "False"
    ),
    "a first claim makes no pause": _edit(Dispatch, "_first_claim", "pause > 0", "False"),
    "a first claim trusts a clock set back": _edit(Dispatch, "_first_claim", "> CLOCK_TRUSTED", "> 1e9"),
    "an open attempt keeps its age": _edit(settle, "distrust_ages", "in (None, Outcome.UNKNOWN)", "is Outcome.UNKNOWN"),
    "a repeat needs no decision": _edit(Dispatch, "_repeat_claim", "facts.decide().step is not Step.REPEAT", "False"),
    "a repeat trusts ages": _edit(Dispatch, "_repeat_claim", "await distrust_ages(conn, operation)", "operation"),
    "a stale fence settles": _edit(Dispatch, "_record_once", " and claim.is_of(operation)", ""),
    "a late answer settles": _edit(
        Dispatch, "_record_once", "operation.state is State.IN_FLIGHT and claim.is_of(operation)", "True"
    ),
    "a claim keeps the fence": _edit(Dispatch, "_open", "before.fence + 1", "before.fence or 1"),
    "nobody comes after the lease": _edit(Dispatch, "_open", "next_step_at=lease_until", "next_step_at=None"),
    "anything found is ours": _edit(
        dispatch,
        "_found_before_send",
        "len(claim.found) == 1 and ours",
        "True",
        "ours[0].receipt",
        "claim.found[0].receipt",
        "ours[0].standing",
        "claim.found[0].standing",
    ),
    "now() read before the lock": clock_before_lock,
    # Looking, judging, people
    "a look began when it was recorded": _edit(reconcile, "look", "began_at=began_at", "began_at=await now(conn)"),
    "a look is never due": _edit(
        Reconcile, "_look_is_due", "return decision.step is Step.LOOK and", "return False and"
    ),
    "approvals are not counted": _edit(
        judgement, "judge", "policy.approvals_stand(document, operation, given) >= operation.people_needed", "True"
    ),
    "revoked approvers count": _edit(
        policy, "approvals_stand", "if _passes(partial(may_approve, document, a.person, operation, a.kid))", ""
    ),
    "an expired approval is good": _edit(judgement, "_standing_refusal", "at > operation.approval_expires_at", "False"),
    "a withdrawal is not read": _edit(judgement, "_standing_refusal", "s.typ == StatementType.WITHDRAWAL", "False"),
    "a revoked grant is good": _edit(judgement, "grant_problem", "return refused.field", 'return ""'),
    "a revoked approver is not asked again": _edit(
        judgement, "first_send_refusal", "refusal is None and operation.people_needed", "False"
    ),
    "amounts are not compared": _edit(policy, "_exceeds", "operation.amount_minor <= left", "True"),
    "the same thing again is another": _edit(policy, "_equivalent", "if not unnamed", "if True"),
    "a stale version is sent": _edit(judgement, "_verdict", "preflight.version != operation.expected_version", "False"),
    "other operations hold nothing": _edit(policy, "remaining_minor", " - held", ""),
    "a withdrawal recalls what was sent": _edit(
        Approve, "_withdraw", "operation.state not in BEFORE_FIRST_SEND or not unsent", "operation.ended_at is not None"
    ),
    "people may certify while an attempt is open": _edit(resolve, "check_absence", "a.outcome is None", "False"),
    "people may certify after a late send": _edit(resolve, "check_absence", "a.late_send_at is not None", "False"),
    "people may certify while the key is honoured": _edit(resolve, "check_absence", "facts.now <= closes", "False"),
    "people may certify before it is quiet": _edit(resolve, "check_absence", "facts.now <= quiet", "False"),
    "people may certify without looks": _edit(
        resolve, "check_absence", "not recovery.qualified_absence(facts.contract, facts.attempts, kept)", "False"
    ),
    "a look-again where nobody can look": _edit(Resolve, "_look_again", "contract.lookup is None", "False"),
    "a definite answer can change": _edit(attempts, "answer", "before.outcome in DEFINITE", "False"),
    # Receipts that change, and what rests on them
    "receipts: what is recorded last counts": _edit(
        recovery, "known_receipts", "later[-1] if later else Standing.VOID", "standings[receipt]"
    ),
    "receipts: an old reading is told": _edit(Reconcile, "_follow", "locked.standing is operation.standing", "True"),
    "receipts: void is read as good again": _edit(
        Reconcile, "_follow", "locked.standing is operation.standing", "True"
    ),
    "receipts: void is told to nobody": _edit(settle, "note_standing", "if standing is Standing.VOID:", "if False:"),
    "receipts: pending is good": _edit(settle, "_apply", "standing=decision.standing", "standing=Standing.GOOD"),
    "receipts: pending is the end": _edit(
        settle, "_apply", '"" if decision.standing is Standing.GOOD else "follow"', '""'
    ),
    "receipts: pending is read once": _edit(
        Reconcile, "_follow", "next_step_at=at + timedelta(seconds=delay)", "next_step_at=None"
    ),
    "receipts: pending is not read": _edit(Reconcile, "_follow", "credential is not None", "False"),
    "receipts: a reading is not written down": _edit(Reconcile, "_follow", "seen is not None", "False"),
    "receipts: an end is not read again": _edit(
        Reconcile, "reconcile", "if operation.ended_at is not None and operation.state is State.SUCCEEDED:", "if False:"
    ),
    "receipts: looks after a success tell nobody": _edit(
        reconcile, "look", "locked.ended_at is None", "locked.state is State.SUCCEEDED or locked.ended_at is None"
    ),
    "receipts: answers after a success tell nobody": _edit(
        Dispatch, "_record_once", "operation.ended_at is not None and", "operation.state is State.REJECTED and"
    ),
    "receipts: whatever comes after the end alarms": _edit(
        settle, "against_end", "known.get(receipt, Standing.VOID) is Standing.VOID", "False"
    ),
    "void holds its amount": _edit(
        judgement, "reserves", "operation.state is State.SUCCEEDED and operation.standing is Standing.VOID", "False"
    ),
    "a changed policy is not read": _edit(
        judgement, "_standing_refusal", "policy.policy_changed(document, operation)", "False"
    ),
    "a first send asks for nothing that it depends on": _edit(
        Dispatch, "_first_claim", "await dependencies.met(conn, operation) is not Met.YES", "False"
    ),
    "what was undone still counts": _edit(dependencies, "met", "not needed.stands or ", ""),
    "a repeat asks for nothing that it depends on": _edit(
        settle, "authority_gone", "await dependencies.met(conn, operation) is Met.NEVER", "False"
    ),
    "what is there waits for what it depends on": _edit(
        judgement, "first_send_refusal", "is Met.YES", "is not Met.NEVER"
    ),
}


async def _yes(*_: Any) -> bool:
    return True


def mutants() -> dict[str, Callable[[], Patches]]:
    """Every mutant by its name: each edge gone, each row gone, each pair of rows swapped, and the edits."""
    return {
        **{f"edge {e.number} to {e.target} removed": partial(without_edge, e) for e in states.TRANSITIONS},
        **{f"row D{k} disabled": partial(without_row, k) for k in range(len(recovery.ROWS))},
        **{f"rows D{k} and D{k + 1} swapped": partial(swapped_rows, k) for k in range(len(recovery.ROWS) - 1)},
        **EDITS,
    }
