"""The thinnest whole path: proposed, judged, sent, succeeded, on real parts."""

from tests.conftest import Rig


async def test_a_waived_refund_is_sent_once_and_succeeds(rig: Rig) -> None:
    """The judge of the effect is the stand-in's journal, not our ledger."""
    target = rig.payment()
    proposal = rig.proposal(target)
    async with rig.worker():
        answer = await rig.propose(proposal)
        operation = await rig.until(answer.operation_id, "succeeded")
    assert [e.amount for e in rig.effects(target)] == [1_500]
    assert rig.effects(target)[0].refund == operation.receipt
    assert len(rig.posts(target)) == 1
