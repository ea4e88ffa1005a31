"""The other two jobs by the command line: what to ask for stands in a file, and the file again is the poll."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Rig
from tests.e2e.spoken import Effects, speaking


@pytest.fixture
def effects(desk: Rig, monkeypatch: pytest.MonkeyPatch) -> Iterator[Effects]:
    """Commands on a rig that is bound to the ERP, the address book and the mail server."""
    yield from speaking(desk, monkeypatch)


def written(path: Path, content: Any) -> str:
    path.write_text(json.dumps(content))
    return str(path)


async def test_an_order_is_given_read_approved_and_done(desk: Rig, effects: Effects, tmp_path: Path) -> None:
    customer = desk.world.erp.add_customer()
    order = desk.order(customer.code).model_dump(mode="json", exclude={"tokens"})
    file = written(tmp_path / "order.json", order)
    async with desk.worker():
        given = await effects("propose", "order", file, "--as", "order-bot")
        assert (given.code, given.document["state"]) == (0, "under_way"), given
        (invoice,) = [s for s in given.document["steps"] if s["step"] == "invoice"]
        sheet = await effects("sheet", invoice["operation_id"], as_json=False)
        assert "create_draft_invoice 217.50 EUR" in sheet.out and order["mail"]["digest"] in sheet.out
        approved = await effects("approve", invoice["operation_id"], "--as", "alice", "--yes")
        assert approved.code == 0, approved
        done = await effects("propose", "order", file, "--as", "order-bot", "--wait", "60", as_json=False)
        checked = await effects("verify")
    assert checked.code == 0, checked
    assert done.code == 0 and done.out.startswith(f"order {order['order']}: done"), done
    assert len(desk.world.box.to(order["confirm_to"])) == 1


async def test_a_delivery_date_is_proposed_from_a_file(desk: Rig, effects: Effects, tmp_path: Path) -> None:
    placed = desk.world.erp.place_order()
    proposal = desk.ask_for("change_delivery_date", placed.number or "", {"delivery_date": "2031-05-04"})
    file = written(tmp_path / "date.json", proposal.model_dump(mode="json", exclude={"token"}))
    async with desk.worker():
        asked = await effects("propose", "file", file, "--as", "order-bot")
        assert (asked.code, asked.document["state"]) == (0, "awaiting_approval"), asked
        await effects("approve", asked.document["operation_id"], "--as", "alice", "--yes")
        done = await effects("propose", "file", file, "--as", "order-bot", "--wait", "60")
        shown = await effects("show", asked.document["operation_id"], as_json=False)
    assert (done.code, done.document["state"]) == (0, "succeeded"), done
    assert {str(line.delivery_date) for line in desk.world.erp.order(placed.id).lines} == {"2031-05-04"}
    assert placed.number is not None and placed.number in shown.out


async def test_a_file_that_cannot_be_asked_for_says_what_to_correct(
    desk: Rig, effects: Effects, tmp_path: Path
) -> None:
    """Nothing is sent to anybody: exit code 2 or 3, and the field."""
    order = desk.order("C-NORTHWIND").model_dump(mode="json", exclude={"tokens"})
    (tmp_path / "not.json").write_text("{")
    for words, code, named in (
        (("order", str(tmp_path / "absent.json")), 2, "absent.json"),
        (("order", str(tmp_path / "not.json")), 2, "not JSON"),
        (("order", written(tmp_path / "a.json", order | {"total_minor": 1})), 3, "total_minor"),
        (("order", written(tmp_path / "b.json", order | {"items": "all"})), 3, "items"),
        (("file", written(tmp_path / "c.json", {"tenant": "acme"})), 3, "business_key"),
    ):
        told = await effects("propose", *words, "--as", "order-bot")
        assert told.code == code and named in told.err + told.out, told
