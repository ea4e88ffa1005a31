"""`propose file` and `propose order`: what to ask for is in a JSON file; the key signs it, and the answer is told."""

import asyncio
import json
from pathlib import Path
from typing import Any
from uuid import UUID

from pydantic import ValidationError
from temporalio.client import WorkflowUpdateFailedError

from activities.messages import Proposal
from activities.order import Order, OrderAnswer, read_order
from commands.exits import Exit, Misuse
from commands.keys import signer
from commands.page import Page
from commands.propose import POLL_SECONDS, answer_page, asked, settled, signed
from commands.reading import reading
from commands.surroundings import ledger_dsn, settings
from commands.temporal import Temporal, connected
from commands.voice import Voice
from ledger.errors import Refused
from ledger.store import events
from ledger.trail import EventKind
from workflows.client import ask_order, sign_order

LARGEST_FILE = 256 * 1024


async def proposal(voice: Voice, file: Path, name: str, key_file: Path | None, wait: float | None) -> Page:
    """Propose what the file says; exit codes as of `propose refund`."""
    given, wanted = settings(), _proposal(read_json(file), file)
    async with reading(ledger_dsn(given)) as reader:
        who = await signer(reader, name, key_file, granted=True)
        answer = await asked(await connected(given), signed(wanted, who))
        if not answer.operation_id:
            return answer_page(answer, None, {}, waited=wait is not None)
        operation = await settled(reader, answer.operation_id, wait, voice)
        async with reader.snapshot() as conn:
            moved = await events.latest_body(conn, UUID(answer.operation_id), EventKind.MOVED)
    return answer_page(answer, operation, moved, waited=wait is not None)


async def order(voice: Voice, file: Path, name: str, key_file: Path | None, wait: float | None) -> Page:
    """Give the order in the file, or ask how it went; exit code 3 if it is refused or a step ended without its effect."""
    given, wanted = settings(), read_order(read_json(file))
    async with reading(ledger_dsn(given)) as reader:
        who = await signer(reader, name, key_file, granted=True)
        at = int(who.now.timestamp())
        wanted = sign_order(wanted, who.key, kid=who.kid, iss=who.owner, aud=who.audience, at=at)
    temporal = await connected(given)
    loop = asyncio.get_running_loop()
    until = loop.time() + (wait or 0.0)
    while True:
        answer = await _ask_order(temporal, wanted)
        if answer.ended or loop.time() >= until:
            break
        await asyncio.sleep(POLL_SECONDS * 5)
    return order_page(answer, waited=wait is not None)


def read_json(file: Path) -> Any:
    """The JSON value in the file. Misuse when there is no such file, or no JSON in it."""
    try:
        text = file.read_bytes()
    except OSError as error:
        raise Misuse(f"{file} cannot be read: {error.strerror}") from error
    if len(text) > LARGEST_FILE:
        raise Misuse(f"{file} is larger than {LARGEST_FILE} bytes")
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise Misuse(f"{file} is not JSON: {error}") from error


def order_page(answer: OrderAnswer, *, waited: bool) -> Page:
    """One line per step, in words."""
    undone = answer.ended and answer.state != "done"
    code = Exit.REFUSED if undone else Exit.UNSETTLED if waited and not answer.ended else Exit.ASKED
    page = Page(answer.model_dump(mode="json"), code)
    page.title(
        f"order {answer.order}: {answer.state.replace('_', ' ')}" + (f": {answer.reason}" if answer.reason else "")
    )
    page.fact("field", answer.field)
    page.fact("what to do", answer.message)
    for step in answer.steps:
        page.fact(step.step.value, step.sentence + (f" ({step.operation_id[:8]})" if step.operation_id else ""))
    return page


def _proposal(given: Any, file: Path) -> Proposal:
    try:
        return Proposal.model_validate(given)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        field = ".".join(str(part) for part in first["loc"])
        raise Refused("proposal_malformed", f"{file}: {field}: {first['msg']}", field=field) from None


async def _ask_order(temporal: Temporal, wanted: Order) -> OrderAnswer:
    try:
        async with temporal.calling():
            return await ask_order(temporal.client, wanted, task_queue=temporal.task_queue)
    except Refused as refused:
        if isinstance(refused.__cause__, WorkflowUpdateFailedError):
            raise Refused("order_malformed", str(refused)) from refused
        raise
