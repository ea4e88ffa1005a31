"""The real ERP that tests and demo write to: that it is made once and restored, and what our adapters may rest on.

Each fact about Tryton's protocol is measured here, so that a new version which behaves otherwise turns a test red before
it turns an effect wrong.
"""

import datetime
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from pathlib import Path
from typing import Any

import httpx
import pytest

import devstack
from devstack.child import FolderInUse
from devstack.postgres import Postgres
from devstack.tryton import names, snapshot
from devstack.tryton.rpc import TrytonError, TrytonSession
from devstack.tryton.server import TrytonServer, TrytonServerError, find_program
from devstack.tryton.snapshot import install, ready_server
from devstack.tryton.world import Order, TrytonWorld

# Where nobody has run `python -m devstack.tryton`, the first fixture makes the database.
pytestmark = pytest.mark.timeout(900)

REPOSITORY = Path(devstack.__file__).parents[1]
PATIENCE = 30.0
NEW_DUE = datetime.date(2027, 4, 15)
STALE = "1.000000"
CONCURRENCY = ["ConcurrencyException", "Records were modified in the meanwhile"]

# Starts a server on a Postgres of its parent's, tells its number, and waits to be killed.
LAUNCHER = """
import sys, time
from pathlib import Path
from types import SimpleNamespace
from devstack.tryton.server import TrytonServer
server = TrytonServer(Path(sys.argv[1]), SimpleNamespace(port=int(sys.argv[2])), password=sys.argv[3])
server.start()
print(server.pid, flush=True)
time.sleep(600)
"""


@pytest.fixture(scope="module")
def postgres(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Postgres]:
    """One Postgres for this file."""
    running = Postgres(tmp_path_factory.mktemp("tryton") / "postgres", durable=False)
    try:
        running.start()
        yield running
    finally:
        running.remove()


@pytest.fixture(scope="module")
def server(postgres: Postgres, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TrytonServer]:
    """One running ERP for all tests: what they need they make afresh."""
    with ready_server(tmp_path_factory.mktemp("tryton") / "server", postgres) as running:
        yield running


@pytest.fixture(scope="module")
def world(server: TrytonServer) -> Iterator[TrytonWorld]:
    """The books and the buyer."""
    with TrytonWorld(server) as books:
        yield books


@pytest.fixture(scope="module")
def service(server: TrytonServer) -> Iterator[TrytonSession]:
    """A session as our adapters have one."""
    with server.session(names.SERVICE) as session:
        yield session


# The launcher.


def test_the_seed_holds_what_its_names_promise(world: TrytonWorld) -> None:
    for reference, (state, lines) in names.ORDERS.items():
        order = world.order_named(reference)
        assert (order.company, order.state, len(order.lines)) == (names.ACME, state, lines)
        assert all(line.delivery_date_edit and line.delivery_date for line in order.lines)
    assert world.order_named(names.GLOBEX_ORDER).company == names.GLOBEX
    for code in (names.CUSTOMER_NORTHWIND, names.CUSTOMER_HARBOUR, names.SUPPLIER_BRIGHTWATER):
        assert world.customer_named(code).email.endswith(".example")
    products = world.admin.find("product.product", [], ["code", "list_price_used"], company=world.companies[names.ACME])
    assert {(row["code"], row["list_price_used"]) for row in products} == {
        (product.code, product.list_price) for product in names.PRODUCTS
    }


def test_the_books_are_open_today_and_for_years(world: TrytonWorld) -> None:
    today = datetime.datetime.now(datetime.UTC).date()
    for company in world.companies.values():
        for day in (today, today.replace(year=today.year + 5, day=1)):
            covers = [["company", "=", company], ["start_date", "<=", day], ["end_date", ">=", day]]
            [year] = world.admin.find("account.fiscalyear", covers, ["state"])
            [period] = world.admin.find("account.period", covers, ["state"])
            assert (year["state"], period["state"]) == ("open", "open")


