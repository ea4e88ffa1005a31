"""No keys, no money: every way to let something go without the right signature is refused, with its reason in the trail."""

import asyncio
import base64
from typing import Any

import pytest

from activities.messages import Answer
from ledger.statement import new_private_key
from tests.conftest import Rig
from workflows.client import sign
from workflows.names import workflow_id


async def _waiting(rig: Rig, **extra: Any) -> tuple[Any, Answer, str]:
    target = rig.payment(100_000)
    proposal = rig.proposal(target, amount=5_000, **extra)
    answer = await rig.propose(proposal)
    assert answer.state == "awaiting_approval", answer
    return proposal, answer, target


async def test_the_right_signature_lets_it_go_once(rig: Rig) -> None:
    """And the same statement again is a success that changes nothing."""
    async with rig.worker():
        proposal, answer, target = await _waiting(rig)
        approval = await rig.signed(answer.operation_id, "alice", "approval")
        assert (await rig.decide(proposal, approval)).reason == ""
        await rig.until(answer.operation_id, "succeeded")
    assert [e.amount for e in rig.effects(target)] == [5_000]


async def test_wrong_approvals_are_refused_with_their_reason_and_send_nothing(rig: Rig) -> None:
    """Forged, expired, for other content, by the wrong person, on a foreign sheet: each by its own rule.

    Red: skip the call of `policy.may_approve`, `check_about`, `token_refusal` or `made_sheet` in approve.py.
    """
    async with rig.worker():
        proposal, answer, target = await _waiting(rig, requested_by="bob")
        op = answer.operation_id
        good = await rig.signed(op, "alice", "approval")
        stranger = new_private_key()
        forged = await rig.signed(op, "alice", "approval")
        forged["proof"] = forged["proof"][:-8] + ("A" * 8 if not forged["proof"].endswith("A" * 8) else "B" * 8)
        at = int((await rig.operation(op)).proposed_at.timestamp())
        wrong = {
            "signature_wrong": forged,
            "statement_expired": await rig.signed(op, "alice", "approval", iat=at - 3_600, exp=at - 1_800),
            "statement_not_yet_valid": await rig.signed(op, "alice", "approval", iat=at + 9_000, exp=at + 9_600),
            "statement_lives_too_long": await rig.signed(op, "alice", "approval", iat=at, exp=at + 90_000),
            "own_proposal": await rig.signed(op, "bob", "approval"),
            "role_missing": await rig.signed(op, "olga", "approval"),
            "audience_wrong": await rig.signed(op, "alice", "approval", aud="another-ledger"),
            "scheme_unknown": {**good, "scheme": "webauthn"},
            "sheet_wrong": {**good, "sheet": base64.urlsafe_b64encode(b"{}").decode().rstrip("=")},
            "type_wrong": await rig.signed(op, "alice", "withdrawal"),
        }
        for rule, envelope in wrong.items():
            refused = await rig.decide(proposal, envelope)
            assert (refused.reason, refused.state) == (rule, "awaiting_approval"), (rule, refused)
        assert stranger is not None
        assert await rig.refusals(op) == list(wrong)
        assert rig.posts(target) == []


async def test_an_approval_of_one_operation_says_nothing_about_another(rig: Rig) -> None:
    """Bound to operation, fingerprint and sheet."""
    async with rig.worker():
        first, answer, _ = await _waiting(rig)
        second, other, target = await _waiting(rig)
        approval = await rig.signed(answer.operation_id, "alice", "approval")
        refused = await rig.decide(second, approval)
        assert refused.reason == "operation_wrong"
        assert rig.posts(target) == []
        assert (await rig.operation(other.operation_id)).state == "awaiting_approval"


async def test_a_decline_ends_it_and_a_later_approval_does_not_revive_it(rig: Rig) -> None:
    """Edge 6, by the same person who approved or by another."""
    async with rig.worker():
        proposal, answer, target = await _waiting(rig)
        decline = await rig.signed(answer.operation_id, "bob", "decline")
        await rig.handle(proposal).signal("decide", decline)
        operation = await rig.until(answer.operation_id, "blocked")
        assert operation.reason == "approval_declined"
    assert rig.posts(target) == []


