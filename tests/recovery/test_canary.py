"""Values planted in every input are found nowhere but in their place: docs/personal-data.md says where that is."""

import asyncio
import base64
import json
import re
import secrets
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import psycopg
import pytest
from google.protobuf.json_format import MessageToJson
from psycopg import sql
from temporalio.api.sdk.v1 import WorkflowMetadata

from activities.messages import Proposal
from activities.order import Step
from devstack.faults import CutReply, ReplaceReply
from devstack.ports import LOOPBACK, free_port
from devstack.stack import SECRET_KEY, WEBHOOK_SECRET
from ledger.store import erasure, views
from ledger.store.database import now
from ledger.store.verify import verify
from tests.conftest import Door, Rig
from tests.providers.test_mail_archive import OPERATION, archived, look
from tests.recovery.order_world import FINAL_DOT, Job
from tests.recovery.test_receivers_faults import LETTER, NEW_DATE, Aim, aside
from tests.workflows.encrypted import encrypting, payloads_in
from workflows.codec import EncryptionCodec
from workflows.names import order_id

PAGE = Path(__file__).parents[2] / "docs" / "personal-data.md"
TABLE, LEFT = "## Where each stands\n", "## What an erasure leaves\n"  # the headings above them
LOG = "the worker's log"
WITHOUT_KEY = "Temporal, read without the key"
KEY = "payload_key_1"


@pytest.mark.parametrize("keys", ["", KEY], ids=["plain", "encrypted"])
async def test_no_secret_token_or_personal_field_leaves_its_place(rig: Rig, keys: str) -> None:
    """Red: log `input.args` in activities/observe.py, put `requested_by` into `progress._details`, or log a refused body;
    leave the codec out in worker.py.
    """
    ours = await encrypting(rig, keys)
    person, reference = f"canary.{uuid.uuid4().hex}@example.com", f"canary-{uuid.uuid4().hex}"
    target = rig.payment()
    proposal = rig.proposal(
        target, amount=5_000, requested_by=person, evidence=[{"kind": "mail", "reference": reference}]
    )
    port, metrics = free_port(), free_port()
    told = {"EFFECTS_LOG_LEVEL": "debug", "EFFECTS_BACKOFF": "0.2", "EFFECTS_PAYLOAD_KEYS": keys}
    rig.stack.worker(
        **told, EFFECTS_INBOX_PORT=str(port), EFFECTS_METRICS_PORT=str(metrics), EFFECTS_METRICS_EVERY="0.2"
    )
    rig.stack.stripe.control.fault("lost-answer", payment_intent=target)
    answer = await ours.propose(proposal)
    approval = await rig.signed(answer.operation_id, "alice", "approval")
    await ours.decide(proposal, approval)
    await rig.until(answer.operation_id, "succeeded")
    handle = ours.handle(proposal)
    await handle.result()
    history = readable(str((await handle.fetch_history()).events))  # the event starts another run
    door = Door(f"http://{LOOPBACK}:{port}/stripe", rig)
    event = json.loads(rig.events(target)[0])
    event["data"]["object"]["instructions_email"] = event["data"]["object"]["metadata"]["note"] = person
    assert await door.deliver(json.dumps(event).encode(), b'{"who": "' + person.encode() + b'"}') == [200, 400]
    assert await door.taken() == [[uuid.UUID(answer.operation_id)]]
    async with rig.ledger.transaction() as conn:
        kept = await (await conn.execute("select inbox_events::text as row from inbox_events")).fetchall()
    assert event["id"] in kept[0]["row"] and person not in kept[0]["row"]
    log = log_of(rig)
    assert event["id"] in log and WEBHOOK_SECRET not in log
    assert answer.operation_id in log
    described = str((await handle.describe()).raw_description)
    details = str((await ours.propose(proposal)).model_dump())
    async with httpx.AsyncClient() as http:
        numbers = (await http.get(f"http://{LOOPBACK}:{metrics}/metrics")).text
    assert "effect_ledger_accepted_results_total" in numbers
    for canary in (person, reference, proposal.token, approval["proof"], approval["statement"], SECRET_KEY):
        assert canary not in log, canary[:12]
        assert canary not in described
        assert canary not in details
        assert canary not in numbers
    # Inputs cross Temporal, where only a key hides them; the provider's secret never does.
    assert (person in history) is (not keys) and SECRET_KEY not in history


