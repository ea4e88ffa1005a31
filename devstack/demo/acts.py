"""The three acts: a lost answer, a long night, and a person."""

import asyncio
import signal

from devstack.demo.plain import TRY_SECONDS, plain_worker
from devstack.demo.promises import Promise
from devstack.demo.stage import CALL_DEADLINE, LARGE, PATIENCE, SMALL, Scene, Stage
from devstack.stack import SECRET_KEY
from ledger.statement import StatementType
from ledger.states import State
from ledger.store import attempts
from ledger.trail import EventKind

ANSWERED_KILL = "answered:kill"


async def the_same_lost_answer_twice(stage: Stage) -> None:
    """Act 1: the same fault for a plain activity and for us."""
    stage.show.act(
        "Act 1: the same lost answer, twice",
        "Stripe makes the refund, and its answer never comes: the connection hangs.",
        "Trying again is right, and refunds the customer once.",
    )
    worker = stage.start_worker(crash=ANSWERED_KILL)
    stage.show.step(f"a worker of ours starts as a process of its own (pid {worker.pid})")
    await asyncio.gather(_play_plain(stage), _play_ours(stage))


async def _play_plain(stage: Stage) -> None:
    stack = stage.stack
    task_queue = f"{stack.task_queue}-plain"
    promise = Promise("workflow completed", reached=2, effects=2)
    stage.show.step(f"plain: asks Stripe, gives up after {TRY_SECONDS} s, and Temporal tries again with a new key")
    async with (
        stage.play("plain activity, new key per try", promise) as scene,
        plain_worker(stage.client, task_queue, SECRET_KEY, stack.stripe.base_url),
    ):
        stack.stripe.control.fault("hang-after", payment_intent=scene.target)
        running = await stage.client.start_workflow(
            "PlainRefundWorkflow",
            args=[scene.target, SMALL],
            id=f"plain/{scene.target}",
            task_queue=task_queue,
            result_type=str,
        )
        async with asyncio.timeout(PATIENCE):
            receipt = await running.result()
        scene.ended = "workflow completed"
        journal = stage.journal(scene)
        keys = {a.idempotency_key for a in journal.arrivals if a.method == "POST"}
        stage.show.step(
            f"plain: the workflow completed and knows of {receipt}; with {len(keys)} keys it made"
            f" {len(journal.effects)} refunds"
        )


async def _play_ours(stage: Stage) -> None:
    async with stage.play("ours, the same fault", Promise("succeeded", reached=2, effects=1)) as scene:
        stage.stack.stripe.control.fault("hang-after", payment_intent=scene.target)
        await stage.propose(scene)
        stage.show.step(
            f"ours: proposed, waived by policy, sent; after {CALL_DEADLINE:.0f} s without an answer: unknown"
        )
        operation = await stage.until_state(scene, State.SUCCEEDED, State.NEEDS_REVIEW)
        posts = [a for a in stage.journal(scene).arrivals if a.method == "POST"]
        scene.expect(len({a.idempotency_key for a in posts}) == 1, "more than one key was used")
        scene.expect(posts[-1].replayed, "the last answer was not a replay of the first")
        stage.show.step(
            f"ours: the same bytes again under the same key; Stripe replays its answer: {operation.receipt}"
        )


async def twenty_five_hours_later(stage: Stage) -> None:
    """Act 2: the worker dies with the answer in its hands, and everybody sleeps until the key is forgotten."""
    stage.show.act(
        "Act 2: 25 hours later",
        "The worker is killed (SIGKILL) after Stripe executed and before the ledger heard. Everything wakes up 25 hours"
        " later, when Stripe has forgotten the key: a repeat would be a second refund.",
        "Somebody has to find out by hand whether the customer was refunded.",
    )
    promise = Promise("succeeded", reached=1, effects=1)
    async with stage.play("killed after Stripe executed, 25 h", promise) as scene:
        await killed_while_sending(stage, scene)
        made = [e.refund for e in stage.journal(scene).effects]
        stage.show.step(
            f"Stripe's journal has {', '.join(made) or 'nothing'}; our ledger has an attempt without outcome"
        )
        await stage.sleep_a_night()
        worker = stage.start_worker(crash=ANSWERED_KILL)
        stage.show.step(
            f"25 hours later (both clocks moved, keys pruned at Stripe) a new worker starts, pid {worker.pid}"
        )
        operation = await stage.until_state(scene, State.SUCCEEDED, State.NEEDS_REVIEW)
        scene.expect(made == [operation.receipt], "the receipt is not the refund that exists")
        scene.expect(await found_by_a_look(stage, scene), "it was not found by a look")
        stage.show.step(
            f"nothing was sent again: Stripe's list of refunds was read, {operation.receipt} has our marker"
        )


async def a_person(stage: Stage) -> None:
    """Act 3, first half: who may let money go."""
    stage.show.act(
        "Act 3: a person",
        "A larger refund waits for a signature, and others try to give it: too late, forged, the one who asked, noise.",
        "Only the right signature lets it go, and the trail has each refused one with its reason.",
    )
    promise = Promise("succeeded", reached=1, effects=1, people=("bob",))
    async with stage.play("a person lets it go", promise) as scene:
        await stage.propose(scene, LARGE, requested_by="alice")
        await stage.until_state(scene, State.AWAITING_APPROVAL)
        stage.show.step("150.00 EUR, asked for by alice: awaiting_approval, nothing is sent")
        await _wrong_signatures(stage, scene)
        scene.expect((await stage.operation(scene)).state is State.AWAITING_APPROVAL, "a refused signature moved it")
        scene.expect(stage.reached(scene) == 0, "something was sent before the right signature")
        await stage.workflow(scene).signal("decide", await stage.statement(scene, "bob", StatementType.APPROVAL))
        await stage.until_state(scene, State.SUCCEEDED, State.NEEDS_REVIEW, State.BLOCKED)
        stage.show.step("bob signs the sheet as it is: approved, sent, succeeded")


