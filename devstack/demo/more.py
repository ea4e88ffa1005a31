"""The other scenarios: those that need no night all at once, then one night for all the others.

A scenario with a night in it is a generator: it yields when it is ready to sleep, and goes on in the morning.
"""

import asyncio
import signal
import time
from collections.abc import AsyncIterator
from datetime import datetime, timedelta

from activities.messages import OPERATION_WORKFLOW
from devstack.demo.acts import found_by_a_look, settled_by_two
from devstack.demo.promises import Promise
from devstack.demo.stage import CALL_DEADLINE, PATIENCE, SEND_WITHIN, Scene, Stage
from devstack.stripe_standin.presets import FAULTS
from ledger.model import Standing
from ledger.statement import StatementType
from ledger.states import State
from ledger.trail import EventKind

_ENDS = (State.SUCCEEDED, State.REJECTED, State.BLOCKED, State.NEEDS_REVIEW)


async def play_more(stage: Stage) -> None:
    """Every scenario that the three acts do not show."""
    stage.show.act(
        "All the other faults, at once",
        "Six refunds, each with a fault of its own: lost, still running, refused, stored as an error, held by people.",
        "One refund each, and nobody is asked who could not add anything.",
    )
    await asyncio.gather(*(play(stage) for play in AT_ONCE))
    stage.show.act(
        "A night with the rest",
        "Four more: an error without effect, money that comes late, money that comes back, a worker stopped mid-send.",
        "Each is found out in the morning, and what is late is noticed, not repeated.",
    )
    nights = [play(stage) for play in OVER_NIGHT]
    await asyncio.gather(*(anext(night, None) for night in nights))
    # Last and alone, because the stopped worker must be the one that sends.
    nights.append(a_stopped_worker(stage))
    await anext(nights[-1], None)
    await stage.sleep_a_night()
    worker = stage.start_worker()
    stage.show.step(f"25 hours later (both clocks moved) a new worker starts, pid {worker.pid}")
    await asyncio.gather(*(anext(night, None) for night in nights))


async def small_and_waived(stage: Stage) -> None:
    """Nothing is broken."""
    async with stage.play("small, waived by policy", Promise("succeeded", reached=1, effects=1)) as scene:
        await stage.propose(scene)
        await stage.until_state(scene, *_ENDS)
        stage.show.step("12.00 EUR is within the waiver: sent without a person", scene.name)


async def lost_and_repeated(stage: Stage) -> None:
    """The connection closes instead of an answer; the key is fresh."""
    async with stage.play("answer lost, repeated in window", Promise("succeeded", reached=2, effects=1)) as scene:
        stage.stack.stripe.control.fault("closed-answer", payment_intent=scene.target)
        await stage.propose(scene)
        await stage.until_state(scene, *_ENDS)
        posts = [a for a in stage.journal(scene).arrivals if a.method == "POST"]
        scene.expect([a.replayed for a in posts] == [False, True], "the second answer was not a replay")
        stage.show.step("repeated with the same key; the second answer was a replay", scene.name)


async def still_running(stage: Stage) -> None:
    """Stripe works on the first request for longer than we wait; until it is done it answers repeats with 409."""
    promise = Promise("succeeded", reached=3, reached_at_most=6, effects=1)
    async with stage.play("409 while the first runs", promise) as scene:
        slow = FAULTS["slow"].model_copy(update={"seconds": CALL_DEADLINE + 4.0})
        stage.stack.stripe.control.fault(slow, payment_intent=scene.target)
        await stage.propose(scene)
        await stage.until_state(scene, *_ENDS)
        answers = [a.answer for a in stage.journal(scene).arrivals if a.method == "POST"]
        scene.expect(409 in answers, f"no repeat met the running request: {answers}")
        stage.show.step(f"the answers were {', '.join(map(str, answers))}; the last was a replay", scene.name)


async def stored_error_executed(stage: Stage) -> None:
    """Stripe refunded, then broke, and will say 500 to this key for ever."""
    async with stage.play("stored 500, although executed", Promise("succeeded", reached=1, effects=1)) as scene:
        stage.stack.stripe.control.fault("stored-500-executed", payment_intent=scene.target)
        await stage.propose(scene)
        await stage.until_state(scene, *_ENDS)
        scene.expect(await found_by_a_look(stage, scene), "it was not found by a look")
        stage.show.step("not repeated, since the key can only say 500; found in Stripe's list of refunds", scene.name)


