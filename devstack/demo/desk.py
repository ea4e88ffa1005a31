"""The desk: a stage for the other two jobs, with an ERP, an address book and a mail server that nobody here wrote.

Its ledger is one of its own whose clock is never moved: these receivers go by the time of this machine. Every row has a
customer or a purchase order of its own, so that whatever stands there was done for this row.
"""

import asyncio
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from temporalio.client import Client

from activities.messages import Proposal
from activities.order import Order, OrderAnswer, Step, business_key
from devstack.demo.promises import Promise
from devstack.demo.records import Case, Dates
from devstack.demo.show import Show
from devstack.demo.stage import BACKOFF, PATIENCE, NotSeen, Scene, Stage
from devstack.fault_proxy import Conversation
from devstack.faults import Fault
from devstack.radicale import Card
from devstack.receivers import Receivers
from devstack.stack import Stack
from ledger.fingerprint import operation_id
from ledger.model import Operation, Sighting
from ledger.statement import StatementType
from ledger.states import State
from ledger.store import attempts, operations, statements
from ledger.store.database import Ledger
from workflows.client import ask_order, propose, sign, sign_order
from workflows.names import order_id, workflow_id

TENANT, AGENT, PERSON = "acme", "order-bot", "alice"
ITEMS = [
    {"product": "WIDGET", "quantity": 3, "unit_price_minor": 12_50},
    {"product": "SURVEY", "quantity": 1, "unit_price_minor": 180_00},
]
TOTAL_MINOR = 217_50
SEND_WITHIN, CALL_DEADLINE = 60.0, 20.0
ORDERED = Promise("done", reached=(1, 1, 1), effects=(1, 1, 1), people=(PERSON,))
"""One invoice, one change of the customer's record and one mail, whatever goes wrong."""


@dataclass(eq=False, kw_only=True)
class LostAnswer(Fault):
    """No answer comes to what follows the marker, until `now` ends the client's line without one.

    The server hears everything. It `fired` when the server has answered, which it may never do.
    """

    _kept: list[Conversation] = field(default_factory=list, init=False, repr=False)

    @property
    def begun(self) -> bool:
        """Whether the marker went by."""
        return bool(self._kept)

    def now(self) -> None:
        """The client hears that the line is gone. What the server still does, or says, it does and says to nobody."""
        self.in_proxy(self._end())

    async def begin(self, conversation: Conversation) -> None:
        """The marker has gone on to the server."""
        self._kept.append(conversation)

    async def reply(self, conversation: Conversation, piece: bytes) -> None:
        """Swallowed."""
        self.note_fired()

    async def reply_ended(self, conversation: Conversation) -> None:
        """Swallowed."""

    async def _end(self) -> None:
        for conversation in self._kept:
            conversation.end_reply()