@pytest.mark.parametrize("said", ['{tag} BAD no search: TO "RECIPIENT"\r\n', "* BYE RECIPIENT\r\n"], ids=["bad", "bye"])
async def test_an_archive_that_quotes_our_search_tells_no_recipient(said: str) -> None:
    """What it says is kept with the look. Red: leave `wanted.recipient` out of what `Archive._in_thread` cuts."""
    recipient = OPERATION.arguments["to"]
    async with archived(SEARCH=said.replace("RECIPIENT", recipient).encode()) as server:
        seen = await look(server.port)
    assert "[cut]" in seen.detail["said"] and recipient not in str(seen)


@dataclass(frozen=True)
class Asked:
    """What is asked for with planted values, and every planted value by its kind, as the page calls it."""

    order: Job  # the answer to its mail is lost
    lost: tuple[Proposal, ...]  # as are the answers to these
    date: Proposal  # and to this one
    customer: Proposal  # refused by the ERP, in words that quote
    letter: Proposal  # refused by the mail server, in words that name the recipient
    declined: Proposal  # by a person, who says why
    planted: dict[str, tuple[str, ...]]


@pytest.mark.timeout(240)
async def test_what_stands_where_is_what_the_page_says(desk: Rig) -> None:
    """The table of docs/personal-data.md, in both directions: what is found stands in it, and what it says is found.

    What Temporal keeps is encrypted, and searched twice: with the key, and as it is without. Then all of it is erased, and the
    ledger holds what the second table says. Red: empty nothing but the operations.

    Red: log `input.args` in activities/observe.py; put `requested_by` into `progress._details` or a summary, or the facts of
    a preflight into its event; leave the recipient out of what `Mail.send` cuts; keep the comment in `records_of` of
    tryton_delivery.py; take a kind out of the page, or put one in; leave the failure converter out in converter.py.
    """
    desk = await encrypting(desk, KEY)
    asked = await aside(ask, desk)
    desk.stack.worker(EFFECTS_LOG_LEVEL="debug", EFFECTS_BACKOFF="0.2", EFFECTS_PAYLOAD_KEYS=KEY)
    await play(desk, asked)
    texts = await ledger(desk) | await temporal(desk, asked.order) | {LOG: log_of(desk)}
    assert await asked.order.id_of(Step.MAIL) in texts[LOG]
    found = {
        place: {kind for kind, values in asked.planted.items() if any(kernel(value) in text for value in values)}
        for place, text in texts.items()
    }
    said = page()
    assert set(said) <= set(texts), "a place that was not searched"
    assert {p: kinds for p, kinds in found.items() if kinds} == {p: kinds for p, kinds in said.items() if kinds}
    for secret in secrets_of(desk):
        assert [place for place, text in texts.items() if secret in text] == []
    await erase_everything(desk)
    left = {
        place: {kind for kind, values in asked.planted.items() if any(kernel(value) in text for value in values)}
        for place, text in (await ledger(desk)).items()
    }
    assert {place: kinds for place, kinds in left.items() if kinds} == page(LEFT)


async def erase_everything(desk: Rig) -> None:
    """All that was played has ended; the ledger verifies afterwards."""
    async with desk.ledger.transaction() as conn:
        ended = await erasure.ended_before(conn, await now(conn), 100)
        for operation in ended:
            await erasure.erase(conn, operation, "mira", "a test")
        assert len(ended) == len(await views.every_id(conn)) == 9
        assert (await verify(conn)).differences == []


def page(heading: str = TABLE) -> dict[str, set[str]]:
    """A table of the page: what stands in each place."""
    table = PAGE.read_text().partition(heading)[2].partition("\n## ")[0]
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines() if line.startswith("|")
    ]
    told: dict[str, set[str]] = {}
    for places, kinds, *_ in rows[2:]:  # below the heads and the line under them
        for place in re.findall(r"`([^`]+)`", places):
            told[place] = set(kinds.split(", ")) - {"nothing"}
    return told


def word() -> str:
    """A value that stands nowhere else."""
    return f"canary-{secrets.token_hex(8)}"


def number() -> str:
    """A telephone number that stands nowhere else."""
    return f"+49 30 {secrets.randbelow(10**10):010}"


def address() -> str:
    """A mail address that stands nowhere else."""
    return f"{word()}@customer.test"


