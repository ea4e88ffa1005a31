"""`effects register`: Temporal is told what our workflows need, once, and nothing of others is touched."""

import uuid
from collections.abc import Iterator

import pytest
from temporalio.client import Client
from temporalio.common import SearchAttributeKey

from tests.conftest import Rig
from tests.e2e.spoken import Effects, speaking
from worker import check_search_attributes
from workflows.operation import SEARCH_ATTRIBUTES


@pytest.fixture
def effects(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> Iterator[Effects]:
    """Commands on a rig, in a namespace that nobody has made."""
    monkeypatch.setenv("TEMPORAL_NAMESPACE", f"n{uuid.uuid4().hex[:8]}")
    yield from speaking(rig, monkeypatch)


async def test_a_namespace_is_made_only_when_asked_for_and_everything_once(rig: Rig, effects: Effects) -> None:
    """Then a worker finds what it demands. Red: return before the attributes are listed."""
    missing = await effects("register")
    assert (missing.code, missing.document["error"]["rule"]) == (3, "namespace_missing")
    made = await effects("register", "--retention-days", "30")
    assert (made.code, made.document["made"]) == (0, True)
    assert made.document["added"] == sorted(key.name for key in SEARCH_ATTRIBUTES)
    client = await Client.connect(rig.stack.servers.temporal.address, namespace=made.document["namespace"])
    await check_search_attributes(client)
    again = await effects("register")
    assert (again.code, again.document["made"], again.document["added"]) == (0, False, [])


async def test_an_attribute_of_another_type_is_refused_and_stays(
    rig: Rig, effects: Effects, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody else's workflows may use it. Red: compare names only."""
    made = await effects("register", "--retention-days", "1")
    client = await Client.connect(rig.stack.servers.temporal.address, namespace=made.document["namespace"])
    with monkeypatch.context() as wanted:
        wanted.setattr("commands.registering.SEARCH_ATTRIBUTES", (SearchAttributeKey.for_text("EffectState"),))
        refused = await effects("register")
    assert (refused.code, refused.document["error"]["rule"]) == (3, "search_attribute_differs")
    await check_search_attributes(client)
