"""All invoices of a company that bear a marker, page by page, for the audit. By ascending id: what comes or goes meanwhile
moves no page.
"""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from ledger.audit import ListedEffect, marker_from
from providers.port import EffectPage
from providers.tryton_invoice_answers import STANDINGS, ZONES, Invoice, read_invoices, receipt_id
from providers.tryton_rpc import PAGE, TrytonSession

_ANY_MARKER = "________-____-____-____-____________"  # SQL's: an underscore stands for one character


async def list_invoices(session: TrytonSession, since: datetime | None, go_on: str) -> EffectPage:
    """One page of the invoices with a marker that were made since then; `go_on` is the last id of the page before."""
    last = int(go_on or 0)
    domain: list[Sequence[Any]] = [
        ["company", "=", session.place.company],
        ["reference", "like", _ANY_MARKER],
        ["id", ">", last],
    ]
    if since is not None:
        # Tryton keeps times without a zone.
        domain.append(["create_date", ">=", (since - ZONES).astimezone(UTC)])
    page = await read_invoices(session, domain, one_page=True)
    if not page.complete:
        return EffectPage(False, go_on=go_on, detail=page.detail)
    full = len(page.found) == PAGE
    return EffectPage(True, tuple(map(read_listed, page.found)), go_on=str(page.found[-1].id) if full else "")


async def read_invoice(session: TrytonSession, receipt: str) -> EffectPage:
    """The invoice of this receipt; a page without it where the books have none."""
    wanted = receipt_id(receipt)
    if wanted is None:
        # people may end an operation with any text: nothing stands under it, and no later read would tell more
        return EffectPage(True, detail={"why": "no invoice's receipt"})
    page = await read_invoices(session, [["id", "=", wanted]])
    return EffectPage(page.complete, tuple(map(read_listed, page.found)), detail=page.detail)


def read_listed(invoice: Invoice) -> ListedEffect:
    """One invoice as it is listed."""
    return ListedEffect(
        receipt=invoice.receipt,
        standing=STANDINGS.get(invoice.state),
        marker=marker_from(invoice.reference),
        targets=(invoice.customer,),
        amount_minor=invoice.amount_minor,
        currency=invoice.currency,
        created_at=invoice.created,
    )
