"""The inbox's web application without servers: each answer, and what stands behind the door when it is given."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field

import httpx
import pytest
import structlog

from activities.ports import Secrets
from activities.settings import Settings
from devstack.stripe_standin.webhooks import signature
from inbox import app
from inbox.app import Bucket, Inside, application
from inbox.serve import check, signing_secrets
from ledger.errors import Broken, LedgerError, Refused, Unavailable
from ledger.model import InboxEvent
from providers.stripe_events import MAX_BODY

SECRET, PREVIOUS = "whsec_current", "whsec_previous"


@dataclass
class House:
    """What stands behind the door, in memory."""

    kept: list[InboxEvent] = field(default_factory=list)
    hints: int = 0
    trouble: LedgerError | None = None
    locked: LedgerError | None = None
    secrets: Sequence[str] = (SECRET, PREVIOUS)
    now: float = 0.0
    rate: float = 100.0

    def client(self) -> httpx.AsyncClient:
        """A client of an application on this house."""

        async def keep(event: InboxEvent) -> bool:
            if self.trouble is not None:
                raise self.trouble
            known = {e.event_id for e in self.kept}
            self.kept.append(event)
            return event.event_id not in known

        async def hint() -> None:
            self.hints += 1

        async def answers() -> None:
            if self.trouble is not None:
                raise self.trouble

        def secrets() -> Sequence[str]:
            if self.locked is not None:
                raise self.locked
            return self.secrets

        bucket = Bucket(self.rate, lambda: self.now)
        inside = Inside(keep, hint, answers, secrets, "acct_own", time.time, bucket)
        transport = httpx.ASGITransport(application(inside))
        return httpx.AsyncClient(transport=transport, base_url="http://inbox")


def body(event_id: str = "evt_1") -> bytes:
    """An event."""
    fields = {"id": event_id, "object": "event", "created": 1, "livemode": False, "type": "refund.updated"}
    return json.dumps(fields).encode()


def header(sent: bytes, secret: str = SECRET) -> dict[str, str]:
    """Signed now."""
    return {"Stripe-Signature": signature(sent, secret, time.time())}


async def test_a_verified_event_is_kept_then_answered_then_hinted_at() -> None:
    """Signed with either secret; again it is kept no second time, answered alike, and hinted at again."""
    house = House()
    async with house.client() as client:
        for secret, new in ((SECRET, True), (PREVIOUS, False)):
            answer = await client.post("/stripe", content=body(), headers=header(body(), secret))
            assert (answer.status_code, answer.json()) == (200, {"event": "evt_1", "new": new})
    assert house.hints == 2 and house.kept[0].account == "acct_own"


async def test_what_is_not_verified_is_refused_in_words_and_leaves_nothing() -> None:
    """Red: call `keep` before `read_event`."""
    house = House()
    two = [("Stripe-Signature", header(body())["Stripe-Signature"])] * 2
    async with house.client() as client:
        for sent, headers, rule in (
            (body(), {}, "signature_missing"),
            (body(), header(body(), "whsec_other"), "signature_wrong"),
            (b"refunded!", header(b"refunded!"), "event_malformed"),
            (body(), two, "signature_missing"),
        ):
            answer = await client.post("/stripe", content=sent, headers=headers)
            assert answer.status_code == 400 and answer.json()["error"]["rule"] == rule
            assert "refunded!" not in answer.text and "evt_1" not in answer.text
    assert (house.kept, house.hints) == ([], 0)


@pytest.mark.parametrize(
    ("trouble", "code", "rule"),
    [
        (Unavailable("away"), 503, "ledger_silent"),
        (Broken("a row that must not be"), 500, "broken"),
        (Refused("account_not_bound", "nobody is bound to acct_own"), 400, "account_not_bound"),
    ],
    ids=["away", "broken", "not bound"],
)
async def test_what_is_not_kept_is_not_answered_with_200(trouble: LedgerError, code: int, rule: str) -> None:
    """So that Stripe sends it again. Red: answer before `keep`."""
    house = House(trouble=trouble)
    async with house.client() as client:
        answer = await client.post("/stripe", content=body(), headers=header(body()))
        assert (answer.status_code, answer.json()["error"]["rule"], house.hints) == (code, rule, 0)


@pytest.mark.parametrize("rule", ["secret_missing", "secret_malformed"])
async def test_a_secret_that_is_just_being_written_says_later(rule: str) -> None:
    """It says nothing about the delivery."""
    async with House(locked=Refused(rule, "no secret")).client() as client:
        assert (await client.post("/stripe", content=body(), headers=header(body()))).status_code == 503


async def test_a_body_has_a_cap_whatever_its_header_says() -> None:
    """Announced or in pieces without a length; what is read ends at the cap. Red: drop either of the two comparisons."""
    house, read = House(), 0

    async def pieces() -> AsyncIterator[bytes]:
        nonlocal read
        for _ in range(64):
            read += 16 * 1024
            yield b" " * 16 * 1024

    async with house.client() as client:
        announced = await client.post("/stripe", content=b"", headers={"Content-Length": str(MAX_BODY + 1)})
        assert (announced.status_code, announced.json()["error"]["rule"]) == (413, "body_too_large")
        assert (await client.post("/stripe", content=pieces())).status_code == 413
        assert read <= MAX_BODY + 2 * 16 * 1024
        assert (await client.post("/stripe", content=b" " * MAX_BODY)).status_code == 400
        assert (await client.post("/stripe", content=b"", headers={"Content-Length": "9" * 30})).status_code == 400
    assert house.kept == []


async def test_a_slow_body_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Red: drop the timeout."""
    monkeypatch.setattr(app, "BODY_SECONDS", 0.05)

    async def never() -> AsyncIterator[bytes]:
        yield b"{"
        await asyncio.sleep(5)

    async with House().client() as client:
        assert (await client.post("/stripe", content=never())).status_code == 408


