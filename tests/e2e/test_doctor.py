"""`effects doctor`: what it says when all is well, and while workers, Temporal or Postgres are down."""

from collections.abc import Iterator
from typing import Any

import pytest

from devstack.ports import LOOPBACK, free_port
from ledger.store import clock
from tests.conftest import Rig
from tests.e2e.spoken import Effects, Spoken, speaking

AN_HOUR = 3_600.0


@pytest.fixture
def effects(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> Iterator[Effects]:
    """Run a command in this process, beside the worker's loop; with JSON unless told otherwise."""
    yield from speaking(rig, monkeypatch)


def first(said: Spoken) -> dict[str, Any]:
    """What is to be done first."""
    found: dict[str, Any] = said.document["todo"][0]
    return found


async def test_the_screen_says_what_is_unsettled_and_what_to_do_first(rig: Rig, effects: Effects) -> None:
    """While all is well nothing is. Then a request was lost and sending is held: what grows old without a worker is named.

    Red: read anything about operations through Temporal.
    """
    target = rig.payment()
    rig.stack.stripe.control.fault("lost-request", times=None, payment_intent=target)
    async with rig.worker():
        await rig.until((await rig.propose(rig.proposal(rig.payment()))).operation_id, "succeeded")
        well = await effects("doctor")
        assert (well.code, well.document["todo"]) == (0, []), well
        assert len(well.document["temporal"]["pollers"]) == 1
        assert well.document["configuration"]["version"] == 1
        assert well.document["postgres"]["migration"] == well.document["postgres"]["migrations_of_this_code"]
        asked = await rig.propose(rig.proposal(target))
        await rig.until(asked.operation_id, "unknown")
        assert (await effects("hold", "provider:stripe", "--reason", "outage", "--as", "olga", "--yes")).code == 0
        await rig.settled(asked.operation_id)
    said = await effects("doctor")
    oldest, window = said.document["oldest_unknown"], said.document["next_key_window"]
    assert oldest["operation_id"] == window["operation_id"] == asked.operation_id
    assert [h["scope"] for h in said.document["holds"]] == ["provider:stripe"]
    async with rig.stack.owner() as ledger, ledger.transaction() as conn:
        await clock.advance(conn, 22 * AN_HOUR)
    said = await effects("doctor")
    assert said.code == 3 and {one["do"] for one in said.document["todo"]} >= {
        f"effects show {asked.operation_id}",
        "effects audit --repair",
    }
    shown = (await effects("doctor", as_json=False)).out
    assert "nothing is sent for provider:stripe" in shown and "oldest unknown: acme/" in shown, shown


async def test_it_works_while_temporal_or_postgres_does_not_answer(
    rig: Rig, effects: Effects, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both addresses are named, and the ledger is read all the same. Red: connect to Temporal before the ledger is read."""
    nowhere = f"{LOOPBACK}:{free_port()}"
    monkeypatch.setenv("TEMPORAL_ADDRESS", nowhere)
    said = await effects("doctor")
    assert said.code == 4 and not said.document["temporal"]["answers"] and said.document["postgres"]["answers"]
    assert said.document["temporal"]["address"] == nowhere and "nothing is lost" in first(said)["do"]
    assert said.document["gauges"]["held"] == 0
    monkeypatch.setenv("EFFECTS_LEDGER_DSN", f"postgresql://nobody:secret@{nowhere}/ledger")
    monkeypatch.setenv("TEMPORAL_ADDRESS", rig.stack.servers.temporal.address)
    said = await effects("doctor")
    assert said.code == 4 and said.document["temporal"]["answers"] and "Postgres" in first(said)["do"]
    shown = (await effects("doctor", as_json=False)).out
    assert f"Postgres: does not answer at {nowhere}" in shown and "secret" not in shown