def kernel(value: str) -> str:
    """The part of a planted value that stays, whatever becomes of its signs."""
    found = re.search(r"[0-9a-f]{16}|[0-9]{10}", value)
    return found[0] if found else value


def ask(desk: Rig) -> Asked:
    """Plant values in records of the receivers, and in what is asked about them."""
    erp, book = desk.world.erp, desk.world.book
    asker, mail, slot, name, rest = f"{word()}@acme.test", f"<{address()}>", word(), word(), word()
    names, comments, old = (word(), word(), word()), (word(), word()), (address(), number())
    details, to = (address(), number(), word(), number(), address()), (address(), address())
    buyer, other = erp.add_customer(names[0]), erp.add_customer(names[1])
    erp.edit_record("party.contact_mechanism", other.contacts[other.email], value=old[0], comment=comments[0])
    card = book.add(names[2], f"TEL:{old[1]}", f"NOTE:{rest}", version="3.0")
    moved, kept = erp.place_order(lines=1), erp.place_order(lines=1)
    erp.edit_order(moved.id, comment=comments[1])

    def proposal(action: str, target: str | None, **arguments: Any) -> Proposal:
        return desk.ask_for(action, str(target), arguments, requested_by=asker)

    contact = {"full_name": name, "email": details[0], "phone": details[1], "note": details[2]}
    slots = LETTER | {"customer": slot}
    reference = {"reference": mail, "digest": "sha256:" + "ab" * 32}
    order = desk.order(buyer.code, requested_by=asker, confirm_to=to[0], mail=reference)
    return Asked(
        order=Job(desk, buyer, order, desk.stack.task_queue),
        lost=(
            proposal("create_contact", secrets.token_hex(8), **contact),
            proposal("update_contact", Path(card.href).stem, phone=details[3]),
        ),
        date=proposal("change_delivery_date", moved.number, delivery_date=NEW_DATE),
        customer=proposal("update_customer", other.code, email=details[4]),
        letter=proposal("send_mail", "C-CANARY", to=to[1], template="order-confirmation-1", fields=slots),
        declined=proposal("change_delivery_date", kept.number, delivery_date=NEW_DATE),
        planted={
            "asker": (asker,),
            "signer": ("alice",),
            "reason": (word(),),
            "order mail": (mail,),
            "mail address": to,
            "mail slots": (slot,),
            "contact name": (name,),
            "contact details": details,
            "current name": names,
            "current details": old,
            "rest of the card": (rest,),
            "old comment": comments,
            "receiver's words": (word(), address()),
        },
    )


async def play(desk: Rig, asked: Asked) -> None:
    """Bring all of it to its end: answers are lost, two receivers refuse, a person declines."""
    proxies, quoted = desk.world.proxies, asked.planted["receiver's words"]
    proxies["smtp"].arm(CutReply(after=FINAL_DOT))
    proxies["carddav"].arm(CutReply(after=b"PUT /", times=2))
    aim = proxies["tryton"].arm(Aim())
    await asked.order.ask()
    await asked.order.approve(Step.INVOICE)
    assert (await asked.order.until_ended()).state == "done"
    for proposal in asked.lost:
        await desk.approve(await waits(desk, proposal))
    lost = [await waits(desk, asked.date), await waits(desk, asked.customer)]
    aim.at(f"[effect {lost[0]}]".encode(), CutReply())
    words = f'The email address "{quoted[1]}" for party "{quoted[0]}" is not valid.'
    aim.at(f"[effect {lost[1]}]".encode(), ReplaceReply(answer=user_error(words), deliver=False))
    for operation_id in lost:
        await desk.approve(operation_id)
    to = asked.letter.arguments["to"]
    unknown = f"550 5.1.1 <{to}>: no such user\r\n".encode()
    proxies["smtp"].arm(ReplaceReply(after=f"RCPT TO:<{to}>".encode(), answer=unknown))
    await desk.approve(await waits(desk, asked.letter))
    declined = await waits(desk, asked.declined)
    said = await desk.signed(declined, "alice", "decline", reason=asked.planted["reason"][0])
    await desk.handle(asked.declined).signal("decide", said)
    every = (*asked.lost, asked.date, asked.customer, asked.letter, asked.declined)
    ends = [await asyncio.wait_for(desk.handle(proposal).result(), 60) for proposal in every]
    assert [end["state"] for end in ends] == [*["succeeded"] * 3, *["rejected"] * 2, "blocked"]