def test_two_that_start_together_make_the_dump_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first is kept inside the build until the second has said that it waits.

    Red: drop the `flock` that waits in `dump`.
    """
    waits, builds = threading.Event(), []

    def build(path: Path, say: Callable[[str], None]) -> None:
        builds.append(path)
        assert waits.wait(PATIENCE)
        path.write_bytes(b"dump")

    def say(words: str) -> None:
        if "waiting for it" in words:
            waits.set()

    monkeypatch.setattr(snapshot, "_build", build)
    with ThreadPoolExecutor(2) as pool:
        paths = list(pool.map(lambda _: snapshot.dump(say, cache=tmp_path), range(2)))
    assert builds == paths[:1] == paths[1:]


def test_another_seed_is_another_dump(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = snapshot.digest()
    assert before == snapshot.digest()
    other = tmp_path / "seed.py"
    other.write_text("another seed")
    monkeypatch.setattr(snapshot, "_INGREDIENTS", (other,))
    assert snapshot.digest() != before


def test_a_database_that_is_there_is_left_as_it_is(postgres: Postgres, world: TrytonWorld, tmp_path: Path) -> None:
    """A second restore would need a dump, and say so: the cache that is offered is empty.

    Red: drop the question whether the database is known in `install`.
    """
    order = world.place_order()
    said: list[str] = []
    assert install(postgres, cache=tmp_path, say=said.append) == install(postgres, cache=tmp_path, say=said.append)
    assert said == []
    assert world.order(order.id) == order


def test_kill_and_restart_keep_port_records_and_sessions(server: TrytonServer, world: TrytonWorld) -> None:
    order, url = world.place_order(), server.base_url
    ticket = world.admin.authorization()
    server.kill()
    with pytest.raises(httpx.ConnectError):
        world.order(order.id)
    server.restart()
    assert server.base_url == url
    assert world.order(order.id) == order
    assert world.admin.authorization() == ticket


def test_a_second_launcher_is_refused(server: TrytonServer) -> None:
    with pytest.raises(FolderInUse, match="another run is using .*: stop it first, or choose another folder"):
        TrytonServer(server.root, server.postgres, password="any").start()
    with pytest.raises(TrytonServerError, match="already started"):
        server.start()


def test_the_server_dies_with_its_launcher(server: TrytonServer, postgres: Postgres, tmp_path: Path) -> None:
    argv = [sys.executable, "-c", LAUNCHER, str(tmp_path), str(postgres.port), install(postgres)]
    with subprocess.Popen(argv, cwd=REPOSITORY, stdout=subprocess.PIPE, text=True) as launcher:
        try:
            assert launcher.stdout is not None
            pid = int(launcher.stdout.readline())
        finally:
            launcher.kill()
    _poll_until(lambda: not _runs(pid))


def test_a_server_that_ends_at_once_is_told_with_its_own_words(
    postgres: Postgres, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "trytond"
    program.write_text("#!/bin/sh\necho its own words\nexit 3\n")
    program.chmod(0o700)
    monkeypatch.setenv("TRYTON_BIN", str(tmp_path))
    with pytest.raises(TrytonServerError, match=r"Tryton ended with 3; its last lines:\nits own words"):
        TrytonServer(tmp_path / "server", postgres, password="any").start()


def test_without_programs_it_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRYTON_BIN", str(tmp_path))
    with pytest.raises(TrytonServerError, match="holds no trytond: set it to the bin folder of a venv with Tryton"):
        find_program("trytond")
    monkeypatch.delenv("TRYTON_BIN")
    assert find_program("trytond").name == "trytond"
    with pytest.raises(TrytonServerError, match=r"is not there: `make \.venv-erp/\.installed` builds it"):
        find_program("trytonx")


# What adapters rest on: versions.


def test_a_write_with_the_current_versions_changes_header_and_line_in_one_transaction(
    service: TrytonSession, world: TrytonWorld
) -> None:
    order = world.place_order()
    assert _write(service, order, _versions(order)).json() == {"id": 1, "result": None}
    after = world.order(order.id)
    assert (after.comment, after.lines[0].delivery_date) == ("[effect op-1]", NEW_DUE)
    assert after.lines[1] == order.lines[1]
    # Both were written at one moment, that of the row in the server's own log.
    assert after.version == after.lines[0].version != order.version
    logged = world.log("purchase.purchase", order.id)[-1]
    assert (logged.user, logged.event, logged.target) == (names.SERVICE.name, "write", "comment,lines")
    assert logged.at == after.written_at
    assert [row.target for row in world.log("purchase.line", order.lines[0].id)] == ["delivery_date"]


def test_a_stale_version_is_refused_in_the_body_of_an_http_200(service: TrytonSession, world: TrytonWorld) -> None:
    order = world.place_order()
    world.edit_order(order.id, comment="the buyer was here")
    answer = _write(service, order, _versions(order))
    assert (answer.status_code, answer.json()) == (200, {"id": 1, "error": CONCURRENCY})
    assert world.order(order.id).comment == "the buyer was here"
    assert world.order(order.id).lines == order.lines


def test_a_stale_line_refuses_the_header_too(service: TrytonSession, world: TrytonWorld) -> None:
    order = world.place_order()
    world.move_delivery(order.lines[0].id, datetime.date(2027, 5, 5))
    before = world.order(order.id)
    assert before.version == order.version, "a line does not move its order's version"
    assert _write(service, order, _versions(order)).json()["error"] == CONCURRENCY
    assert world.order(order.id) == before


@pytest.mark.parametrize("version", [None, {}, {"purchase.line,0": STALE}], ids=["none", "empty", "of another record"])
def test_without_a_version_the_write_is_unconditional_and_nobody_is_told(
    service: TrytonSession, world: TrytonWorld, version: dict[str, str] | None
) -> None:
    order = world.place_order()
    world.edit_order(order.id, comment="the buyer was here")
    assert _write(service, order, version).json() == {"id": 1, "result": None}
    assert world.order(order.id).comment == "[effect op-1]"


def test_of_six_writers_with_one_version_exactly_one_wins(service: TrytonSession, world: TrytonWorld) -> None:
    order = world.place_order()
    together = threading.Barrier(6)

    def write(number: int) -> Any:
        together.wait(PATIENCE)
        return _write(service, order, _versions(order), comment=f"[effect {number}]").json()

    with ThreadPoolExecutor(6) as pool:
        answers = list(pool.map(write, range(6)))
    won = [number for number, answer in enumerate(answers) if "error" not in answer]
    assert [answer["error"] for answer in answers if "error" in answer] == [CONCURRENCY] * 5
    assert world.order(order.id).comment == f"[effect {won[0]}]"


# What adapters rest on: orders.


def test_every_fresh_order_is_another_one_in_the_state_asked_for(world: TrytonWorld) -> None:
    orders = [world.place_order(state=state, lines=1) for state in ("draft", "quotation", "confirmed", "processing")]
    assert [order.state for order in orders] == ["draft", "quotation", "confirmed", "processing"]
    assert orders[0].number is None
    assert len({order.reference for order in orders}) == len({order.number for order in orders}) == 4


def test_an_order_in_processing_refuses_a_date_but_takes_a_comment(service: TrytonSession, world: TrytonWorld) -> None:
    order = world.place_order(state="processing")
    kind, [words, *_] = _write(service, order, _versions(order)).json()["error"]
    assert kind == "UserError"
    assert words.startswith('You are not allowed to modify the field "Delivery Date" in record')
    assert world.order(order.id) == order
    service.write("purchase.purchase", [order.id], {"comment": "[effect op-1]"})
    assert world.order(order.id).comment == "[effect op-1]"


def test_a_date_that_may_not_be_edited_is_dropped_without_a_word(service: TrytonSession, world: TrytonWorld) -> None:
    order = world.place_order()
    world.lock_delivery(order.lines[0].id)
    assert _write(service, order, _versions(world.order(order.id))).json() == {"id": 1, "result": None}
    after = world.order(order.id)
    assert after.comment == "[effect op-1]"
    assert after.lines[0].delivery_date != NEW_DUE


def test_a_line_of_another_order_is_written_through_the_wrong_header(
    service: TrytonSession, world: TrytonWorld
) -> None:
    order, other = world.place_order(), world.place_order()
    lines = [["write", [other.lines[0].id], {"delivery_date": NEW_DUE}]]
    service.write("purchase.purchase", [order.id], {"lines": lines})
    assert world.order(other.id).lines[0].delivery_date == NEW_DUE


def test_another_companys_order_is_absent_from_searches_and_refused_by_id(
    service: TrytonSession, world: TrytonWorld
) -> None:
    others = world.place_others_order()
    assert service.find("purchase.purchase", [["reference", "=", others.reference]], ["id"]) == []
    widened = {"company": world.companies[names.GLOBEX], "companies": list(world.companies.values())}
    for context in ({}, widened):
        with pytest.raises(TrytonError, match="You are not allowed to read records .*\n?User in companies") as refused:
            service.read("purchase.purchase", [others.id], ["state"], **context)
        assert refused.value.kind == "UserError"
    answer = _write(service, others, _versions(others)).json()
    assert answer["error"][1][0].startswith("You are not allowed to write to records")
    assert world.order(others.id) == others


# What adapters rest on: invoices.


def test_the_reference_of_an_invoice_is_not_unique_and_the_total_is_the_servers(
    service: TrytonSession, world: TrytonWorld
) -> None:
    reference = f"op-{time.time_ns()}"
    for _ in range(2):
        service.create("account.invoice", _invoice(service, reference))
    first, second = world.invoices(reference)
    assert first.id != second.id
    assert (first.state, first.number, first.party) == ("draft", None, names.CUSTOMER_NORTHWIND)
    assert (first.untaxed, first.tax, first.total) == (Decimal("37.50"), Decimal("7.50"), Decimal("45.00"))
    [line] = first.lines
    assert (line.product, line.quantity, line.unit_price, line.taxes) == ("WIDGET", 3.0, Decimal("12.50"), (names.VAT,))
    # No row of the log tells of a creation: the record itself does.
    assert (first.created_by, world.log("account.invoice", first.id)) == (names.SERVICE.name, [])


def test_a_held_table_keeps_a_commit_back_until_it_is_released(
    service: TrytonSession, world: TrytonWorld, server: TrytonServer
) -> None:
    """The client has given up before the table is released: what it sent is done all the same."""
    reference = f"op-{time.time_ns()}"
    params = [[_invoice(service, reference)], service.context()]
    body = {"id": 1, "method": "model.account.invoice.create", "params": params}
    with world.hold("account_invoice_line") as held, ThreadPoolExecutor(1) as pool:
        sent = pool.submit(_post, server, service.authorization(), body, timeout=1.0)
        held.await_waiter()
        with pytest.raises(httpx.ReadTimeout):
            sent.result(PATIENCE)
        held.await_waiter()
        assert world.invoices(reference) == []
        held.release()
        _poll_until(lambda: world.invoices(reference) != [])


# What adapters rest on: parties, the log, and the protocol itself.


def test_a_party_its_address_and_its_email_change_together_or_not_at_all(
    service: TrytonSession, world: TrytonWorld
) -> None:
    customer = world.add_customer()
    [contact] = customer.contacts.values()
    change = {
        "name": "Renamed",
        "addresses": [["write", [customer.address], {"city": "Ghent"}]],
        "contact_mechanisms": [["write", [contact], {"value": "new@customer.example"}]],
    }
    current = service.read("party.contact_mechanism", [contact], ["_timestamp"])[0]["_timestamp"]
    for email_version in (STALE, current):
        versions = {f"party.party,{customer.id}": customer.version}
        versions[f"party.contact_mechanism,{contact}"] = email_version
        answer = service.answer("model.party.party.write", [customer.id], change, _timestamp=versions).json()
        if email_version == STALE:
            assert answer["error"] == CONCURRENCY
            assert world.customer(customer.id) == customer
    after = world.customer(customer.id)
    assert (after.name, after.city, after.email) == ("Renamed", "Ghent", "new@customer.example")


def test_the_log_cannot_be_written_by_those_it_is_about(service: TrytonSession, world: TrytonWorld) -> None:
    customer = world.add_customer()
    service.write("party.party", [customer.id], {"name": "Renamed"})
    [row] = world.log("party.party", customer.id)
    assert (row.user, row.event, row.target) == (names.SERVICE.name, "write", "name")
    forged = {"resource": f"party.party,{customer.id}", "event": "write", "target": "name"}
    for session in (service, world.buyer):
        assert [seen["id"] for seen in session.find("ir.model.log", _about(customer.id), ["id"])] == [row.id]
        for method, *arguments in (("create", [forged]), ("write", [row.id], forged), ("delete", [row.id])):
            with pytest.raises(TrytonError, match='You are not allowed to access "Model Log"'):
                session.call(f"model.ir.model.log.{method}", *arguments)


def test_a_session_that_is_not_one_is_401_without_a_body(server: TrytonServer) -> None:
    body = {"id": 1, "method": "model.party.party.search", "params": [[], 0, 1, None, {}]}
    answer = _post(server, "Session bm9uZTo0OnRva2Vu", body)
    assert (answer.status_code, answer.content) == (401, b"")


def test_a_session_that_the_server_has_forgotten_is_renewed(service: TrytonSession, server: TrytonServer) -> None:
    before = service.authorization()
    logout = {"id": 1, "method": "common.db.logout", "params": []}
    _post(server, before, logout).raise_for_status()
    assert service.find("party.party", [["code", "=", names.CUSTOMER_HARBOUR]], ["code"])
    assert service.authorization() != before


def test_one_key_less_in_the_body_and_refusals_come_as_http_codes(
    service: TrytonSession, world: TrytonWorld, server: TrytonServer
) -> None:
    order = world.place_order()
    context = {**service.context(), "_timestamp": {f"purchase.purchase,{order.id}": STALE}}
    params = [[order.id], {"comment": "[effect op-1]"}, context]
    body = {"method": "model.purchase.purchase.write", "params": params}
    answer = _post(server, service.authorization(), body)
    assert answer.status_code == 423
    assert world.order(order.id) == order


def test_what_it_does_not_understand_is_refused_in_ways_of_its_own(service: TrytonSession, world: TrytonWorld) -> None:
    customer = world.add_customer()
    answer = service.answer("model.party.party.write", [customer.id], {"no_such_field": 1})
    assert (answer.status_code, answer.json()["error"]) == (200, ["'no_such_field'", ""])
    assert service.answer("model.party.party.no_such_method", [customer.id]).status_code == 403
    assert service.answer("model.no.such.model.read", [customer.id]).json()["error"] == ["'no.such.model'", ""]
    absent = service.answer("model.party.party.write", [10**9], {"name": "Nobody"}).json()["error"]
    assert absent[1][0] == 'You are trying to write to records "1000000000" of "Party" that don\'t exist.'
    assert world.customer(customer.id) == customer


def _post(
    server: TrytonServer, authorization: str, body: dict[str, Any], *, timeout: float = PATIENCE
) -> httpx.Response:
    """A call made by hand."""
    headers = {"Authorization": authorization}
    return httpx.post(f"{server.base_url}/{server.database}/rpc/", json=body, headers=headers, timeout=timeout)


def _versions(order: Order) -> dict[str, str]:
    """The versions of the order and of its first line."""
    line = order.lines[0]
    return {f"purchase.purchase,{order.id}": order.version, f"purchase.line,{line.id}": line.version}


def _write(
    session: TrytonSession, order: Order, versions: dict[str, str] | None, *, comment: str = "[effect op-1]"
) -> httpx.Response:
    """Move the first line's delivery date and leave a mark in the header, in one call."""
    values = {"comment": comment, "lines": [["write", [order.lines[0].id], {"delivery_date": NEW_DUE}]]}
    return session.answer("model.purchase.purchase.write", [order.id], values, _timestamp=versions)