async def test_an_unapproved_operation_expires_when_its_time_is_over(rig: Rig) -> None:
    """Two days by the example policy, by the ledger's clock."""
    async with rig.worker():
        proposal, answer, target = await _waiting(rig)
        await rig.advance(172_800 + 5)
        operation = await rig.until(answer.operation_id, "blocked")
        assert operation.reason == "approval_expired"
    assert rig.posts(target) == []


async def test_a_temporal_client_without_keys_moves_no_money(rig: Rig) -> None:
    """Start, signal, update and poke as much as you like: without a granted key nothing is recorded, nothing is sent.

    Red: return a principal from `admission.principal` without verifying the token.
    """
    target = rig.payment()
    signed = rig.proposal(target)
    stranger = new_private_key()
    bot = rig.holder("support-bot")
    audience = rig.stack.household.audience
    attempts = {
        "signature_missing": signed.model_copy(update={"token": ""}),
        "proposal_malformed": signed.model_copy(update={"token": "x.y.z"}),
        "signature_wrong": sign(signed, stranger, kid=bot.kid, iss=bot.name, aud=audience),
        "key_unknown": sign(signed, stranger, kid="nobody", iss=bot.name, aud=audience),
        "audience_wrong": sign(signed, bot.key, kid=bot.kid, iss=bot.name, aud="another"),
    }
    async with rig.worker():
        for rule, proposal in attempts.items():
            answer = await rig.propose(proposal)
            assert (answer.state, answer.reason) == ("refused", rule), (rule, answer)
        altered = await rig.propose(signed.model_copy(update={"requested_by": "somebody"}))
        assert altered.reason == "signature_wrong"
        other_actor = rig.proposal(target, actor="somebody-else")
        assert (await rig.propose(other_actor)).reason == "actor_not_granted"
        await rig.advance(4_000)
        assert (await rig.propose(signed)).reason == "token_expired"
    assert rig.journal(target).effects == ()
    async with rig.ledger.transaction() as conn:
        row = await (await conn.execute("select count(*) as n from operations")).fetchone()
    assert row is not None and row["n"] == 0


@pytest.mark.parametrize("readable", [True, False])
async def test_a_forged_activity_completion_does_not_make_a_success(rig: Rig, readable: bool) -> None:
    """Somebody with write access to the namespace completes the dispatch activity by hand, while the call still runs.

    The ledger is believed, not the activity's return value. Red: `_tell` what `calls.dispatch` returned, and return; let
    `calls.dispatch` expect a `Progress`, and what is none stops the workflow for ever.
    """
    target = rig.payment()
    rule = rig.stack.stripe.control.fault("slow", payment_intent=target)
    proposal = rig.proposal(target)
    async with rig.worker():
        answer = await rig.propose(proposal)
        await asyncio.to_thread(
            rig.stack.stripe.control.until, lambda j: any(a.method == "POST" for a in j.arrivals), payment_intent=target
        )
        handle = rig.handle(proposal)
        described = await handle.describe()
        pending = described.raw_description.pending_activities[0]
        forged = {"operation_id": answer.operation_id, "state": "rejected", "next": "done", "events": 1}
        activity = rig.client.get_async_activity_handle(
            workflow_id=workflow_id(proposal.tenant, proposal.business_key),
            run_id=described.run_id,
            activity_id=pending.activity_id,
        )
        await activity.complete(forged if readable else ["nothing", "of", "ours"])
        rig.stack.stripe.control.release(rule)
        await rig.advance(60)  # past the lease: the attempt whose activity was taken away becomes unknown
        operation = await rig.until(answer.operation_id, "succeeded")
        # What the caller hears is the ledger's word, not the forger's.
        assert (await asyncio.wait_for(handle.result(), 30))["state"] == "succeeded"
    assert [e.refund for e in rig.effects(target)] == [operation.receipt]