async def waits(desk: Rig, proposal: Proposal) -> str:
    """Propose it; it waits for a person. Its operation id."""
    answer = await desk.propose(proposal)
    assert answer.operation_id, answer
    await desk.until(answer.operation_id, "awaiting_approval")
    return answer.operation_id


def user_error(words: str) -> bytes:
    """A refusal of Tryton's, as it comes over the wire."""
    body = json.dumps({"id": 1, "error": ["UserError", [words, "", None]]}).encode()
    head = (
        f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + body


async def ledger(desk: Rig) -> dict[str, str]:
    """Every column of every table, as one text."""
    found: dict[str, str] = {}
    async with await psycopg.AsyncConnection.connect(desk.stack.owner_dsn) as conn:
        tables = await (
            await conn.execute("select table_name from information_schema.tables where table_schema = 'public'")
        ).fetchall()
        for (table,) in tables:
            rows = await conn.execute(sql.SQL("select * from {}").format(sql.Identifier(table)))
            columns = [f"{table}.{column.name}" for column in rows.description or ()]
            cells = list(zip(*await rows.fetchall(), strict=True)) or [()] * len(columns)
            found |= {name: readable("\n".join(map(plain, of))) for name, of in zip(columns, cells, strict=True)}
    return found


async def temporal(desk: Rig, order: Job) -> dict[str, str]:
    """What Temporal keeps of the order and of every operation, and what it shows: with the key, and without it."""
    codec = desk.client.data_converter.payload_codec
    assert isinstance(codec, EncryptionCodec)
    async with desk.ledger.transaction() as conn:
        rows = await (await conn.execute("select tenant || '/' || business_key as id from operations")).fetchall()
    places = ("order history", "operation history", "visibility", "summaries", "current details", WITHOUT_KEY)
    found = dict.fromkeys(places, "")
    for name in (order_id(order.order.tenant, order.order.order), *(row["id"] for row in rows)):
        handle = desk.client.get_workflow_handle(name)
        fetched = await handle.fetch_history()
        described = (await handle.describe()).raw_description
        opened, memo = (
            [(where, codec.opened(payload)) for where, payload in payloads_in(kept)]
            for kept in (fetched.to_json(), MessageToJson(described.workflow_execution_info))
        )
        shown = await handle.query("__temporal_workflow_metadata", result_type=WorkflowMetadata)
        history = "order history" if name.startswith("order:") else "operation history"
        found[history] += readable(f"{fetched.events} {opened}")
        found[WITHOUT_KEY] += readable(f"{fetched.events} {described}")
        found["visibility"] += f"{described.workflow_execution_info} {memo}"
        found["summaries"] += str([inside for where, inside in opened if where.startswith("userMetadata")])
        found["current details"] += shown.current_details
    return found


def log_of(rig: Rig) -> str:
    """All that the rig's one worker has said so far."""
    return readable((rig.stack.root / "worker-1.log").read_text())


def plain(cell: Any) -> str:
    """A cell as text."""
    if isinstance(cell, bytes | memoryview):
        return bytes(cell).decode(errors="replace")
    return json.dumps(cell, ensure_ascii=False) if isinstance(cell, dict | list) else str(cell)


def readable(text: str) -> str:
    """The text, and everything in it that is written in base64: tokens, signatures, statements with their sheets."""
    return "\n".join([text, *_decoded(text)])


def _decoded(text: str) -> Iterator[str]:
    for run in re.findall(r"[A-Za-z0-9_-]{16,}", text):
        yield base64.urlsafe_b64decode(run + "=" * (-len(run) % 4) if len(run) % 4 != 1 else run[:-1]).decode(
            errors="replace"
        )


def secrets_of(desk: Rig) -> list[str]:
    """Of every receiver and of the ledger, in the spellings in which they are sent."""
    logins = [access.secret for access in desk.world.access().values()]
    passwords = [login.partition(":")[2] for login in logins]
    sent = [base64.b64encode(login.encode()).decode() for login in logins]
    sent += [base64.b64encode(("\0" + login.replace(":", "\0")).encode()).decode() for login in logins]
    postgres = str(psycopg.conninfo.conninfo_to_dict(desk.stack.worker_dsn)["password"])
    return [SECRET_KEY, *logins, *passwords, *sent, postgres]