async def refused_at_the_door(stage: Stage) -> None:
    """A key that Stripe did not know for a moment, then too many requests: both prove that nothing happened."""
    async with stage.play("401, then 429", Promise("succeeded", reached=3, effects=1)) as scene:
        for fault in ("unauthorized", "rate-limited"):
            stage.stack.stripe.control.fault(fault, payment_intent=scene.target)
        await stage.propose(scene)
        await stage.until_state(scene, *_ENDS)
        answers = [a.answer for a in stage.journal(scene).arrivals if a.method == "POST"]
        scene.expect(answers == [401, 429, 200], f"the answers were {answers}")
        stage.show.step("neither executed anything: sent again after a pause, no person needed", scene.name)


async def held_while_unknown(stage: Stage) -> None:
    """One operator holds while the answer is missing; it takes two to let the repeat go."""
    promise = Promise("succeeded", reached=2, effects=1, people=("olga", "oscar"))
    async with stage.play("held and released while unknown", promise) as scene:
        stage.stack.stripe.control.fault("hang-after", payment_intent=scene.target)
        await stage.propose(scene)
        await stage.until_state(scene, State.IN_FLIGHT)
        scope, why = f"operation:{scene.operation_id}", "the customer is on the phone"
        told = await stage.hold(scope, "olga", StatementType.HOLD, why)
        scene.expect(told.held, f"the hold was not accepted: {told.rule}")
        operation = await stage.until_state(scene, State.UNKNOWN)
        stage.show.step("olga holds it while the answer is missing: unknown, and no repeat", scene.name)
        # Without the hold the step would be a repeat within a second; now it waits for hours.
        near = operation.proposed_at + timedelta(hours=1)
        await stage.until(lambda: _waits_until_after(stage, scene, near), "the held operation waits")
        one = await stage.hold(scope, "olga", StatementType.RELEASE, why)
        scene.expect(one.held and one.still_needed == 1, "one operator alone released it")
        scene.expect(stage.reached(scene) == 1, "something was sent although it was held")
        two = await stage.hold(scope, "oscar", StatementType.RELEASE, why)
        scene.expect(not two.held, f"two operators did not release it: {two.rule}")
        scene.signers |= {"olga", "oscar"}
        stage.show.step("olga alone cannot release it; with oscar she can, and the repeat goes out", scene.name)
        await stage.until_state(scene, *_ENDS)


async def stored_error_without_effect(stage: Stage) -> AsyncIterator[None]:
    """Stripe broke before refunding, and may still do it later; only people can say that it will not."""
    promise = Promise("rejected", reached=1, effects=0, people=("olga", "oscar"))
    async with stage.play("stored 500, without effect", promise) as scene:
        stage.stack.stripe.control.fault("stored-500-no-effect", payment_intent=scene.target)
        await stage.propose(scene)
        await stage.until_state(scene, State.UNKNOWN)
        stage.show.step("unknown: Stripe may still roll it forward, for twelve hours by our assumption", scene.name)
        yield
        await stage.until_state(scene, *_ENDS)
        await settled_by_two(stage, scene, "Stripe's support: the 500 was never rolled forward.")


async def pending_then_good(stage: Stage) -> AsyncIterator[None]:
    """The refund exists and the money is still on its way."""
    async with stage.play("pending, then good", Promise("succeeded", reached=1, effects=1)) as scene:
        stage.stack.stripe.control.fault("pending", payment_intent=scene.target)
        await stage.propose(scene)
        operation = await stage.until_state(scene, *_ENDS)
        scene.expect(operation.standing is Standing.PENDING, f"its standing was {operation.standing}")
        stage.show.step("succeeded with a pending receipt: followed until that changes", scene.name)
        yield
        await stage.workflow(scene).signal("look_now")
        await stage.until(lambda: _stands(stage, scene, Standing.GOOD), f"{scene.name}: the receipt is good")
        stage.show.step("the receipt was read again: good", scene.name)