async def _wrong_signatures(stage: Stage, scene: Scene) -> None:
    signer, sheet, operation = await stage.signer(), await stage.sheet(scene), await stage.operation(scene)
    expired = signer.expired(operation, "bob", sheet)
    tries = (
        ("bob's approval of two hours ago", "statement_expired", expired),
        ("the same with its dates altered", "signature_wrong", signer.with_new_dates(expired)),
        ("bob's name under a key nobody knows", "key_unknown", signer.by_stranger(operation, "bob", sheet)),
        ("alice, who asked for it", "own_proposal", signer.about(operation, "alice", StatementType.APPROVAL, sheet)),
    )
    for _, _, envelope in tries:
        await stage.workflow(scene).signal("decide", envelope)
    await stage.workflow(scene).signal("decide")
    await stage.workflow(scene).signal("decide", "approve it, please")

    async def all_refused() -> bool:
        rules, junk = await _refusals(stage, scene)
        return len(rules) >= len(tries) and sum(junk.values()) >= 2

    await stage.until(all_refused, "every wrong signature is refused in the trail")
    rules, junk = await _refusals(stage, scene)
    for (what, promised, _), rule in zip(tries, rules, strict=True):
        stage.show.step(f"{what}: refused, {rule}")
        scene.expect(rule == promised, f"{what}: promised {promised}, the trail says {rule}")
    for problem, times in junk.items():
        stage.show.step(f"garbage: refused, {problem}")
        scene.expect(times == 1, f"{problem}: once sent, {times} times in the trail")


async def _refusals(stage: Stage, scene: Scene) -> tuple[list[str], dict[str, int]]:
    """Rules of refused statements in order, and how often each kind of garbage came, both by the trail."""
    trail = await stage.trail(scene)
    rules = [str(e.body["rule"]) for e in trail if e.kind is EventKind.STATEMENT_REFUSED]
    junk: dict[str, int] = {}
    for body in (e.body for e in trail if e.kind is EventKind.JUNK_REFUSED):
        junk[body["rule"]] = junk.get(body["rule"], 0) + int(body["count"])
    return rules, junk


async def nobody_knows(stage: Stage) -> None:
    """Act 3, second half: what no machine can settle."""
    stage.show.act(
        "Act 3, continued: nobody knows",
        "The same death as in act 2, but the request was lost before Stripe. Our ledger has the same record of both:"
        " an attempt without an outcome.",
        "A retry might refund twice and giving up might refund never: it must wait for people, and one is too few.",
    )
    promise = Promise("rejected", reached=0, lost=1, effects=0, people=("olga", "oscar"))
    async with stage.play("lost before Stripe, 25 h", promise) as scene:
        stage.stack.stripe.control.fault("lost-request", payment_intent=scene.target)
        await killed_while_sending(stage, scene)
        await stage.sleep_a_night()
        worker = stage.start_worker()
        stage.show.step(f"25 hours later a new worker starts, pid {worker.pid}")
        operation = await stage.until_state(scene, State.NEEDS_REVIEW, State.SUCCEEDED, State.REJECTED)
        stage.show.step(f"{operation.state}: {operation.reason}. The evidence:")
        for line in await stage.evidence_lines(scene):
            stage.show.step(f"   {line}")
        await settled_by_two(stage, scene, "Stripe's request log for this payment has no refund request of ours.")


async def settled_by_two(stage: Stage, scene: Scene, evidence: str) -> None:
    """One operator certifies that nothing happened, which is too little; a second one does, which is enough."""
    await stage.resolve(scene, "olga", "did_not_happen", evidence)
    state = (await stage.operation(scene)).state
    scene.expect(state is State.NEEDS_REVIEW, f"one operator alone moved it to {state}")
    stage.show.step(
        f"olga certifies did_not_happen: accepted, and still {state}: one operator is not enough", scene.name
    )
    await stage.resolve(scene, "oscar", "did_not_happen", evidence)
    operation = await stage.until_state(scene, State.REJECTED)
    stage.show.step(f"oscar certifies the same on the same evidence: {operation.state}", scene.name)


async def killed_while_sending(stage: Stage, scene: Scene) -> None:
    """Let the worker die at the moment when it has the answer (or the broken line) and the ledger has nothing."""
    worker = stage.worker
    stage.arm()
    await stage.propose(scene)
    await stage.until_dead(worker)
    scene.expect(worker.returncode == -signal.SIGKILL, f"the worker ended with {worker.returncode}, not by SIGKILL")
    stage.show.step(f"worker {worker.pid} is killed with SIGKILL; what Stripe answered, if it did, dies with it")
    operation = await stage.operation(scene)
    async with stage.ledger.transaction() as conn:
        sent = await attempts.read_attempts(conn, operation.operation_id)
    scene.expect([a.outcome for a in sent] == [None], "the ledger heard of the answer, or of more than one attempt")
    scene.expect(operation.state is State.IN_FLIGHT, f"it stands at {operation.state}, not in flight")


async def found_by_a_look(stage: Stage, scene: Scene) -> bool:
    """Whether a look saw a refund with our marker."""
    seen = [e for e in await stage.trail(scene) if e.kind in (EventKind.SIGHTING, EventKind.SIGHTING_SAME)]
    return any(effect["marked"] for e in seen for effect in e.body["effects"])


ACTS = (the_same_lost_answer_twice, twenty_five_hours_later, a_person, nobody_knows)
