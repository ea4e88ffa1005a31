"""What the receivers themselves have of one row of the table, read past our adapters and our ledger: the judges.

Requests are counted where the stand-in heard them or in the proxy before a receiver; effects in the receivers' own books.
"""

from dataclasses import dataclass
from datetime import date
from typing import Any, Protocol

from activities.order import Order, Step
from devstack.demo.promises import Counts, count
from devstack.radicale import SERVICE as BOOK_SERVICE
from devstack.radicale import Card
from devstack.receivers import Receivers
from devstack.stripe_standin.control import Journal, StandInControl
from devstack.tryton.names import SERVICE as ERP_SERVICE
from devstack.tryton.world import Customer, LogRow
from devstack.tryton.world import Order as Purchase


class Records(Protocol):
    """What the receivers themselves have of one row, read past our adapters and our ledger."""

    def counts(self) -> Counts:
        """What reached them, and what exists there."""

    def lines(self) -> list[str]:
        """The same at length, for a row that is not as promised."""


@dataclass
class Payment:
    """The stand-in's journal of one payment."""

    control: StandInControl
    target: str

    def journal(self) -> Journal:
        """Arrivals and effects."""
        return self.control.journal(payment_intent=self.target)

    def counts(self) -> Counts:
        """Refund requests, and refunds whose money did not come back."""
        return count(self.journal(), self._cut_off())

    def lines(self) -> list[str]:
        """Every arrival and every effect."""
        journal = self.journal()
        lines = [f"    the stand-in's journal of {self.target}"]
        for a in journal.arrivals:
            replay = " replayed" if a.replayed else ""
            lines.append(f"    {a.method} {a.path} key {a.idempotency_key} {a.faults} {a.ended} {a.answer}{replay}")
        return lines + [
            f"    effect {e.refund} {e.amount} {e.currency} {e.origin} {e.voided or ''}" for e in journal.effects
        ]

    def _cut_off(self) -> set[str]:
        """Kinds of faults that were ordered to act on this payment before Stripe reads the request."""
        ordered = self.control.faults()
        early = [r for r in ordered if r["when"] == "before" and r["match"]["payment_intent"] == self.target]
        return {str(rule["kind"]) for rule in early}


@dataclass
class Case:
    """An order with its customer, and what the receivers have of it: the invoice, the customer's record, the mail."""

    world: Receivers
    order: Order
    customer: Customer
    card: Card | None  # of the contact, where the record is kept in the address book
    ids: dict[Step, str]

    def counts(self) -> Counts:
        """In the order of the steps."""
        proxies = self.world.proxies
        changes = (
            proxies["carddav"].count(f"PUT {self.card.href} ".encode())
            if self.card
            else proxies["tryton"].count(f"[effect {self.ids[Step.CUSTOMER]}]".encode())
        )
        reached = (proxies["tryton"].count(self.create), changes, proxies["smtp"].count(self.letter))
        return Counts(reached, 0, (len(self.invoices()), len(self.changes()), len(self.mails())))

    def lines(self) -> list[str]:
        """Every record."""
        lines = [f"    the receivers' own records of order {self.order.order}"]
        lines += [f"    invoice {row['id']} {row['state']} {row['reference']}" for row in self.invoices()]
        lines += [f"    change of the customer's record {change}" for change in self.changes()]
        return lines + [f"    mail {mail.message_id} to {', '.join(mail.recipients)}" for mail in self.mails()]

    @property
    def create(self) -> bytes:
        """In the bytes of the invoice's creation and of no other request."""
        return f'"reference":"{self.ids[Step.INVOICE]}"'.encode()

    @property
    def letter(self) -> bytes:
        """In the bytes of this mail and of no other command."""
        return f"\r\nTo: {self.order.confirm_to}\r\n".encode()

    def invoices(self) -> list[dict[str, Any]]:
        """All that the customer has, whatever stands on them."""
        domain = [["party", "=", self.customer.id], ["type", "=", "out"]]
        fields = ["state", "reference", "untaxed_amount"]
        return self.world.erp.admin.find("account.invoice", domain, fields)

    def changes(self) -> list[str]:
        """Every write of ours on the customer's record, by the log of the ERP or the journal of the address book."""
        if self.card is not None:
            return [str(w.content) for w in self.world.book.written(self.card.href) if w.who == BOOK_SERVICE.user]
        rows = our_writes(self.world, "party.party", self.customer.id)
        return [f"{row.at:%d %H:%M:%S} {row.user} {row.event} {row.target}" for row in rows]

    def mails(self) -> list[Any]:
        """All that went to the address which only this order has."""
        return self.world.box.to(self.order.confirm_to)

    def note(self) -> str:
        """What the customer's record says about the order."""
        if self.card is not None:
            card = self.world.book.read(self.card.href)
            return "" if card is None else " ".join(card.values("NOTE"))
        return " ".join(self.world.erp.customer(self.customer.id).contacts)


@dataclass
class Dates:
    """A purchase order as it was, and what the ERP has of our changes of its delivery date."""

    world: Receivers
    purchase: Purchase
    wanted: date

    @property
    def write(self) -> bytes:
        """In the bytes of a write of this order and of no other request."""
        return f'"method":"model.purchase.purchase.write","params":[[{self.purchase.id}],'.encode()

    def counts(self) -> Counts:
        """Our writes: those that were sent, and those that the ERP's own log knows."""
        done = our_writes(self.world, "purchase.purchase", self.purchase.id)
        return Counts(self.world.proxies["tryton"].count(self.write), 0, len(done))

    def lines(self) -> list[str]:
        """The log of the order, and the order."""
        rows, order = self.world.erp.log("purchase.purchase", self.purchase.id), self.now()
        return [
            f"    the ERP's own records of order {self.purchase.number}",
            *(f"    {row.at:%d %H:%M:%S} {row.user} {row.event} {row.target}" for row in rows),
            f"    dates {', '.join(str(line.delivery_date) for line in order.lines)}, comment {order.comment!r}",
        ]

    def now(self) -> Purchase:
        """The order as it stands."""
        return self.world.erp.order(self.purchase.id)


def our_writes(world: Receivers, model: str, record: int) -> list[LogRow]:
    """The writes of our own user on a record, by the ERP's append-only log."""
    return [row for row in world.erp.log(model, record) if (row.user, row.event) == (ERP_SERVICE.name, "write")]