async def good_then_void(stage: Stage) -> AsyncIterator[None]:
    """The refund was good, and days later the bank sends the money back."""
    async with stage.play("good, then void", Promise("succeeded, void", reached=1, effects=0)) as scene:
        stage.stack.stripe.control.fault("late-void", payment_intent=scene.target)
        await stage.propose(scene)
        operation = await stage.until_state(scene, *_ENDS)
        scene.expect(operation.standing is Standing.GOOD, f"its standing was {operation.standing}")
        async with asyncio.timeout(PATIENCE):
            await stage.workflow(scene).result()  # in the morning another run is started
        yield
        await stage.client.start_workflow(
            OPERATION_WORKFLOW,
            {"operation_id": scene.operation_id},
            id=stage.workflow(scene).id,
            task_queue=stage.stack.task_queue,
        )
        await stage.until(lambda: _stands(stage, scene, Standing.VOID), f"{scene.name}: the receipt is void")
        contradictions = [e for e in await stage.trail(scene) if e.kind is EventKind.CONTRADICTION]
        scene.expect(len(contradictions) == 1, f"the trail has {len(contradictions)} contradictions")
        stage.show.step("a later look found it void: the end stays, a contradiction is in the trail", scene.name)


async def a_stopped_worker(stage: Stage) -> AsyncIterator[None]:
    """The worker is stopped between its last check and the first byte, and goes on a day later as if nothing was."""
    async with stage.play("worker stopped mid-send, 25 h", Promise("succeeded", reached=1, effects=1)) as scene:
        stage.worker.signal(signal.SIGTERM)
        await stage.until_dead(stage.worker)
        # With one slot it does not ask for a second task, which it would take with it into its sleep.
        sleeper = stage.start_worker(crash="guarded:stop", EFFECTS_ACTIVITIES_AT_ONCE="1")
        stage.arm()
        await stage.propose(scene)
        await stage.until(lambda: _gone(stage), "the worker stops itself before the first byte")
        stopped_at = time.monotonic()
        stage.show.step(
            f"worker {sleeper.pid} is stopped (SIGSTOP) between its last check and the first byte", scene.name
        )
        yield
        await stage.until_state(scene, *_ENDS)
        scene.expect(stage.reached(scene) == 0, "something was sent although nobody knew whether it was sent before")
        stage.show.step(
            "another worker took over after the lease: nothing found, nothing sent, a person shall look", scene.name
        )
        # The guard counts real seconds (CLOCK_BOOTTIME), and only the other clocks were moved.
        await stage.until(lambda: _passed(stopped_at + SEND_WITHIN + 1.0), "the guard's time is over")
        sleeper.signal(signal.SIGCONT)
        await stage.until(lambda: _answered_late(stage, scene), "the late answer of the resumed worker is in the trail")
        (late,) = [e for e in await stage.trail(scene) if e.kind is EventKind.LATE_ANSWER]
        scene.expect(late.body["hint"] == "not_sent", f"the resumed worker says {late.body['outcome']}")
        early = [a for a in stage.journal(scene).arrivals if a.method == "POST" and a.at <= late.at.timestamp()]
        scene.expect(not early, "the resumed worker sent something")
        stage.show.step("resumed (SIGCONT), it sends nothing and says so; that proof needs no person", scene.name)
        await stage.until_state(scene, State.SUCCEEDED)
        stage.show.step("nothing had happened, so it is sent now, under a new claim", scene.name)


AT_ONCE = (
    small_and_waived,
    lost_and_repeated,
    still_running,
    stored_error_executed,
    refused_at_the_door,
    held_while_unknown,
)
OVER_NIGHT = (stored_error_without_effect, pending_then_good, good_then_void)


async def _waits_until_after(stage: Stage, scene: Scene, moment: datetime) -> bool:
    operation = await stage.operation(scene)
    return operation.next_step == "wait" and operation.next_step_at is not None and operation.next_step_at > moment


async def _stands(stage: Stage, scene: Scene, standing: Standing) -> bool:
    return (await stage.operation(scene)).standing is standing


async def _answered_late(stage: Stage, scene: Scene) -> bool:
    return any(e.kind is EventKind.LATE_ANSWER for e in await stage.trail(scene))


async def _gone(stage: Stage) -> bool:
    return not stage.flag.exists()


async def _passed(moment: float) -> bool:
    return time.monotonic() > moment