async def test_more_than_the_rate_is_told_to_come_later() -> None:
    """Twice the rate at once, then the rate; whoever waits is let in again. Red: `take` that always says yes."""
    house = House(rate=2.0)
    async with house.client() as client:
        codes = [(await client.post("/stripe", content=body(), headers=header(body()))).status_code for _ in range(6)]
        assert codes == [200] * 4 + [429] * 2
        house.now += 0.5
        last = [await client.post("/stripe", content=body(), headers=header(body())) for _ in range(2)]
        assert [answer.status_code for answer in last] == [200, 429]
        assert last[1].headers["Retry-After"] == "1"
        house.now += 3600
        codes = [(await client.post("/stripe", content=body(), headers=header(body()))).status_code for _ in range(5)]
        assert codes == [200] * 4 + [429]  # what was not used is not saved up


def test_a_rate_below_one_lets_one_in() -> None:
    """And the next when its time has come."""
    now = 0.0
    bucket = Bucket(0.1, lambda: now)
    assert (bucket.take(), bucket.take()) == (True, False)
    now = 10.0
    assert (bucket.take(), bucket.take()) == (True, False)


async def test_health_says_whether_the_ledger_answers() -> None:
    """And there is nothing else to ask for."""
    house = House()
    async with house.client() as client:
        assert (await client.get("/health")).json() == {"answers": True}
        house.trouble = Unavailable("away")
        assert (await client.get("/health")).status_code == 503
        assert (await client.get("/stripe")).status_code == 405
        assert (await client.get("/")).status_code == 404


async def test_no_log_line_repeats_what_was_sent() -> None:
    """Ids and rules of ours only: a refused body may hold anything."""
    with structlog.testing.capture_logs() as lines:
        async with House().client() as client:
            await client.post("/stripe", content=b"Ann Example, 4 Elm Street", headers=header(b"x"))
            await client.post("/stripe", content=body(), headers=header(body()))
    assert [line["event"] for line in lines] == ["webhook refused", "webhook kept"]
    assert "Elm" not in json.dumps(lines) and "whsec" not in json.dumps(lines)


def test_settings_that_keep_nothing_are_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each with the variable that mends it."""
    whole = {"inbox_dsn": "postgresql://x", "inbox_account": "acct_1"}
    for missing, rule in (("inbox_dsn", "inbox_dsn_missing"), ("inbox_account", "inbox_account_missing")):
        with pytest.raises(Refused, match=f"EFFECTS_{missing.upper()}") as refused:
            check(Settings(**{**whole, missing: ""}))
        assert refused.value.rule == rule
    with pytest.raises(Refused, match="EFFECTS_SECRET_STRIPE_WEBHOOK"):
        check(Settings(**whole))
    monkeypatch.setenv("EFFECTS_SECRET_STRIPE_WEBHOOK", SECRET)
    check(Settings(**whole))


def test_the_previous_secret_counts_while_it_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """Read anew each time: a rotation needs no restart."""
    monkeypatch.setenv("EFFECTS_SECRET_STRIPE_WEBHOOK", SECRET)
    assert signing_secrets(Secrets(None), Settings()) == [SECRET]
    monkeypatch.setenv("EFFECTS_SECRET_STRIPE_WEBHOOK_PREVIOUS", PREVIOUS)
    assert signing_secrets(Secrets(None), Settings()) == [SECRET, PREVIOUS]
    monkeypatch.delenv("EFFECTS_SECRET_STRIPE_WEBHOOK_PREVIOUS")
    assert signing_secrets(Secrets(None), Settings()) == [SECRET]