def _invoice(session: TrytonSession, reference: str) -> dict[str, Any]:
    """The least that makes a draft invoice of three widgets; accounts, unit and tax are what the server itself proposes."""
    own = {"company": session.context()["company"]}
    party = session.only("party.party", [["code", "=", names.CUSTOMER_NORTHWIND]])
    product = session.only("product.product", [["code", "=", "WIDGET"]])
    currency = session.only("currency.currency", [["code", "=", "EUR"]])
    head = {"type": "out", "party": party, "currency": currency, **own}
    proposed = session.call("model.account.invoice.on_change", head, ["party"])
    line = {"type": "line", "product": product, "quantity": 3.0, "currency": currency, "invoice_type": "out", **own}
    filled = session.call("model.account.invoice.line.on_change", line, ["product"])
    taxes = [tax["id"] for _, tax in filled["taxes"]["add"]]
    return {
        "type": "out",
        "party": party,
        "invoice_address": proposed["invoice_address"],
        "account": proposed["account"],
        "reference": reference,
        "lines": [
            [
                "create",
                [
                    {
                        "type": "line",
                        "product": product,
                        "quantity": 3.0,
                        "unit": filled["unit"],
                        "unit_price": {"__class__": "Decimal", "decimal": "12.50"},
                        "account": filled["account"],
                        "taxes": [["add", taxes]],
                    }
                ],
            ]
        ],
    }


def _about(party: int) -> list[list[str]]:
    return [["resource", "=", f"party.party,{party}"]]


def _runs(pid: int) -> bool:
    """Whether the process can still do anything: a dead one that nobody has reaped cannot."""
    shown = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True)
    return shown.stdout.strip()[:1] not in ("", "Z", "X")


def _poll_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, "the condition was not met in time"
        time.sleep(0.01)