class Desk(Stage):
    """The stage of orders and delivery dates."""

    # No answer is waited for here: a line that is to be lost is ended. The bounds are wide, the first pause is short.
    settings: Mapping[str, str] = {
        "EFFECTS_SEND_WITHIN": str(SEND_WITHIN),
        "EFFECTS_CALL_DEADLINE": str(CALL_DEADLINE),
        "EFFECTS_BACKOFF": str(BACKOFF),
    }

    def __init__(self, stack: Stack, client: Client, ledger: Ledger, show: Show) -> None:
        super().__init__(stack, client, ledger, show)
        assert stack.receivers is not None
        self.world: Receivers = stack.receivers

    # Orders.

    async def new_order(self, scene: Scene, *, in_book: bool = False) -> Case:
        """An order of a fresh customer; the scene is about it. `in_book`: the customer's record is in the address book."""
        customer = await asyncio.to_thread(self.world.erp.add_customer, "Northwind Traders")
        card = await asyncio.to_thread(self._new_card, customer.code) if in_book else None
        number = uuid.uuid4().hex[:6]
        fields: dict[str, Any] = {
            "tenant": TENANT,
            "order": f"O-{number}",
            "actor": AGENT,
            "requested_by": "mia",
            "customer": customer.code,
            "currency": "eur",
            "items": ITEMS,
            "total_minor": TOTAL_MINOR,
            "mail": {"reference": f"<{number}@customer.example>", "digest": "sha256:" + "ab" * 32},
            "confirm_to": f"nora-{number}@customer.example",
        }
        if card is not None:
            fields["customer_action"] = "update_contact"
        order = self._signed_order(Order.model_validate(fields))
        async with self.ledger.transaction() as conn:
            namespace = await operations.namespace(conn)
        ids = {step: str(operation_id(namespace, TENANT, business_key(order, step))) for step in Step}
        scene.records = case = Case(self.world, order, customer, card, ids)
        scene.operation_id, *scene.others = ids.values()
        return case

    def _new_card(self, name: str) -> Card:
        """A contact under the customer's own code."""
        lines = ["BEGIN:VCARD", "VERSION:4.0", f"UID:{name}", "FN:Nora Northwind", "N:Northwind;Nora;;;", "END:VCARD"]
        content = "".join(f"{line}\r\n" for line in lines).encode()
        return self.world.book.write(f"{self.world.book.path}{name}.vcf", content)

    def _signed_order(self, order: Order) -> Order:
        bot = self.stack.household.holders[AGENT]
        return sign_order(order, bot.key, kid=bot.kid, iss=bot.name, aud=self.stack.household.audience)

    async def give(self, case: Case) -> OrderAnswer:
        """Give the order, or ask how it goes."""
        answer = await ask_order(self.client, case.order, task_queue=self.stack.task_queue)
        if answer.state == "refused":
            raise NotSeen(f"the order was refused: {answer.reason} {answer.field} {answer.message}")
        return answer

    async def _end_of(self, case: Case) -> OrderAnswer:
        """What the order's own workflow says in the end."""
        running = self.client.get_workflow_handle(order_id(TENANT, case.order.order), result_type=OrderAnswer)
        with self.show.waiting(f"waiting for order {case.order.order}"):
            async with asyncio.timeout(PATIENCE):
                answer: OrderAnswer = await running.result()
        return answer

    async def look_now(self, case: Case, step: Step) -> None:
        """Spare everybody the rest of a pause."""
        name = workflow_id(TENANT, business_key(case.order, step))
        await self.client.get_workflow_handle(name).signal("look_now")

    def say_state(self, scene: Scene, answer: OrderAnswer, when: str) -> None:
        """What the order's workflow says of every step."""
        self.show.step(f"{when}:", scene.name)
        for view in answer.steps:
            self.show.step(f"   {view.step}: {view.sentence}", scene.name)

    async def end(self, scene: Scene, case: Case) -> OrderAnswer:
        """Wait for the end of the order, and compare: its effects are the ones that were asked for."""
        answer = await self._end_of(case)
        scene.ended = answer.state
        await self._compare(scene, case)
        return answer

    async def _compare(self, scene: Scene, case: Case) -> None:
        invoice = await self.find(case.ids[Step.INVOICE])
        receipt = (invoice.receipt if invoice is not None else None) or "no receipt"
        rows = await asyncio.to_thread(case.invoices)
        drafts = [(f"account.invoice,{row['id']}", row["state"], int(row["untaxed_amount"] * 100)) for row in rows]
        wanted = [(receipt, "draft", TOTAL_MINOR)]
        scene.expect(drafts == wanted, f"the customer's invoices are {drafts}, not {wanted}")
        note, mails = await asyncio.to_thread(case.note), await asyncio.to_thread(case.mails)
        scene.expect(receipt in note, f"the customer's record does not name the invoice: {note!r}")
        scene.expect(all(receipt in mail.text for mail in mails), "the mail does not name the invoice")

    # Delivery dates.

    async def new_purchase(self, scene: Scene) -> Dates:
        """A fresh purchase order of two lines, which an agent wants 30 days later; the scene is about it."""
        due = datetime.now(UTC).date() + timedelta(days=30)
        purchase = await asyncio.to_thread(self.world.erp.place_order, due=due)
        scene.records = dates = Dates(self.world, purchase, due + timedelta(days=30))
        scene.target = str(purchase.number)
        scene.proposal = self.change(dates)
        await self.ask(scene)
        return dates

    def change(self, dates: Dates) -> Proposal:
        """An order and a date, signed by the agent's service; the version is read by us."""
        proposal = Proposal(
            tenant=TENANT,
            business_key=f"date/{uuid.uuid4().hex[:12]}",
            action="change_delivery_date",
            target=str(dates.purchase.number),
            arguments={"delivery_date": dates.wanted.isoformat()},
            actor=AGENT,
            requested_by="mia",
            evidence=[{"kind": "ticket", "reference": "T-4712"}],
        )
        bot = self.stack.household.holders[AGENT]
        return sign(proposal, bot.key, kid=bot.kid, iss=bot.name, aud=self.stack.household.audience)

    async def ask_anew(self, scene: Scene, dates: Dates) -> Operation:
        """Another operation for the same change, on the order as it stands now; it belongs to this row too."""
        answer = await propose(self.client, self.change(dates), task_queue=self.stack.task_queue)
        if not answer.operation_id:
            raise NotSeen(f"not recorded: {answer.state} {answer.reason} {answer.message}")
        scene.others.append(answer.operation_id)
        await self.until_any(answer.operation_id, State.AWAITING_APPROVAL)
        found = await self.find(answer.operation_id)
        assert found is not None
        return found

    # Both.

    async def approve(self, operation: str) -> dict[str, str]:
        """The person signs the sheet of this operation as soon as there is one; returns what was signed."""
        await self.until_any(operation, State.AWAITING_APPROVAL)
        found = await self.find(operation)
        assert found is not None
        async with self.ledger.transaction() as conn:
            sheet = await statements.latest_sheet(conn, found.operation_id) or b""
        signed = (await self.signer()).about(found, PERSON, StatementType.APPROVAL, sheet)
        await self.hand_in(found.business_key, signed)
        return signed

    async def hand_in(self, key: str, signed: dict[str, str]) -> None:
        """Give a signed statement to the workflow of any operation."""
        await self.client.get_workflow_handle(workflow_id(TENANT, key)).signal("decide", signed)

    async def until_any(self, operation: str, *states: str) -> None:
        """Wait until this operation is there and stands in one of these states."""

        async def there() -> bool:
            found = await self.find(operation)
            return found is not None and found.state in states

        await self.until(there, f"operation {operation} is {' or '.join(states)}")

    async def until_so(self, so: Callable[[], bool], what: str) -> None:
        """Wait until it is so. Asked again and again, since a thread that waits could not be interrupted."""

        async def asked() -> bool:
            return so()

        await self.until(asked, what)

    async def looks(self, operation: str) -> list[Sighting]:
        """Every look for the effect of this operation, oldest first."""
        async with self.ledger.transaction() as conn:
            return await attempts.read_sightings(conn, uuid.UUID(operation))

    async def found(self, operation: str) -> bool:
        """Whether the last look saw exactly one effect, and it was ours."""
        looks = await self.looks(operation)
        return bool(looks) and [effect.ours for effect in looks[-1].effects] == [True]
