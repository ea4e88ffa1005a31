"""What other people do at the receivers while an operation is under way: copies, the same by hand, markers taken away.

They work past our adapters and proxies, under logins of their own; what they make is not ours.
"""

import secrets
from copy import deepcopy
from datetime import date
from typing import Any

from ledger.model import Operation
from providers.mail_archive import MARKER
from tests.conftest import Rig
from tests.providers.test_mail_world import forge
from tests.recovery.test_receivers_faults import NEW_DATE, Job, aside


class Hands:
    """Of somebody who works at the receiver of this job; its write is on its way or carried out, so its request is frozen."""

    def __init__(self, desk: Rig, job: Job, operation: Operation, letter: str = "") -> None:
        """`letter` is the text of the mail, where it is one."""
        self._desk, self._job, self._operation, self._letter = desk, job, operation, letter
        self._world, self._marker = desk.world, str(operation.operation_id)
        self._action = operation.action

    @property
    def _parameters(self) -> dict[str, Any]:
        frozen = self._operation.frozen_request
        assert frozen is not None
        return deepcopy(dict(frozen["parameters"]))

    async def copy(self) -> None:
        """A second object that bears our marker."""
        await aside({"refund": self._refund_marked, "create_draft_invoice": self._invoice_marked}.get(
            self._action, self._mail_copied if self._action == "send_mail" else self._card_copied
        ))  # fmt: skip

    async def same(self) -> None:
        """What we want, without our marker."""
        await aside({
            "refund": lambda: self._desk.stack.stripe.control.foreign_refund(self._operation.target, 5_000),
            "create_draft_invoice": lambda: self._invoice("by hand"),
            "create_contact": self._card_made,
            "update_contact": lambda: self._world.book.edit(self._href, "TEL", self._operation.arguments["phone"]),
            "change_delivery_date": self._date_moved,
            "update_customer": self._note_written,
            "send_mail": self._mail_written,
        }[self._action])  # fmt: skip

    async def unmark(self) -> None:
        """Take our marker off what we made."""
        await aside({
            "refund": self._refund_unmarked,
            "create_draft_invoice": self._invoice_unmarked,
            "create_contact": self._card_unmarked,
            "update_contact": self._card_unmarked,
            "change_delivery_date": lambda: self._world.erp.edit_order(self._order, comment="call the supplier"),
            "update_customer": self._notes_unmarked,
            "send_mail": self._mail_unmarked,
        }[self._action])  # fmt: skip

    # The payment provider's dashboard.

    def _refund_marked(self) -> None:
        marked = {"operation_id": self._marker}
        self._desk.stack.stripe.control.foreign_refund(self._operation.target, 5_000, metadata=marked)

    def _refund_unmarked(self) -> None:
        (made,) = self._desk.effects(self._operation.target)
        self._desk.stack.stripe.control.set_refund(made.refund, metadata={"operation_id": ""})

    # The books of the ERP.

    def _invoice(self, reference: str) -> None:
        [[row], _] = self._parameters["params"]
        self._world.erp.admin.create("account.invoice", row | {"reference": reference})

    def _invoice_marked(self) -> None:
        self._invoice(self._marker)

    def _invoice_unmarked(self) -> None:
        (made,) = self._world.erp.invoices(self._marker)
        self._world.erp.edit_record("account.invoice", made.id, reference="a person's own words")

    @property
    def _order(self) -> int:
        return self._world.erp.admin.only("purchase.purchase", [["number", "=", self._operation.target]])

    def _date_moved(self) -> None:
        for line in self._world.erp.order(self._order).lines:
            self._world.erp.move_delivery(line.id, date.fromisoformat(NEW_DATE))

    @property
    def _party(self) -> int:
        return self._world.erp.customer_named(self._operation.target).id

    def _note_written(self) -> None:
        made = {"type": "other", "value": self._operation.arguments["note"]}
        self._world.erp.buyer.write("party.party", [self._party], {"contact_mechanisms": [["create", [made]]]})

    def _notes_unmarked(self) -> None:
        for contact in self._world.erp.customer(self._party).contacts.values():
            self._world.erp.edit_record("party.contact_mechanism", contact, comment=None)

    # The address book.

    @property
    def _href(self) -> str:
        return f"{self._world.book.path}{self._operation.target}.vcf"

    def _card(self) -> bytes:
        card = self._world.book.read(self._href)
        assert card is not None
        return card.content

    def _card_copied(self) -> None:
        lines = [
            f"UID:copied-{secrets.token_hex(6)}".encode() if line.startswith(b"UID:") else line
            for line in self._card().split(b"\r\n")
        ]
        self._world.book.write(self._href.replace(".vcf", "-copy.vcf"), b"\r\n".join(lines))

    def _card_made(self) -> None:
        """Where ours is to stand or, where that stands, beside it."""
        text = self._parameters["card"].replace("\r\n", "\n").encode().replace(b"\n", b"\r\n")
        lines = [line for line in text.split(b"\r\n") if not line.startswith(b"X-EFFECT")]
        plain = b"\r\n".join(lines).replace(self._marker.encode(), secrets.token_hex(8).encode())
        taken = self._world.book.read(self._href) is not None
        self._world.book.write(self._href.replace(".vcf", "-too.vcf") if taken else self._href, plain)

    def _card_unmarked(self) -> None:
        lines = [line for line in self._card().split(b"\r\n") if not line.startswith(b"X-EFFECT")]
        plain = b"\r\n".join(lines).replace(self._marker.encode(), secrets.token_hex(8).encode())
        self._world.book.delete(self._href)
        self._world.book.write(self._href, plain)

    # The archive of the mail server.

    def _mail_copied(self) -> None:
        self._world.box.append(forge(self._operation, text=self._letter, Subject=self._subject))

    def _mail_written(self) -> None:
        plain = {"Message-ID": f"<{secrets.token_hex(8)}@elsewhere.test>", MARKER: "", "Subject": self._subject}
        self._world.box.append(forge(self._operation, text=self._letter, **plain))

    def _mail_unmarked(self) -> None:
        self._mail_written()
        for mail in self._world.box.with_header(MARKER, self._marker):
            self._world.box.delete(mail)

    @property
    def _subject(self) -> str:
        return f"Your order {self._operation.arguments['fields']['order']} is confirmed"
