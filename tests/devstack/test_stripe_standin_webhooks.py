"""The Stripe stand-in tells its events as Stripe does, signed so that the real SDK believes them, until they are taken."""

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import stripe

from devstack.ports import LOOPBACK
from devstack.stripe_standin.control import StandInControl
from devstack.stripe_standin.launch import StandInProcess
from devstack.stripe_standin.rules import Move
from tests.devstack.conftest import client, refund

SECRET = "whsec_standin"


def told(world: StandInControl, payment: str) -> list[tuple[str, dict[str, Any]]]:
    """(type, object) of every event about a payment."""
    events = [json.loads(event) for event in world.events(payment)]
    return [(event["type"], event["data"]["object"]) for event in events]


def test_every_change_of_a_refund_is_told_with_the_refund_as_it_was_then(
    sdk: stripe.StripeClient, world: StandInControl
) -> None:
    """Made pending, then good, then failed after all; in the order in which it happened."""
    payment = world.create_payment(5000).payment_intent
    world.set_defaults(refund_status="pending", moves=(Move(after_seconds=60, status="succeeded"),))
    made = refund(sdk, payment, 1000, key="k1")
    world.advance(61)
    world.set_refund(made.id, status="failed", failure_reason="declined")
    events = told(world, payment)
    assert [(kind, thing.get("status")) for kind, thing in events] == [
        ("refund.created", "pending"),
        ("charge.refunded", "succeeded"),  # the charge's own
        ("refund.updated", "succeeded"),
        ("charge.refund.updated", "succeeded"),
        ("refund.updated", "failed"),
        ("charge.refund.updated", "failed"),
        ("refund.failed", "failed"),
    ]
    assert {thing["id"] for kind, thing in events if kind != "charge.refunded"} == {made.id}
    assert events[0][1]["metadata"] == {"operation_id": "op"}
    assert (events[1][1]["object"], events[1][1]["amount_refunded"]) == ("charge", 1000)
    first = json.loads(world.events(payment)[0])
    assert first["request"]["idempotency_key"] == "k1" and first["livemode"] is False and "account" not in first
    assert len({json.loads(event)["id"] for event in world.events(payment)}) == 7


def test_what_nobody_asked_for_over_the_api_is_told_too(sdk: stripe.StripeClient, world: StandInControl) -> None:
    """A refund from the dashboard; a canceled one has no event of its own."""
    payment = world.create_payment(5000).payment_intent
    foreign = world.foreign_refund(payment, 700, status="requires_action")
    world.set_refund(foreign, status="canceled")
    assert [kind for kind, _ in told(world, payment)] == [
        "refund.created",
        "charge.refunded",
        "refund.updated",
        "charge.refund.updated",
    ]
    assert json.loads(world.events(payment)[0])["request"] == {"id": None, "idempotency_key": None}


def test_events_of_a_connected_account_name_it(process: StandInProcess, world: StandInControl) -> None:
    """And only those."""
    own = world.wait_ready()
    world.add_account("acct_connected", platform=own)
    payment = world.create_payment(5000, account="acct_connected").payment_intent
    refund(client(process, stripe_account="acct_connected"), payment, 1000)
    assert [json.loads(event)["account"] for event in world.events(payment)] == ["acct_connected"] * 2


@contextmanager
def receiver(answers: list[int]) -> Iterator[tuple[str, list[tuple[bytes, str]]]]:
    """A server that gives these answers, one after another, the last for ever; its address and what it got."""
    got: list[tuple[bytes, str]] = []

    class Exchange(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            got.append((self.rfile.read(int(self.headers["Content-Length"])), self.headers["Stripe-Signature"]))
            self.send_response(answers.pop(0) if len(answers) > 1 else answers[0])
            self.end_headers()

        def log_message(self, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer((LOOPBACK, 0), Exchange)
    running = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    running.start()
    try:
        yield f"http://{LOOPBACK}:{server.server_port}/stripe", got
    finally:
        server.shutdown()
        running.join()
        server.server_close()


def test_the_sender_signs_as_the_sdk_wants_it_and_tries_again(sdk: stripe.StripeClient, world: StandInControl) -> None:
    """Two events; the first is refused twice. Each try is signed anew, what was taken does not come again."""
    payment = world.create_payment(5000).payment_intent
    refund(sdk, payment, 1000)
    with receiver([500, 200, 503, 200]) as (address, got):
        world.send_webhooks(address, SECRET)
        deadline = time.monotonic() + 20
        while len(got) < 4 and time.monotonic() < deadline:
            time.sleep(0.05)
        time.sleep(0.6)
        world.reset()
    assert len(got) == 4
    ids = []
    for body, header in got:
        event = stripe.Webhook.construct_event(body, header, SECRET)
        ids.append(event.id)
    assert (len(set(ids)), ids.count(ids[0])) == (2, 3)
    assert len({header for body, header in got if json.loads(body)["id"] == ids[0]}) >= 2
