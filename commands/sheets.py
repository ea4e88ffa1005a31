"""`inbox` and `sheet`: what waits for approval, and what an approver signs, recomputed from the very bytes shown."""

import json
import sys
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from commands import facts, tell
from commands.amounts import lasting
from commands.exits import Misuse
from commands.page import Page
from commands.reading import named, reading
from commands.surroundings import ledger_dsn, settings
from commands.voice import Voice
from ledger.errors import Broken, Refused
from ledger.fingerprint import CLAIMED_BY_AGENT
from ledger.model import Operation
from ledger.money import shown
from ledger.statement import read_sheet, sheet_digest
from ledger.store import statements, views
from ledger.store.database import Connection, now

# Identity fields that the upper part of the page shows.
_SHOWN = frozenset({"action", "target", "tenant", "business_key", "operation_id", "provider", "account", "livemode"}) | {
    "actor", "approval_expires_at", *CLAIMED_BY_AGENT
}  # fmt: skip


@dataclass(frozen=True)
class Sheet:
    """The bytes, what they say, and the two digests that a signature binds to, both computed here."""

    raw: bytes
    parts: dict[str, Any]
    digest: str
    fingerprint: str


async def inbox(voice: Voice) -> Page:
    """Everything that waits for people, oldest first."""
    async with reading(ledger_dsn(settings())) as reader, reader.snapshot() as conn:
        _, document = await views.configuration_in_force(conn)
        waiting = await views.awaiting_approval(conn)
        at = await now(conn)
        who = [await facts.must_act(conn, document, operation) for operation in waiting]
    page = Page(
        {
            "waiting": [
                tell.document(operation) | {"who_must_act": acts} for operation, acts in zip(waiting, who, strict=True)
            ]
        }
    )
    page.title(f"{len(waiting)} wait for approval" if waiting else "Nothing waits for approval.")
    page.table(
        ("operation", "what", "asked for by", "age", "expires in", "who must act"),
        [
            (
                str(o.operation_id)[:8],
                tell.headline(o),
                o.requested_by,
                lasting(at - o.proposed_at),
                lasting(o.approval_expires_at - at),
                acts,
            )
            for o, acts in zip(waiting, who, strict=True)
        ],
    )
    if waiting:
        page.say(f"read one: effects sheet {str(waiting[0].operation_id)[:8]}")
    return page


async def show(voice: Voice, name: str, *, raw: bool) -> Page:
    """The sheet of an operation; `raw` writes its exact bytes to stdout and nothing else."""
    if raw and voice.as_json:
        raise Misuse("give --raw or --json, not both")
    async with reading(ledger_dsn(settings())) as reader, reader.snapshot() as conn:
        operation = await named(conn, name)
        sheet = await latest(conn, operation)
    if raw:
        sys.stdout.flush()
        sys.stdout.buffer.write(sheet.raw)
        sys.stdout.buffer.flush()
        return Page()
    return sheet_page(sheet)


async def latest(conn: Connection, operation: Operation) -> Sheet:
    """The newest sheet of the operation. `Broken` when it shows another operation than the ledger has."""
    raw = await statements.latest_sheet(conn, operation.operation_id)
    if raw is None:
        wanted = "nobody is asked about it: a sheet is made when an operation awaits approval"
        raise Refused("sheet_missing", f"{operation.state}: {wanted}", field="operation")
    if operation.erased_at is not None:
        raise Refused("erased", "its sheet went with its other personal fields", field="operation")
    parts = read_sheet(raw)
    if parts["fingerprint"] != operation.fingerprint.hex():
        raise Broken(
            f"the sheet of {operation.operation_id} shows another operation than the ledger holds: sign nothing"
        )
    return Sheet(raw, parts, sheet_digest(raw).hex(), parts["fingerprint"])


def sheet_page(sheet: Sheet) -> Page:
    """What we read ourselves apart from what an agent claims; unseen characters are written out."""
    parts, asked = sheet.parts, sheet.parts["operation"]
    page = Page({**parts, "sheet": sheet.digest})
    what = " ".join(filter(None, (asked["action"], money(asked))))
    page.title(f"{what} on {asked['target']} for {asked['tenant']}/{asked['business_key']}")
    page.fact("operation", asked["operation_id"])
    page.fact("goes to", f"{asked['provider']} {asked['account']}, {'LIVE' if asked['livemode'] else 'test mode'}")
    page.fact("proposed by", asked["actor"])
    page.fact("may be sent until", moment(asked["approval_expires_at"]))
    page.fact("people needed", parts["people_needed"])
    page.say("")
    page.title("Read from the provider by us")
    for name, value in sorted(parts["read_from_provider_by_us"].items()):
        page.fact(f"  {name}", plain(value, name, asked))
    page.say("")
    page.title("Claimed by the agent (nobody has checked this)")
    for name, value in parts["claimed_by_agent"].items():
        if name == "evidence":
            for item in value:
                page.fact("  evidence", ", ".join(f"{key} {text}" for key, text in item.items()))
        else:
            page.fact(f"  {name}", plain(value, name, asked))
    page.say("")
    competing = parts["competing_proposals"]
    page.title("Competing proposals on the same target" if competing else "No competing proposals on this target")
    page.table(
        ("operation", "tenant", "state", "amount", "proposed"),
        [
            (
                c.get("operation_id", ""),
                c.get("tenant", ""),
                c.get("state", ""),
                c.get("amount", ""),
                c.get("proposed_at", ""),
            )
            for c in competing
        ],
    )
    page.say("")
    page.title("Everything else that is signed")
    for name in sorted(asked.keys() - _SHOWN):
        page.fact(f"  {name}", plain(asked[name], name, asked))
    page.say("")
    page.fact("fingerprint (computed from what is shown)", sheet.fingerprint)
    page.fact("sheet", f"{sheet.digest}, made {moment(parts['made_at'])}")
    return page


def money(asked: dict[str, Any]) -> str:
    """The amount of an operation as shown to people."""
    return "" if asked["amount_minor"] is None else shown(asked["amount_minor"], asked["currency"])


def moment(seconds: int) -> str:
    """Seconds since the epoch as a moment."""
    return tell.clock(datetime.fromtimestamp(seconds, UTC))


def plain(value: object, name: str, asked: dict[str, Any]) -> str:
    """A value of the sheet as text; minor units are shown as money beside it, never instead."""
    if isinstance(value, str):
        return value
    text = json.dumps(value, ensure_ascii=False, sort_keys=True)
    if name.endswith("_minor") and type(value) is int and asked["currency"]:
        return f"{text} ({shown(value, asked['currency'])})"
    return text
