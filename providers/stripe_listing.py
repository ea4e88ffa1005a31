"""All refunds of an account, page by page, for the audit. Newest first, as Stripe lists them: what is made meanwhile stands
before the first page and moves none of the others (https://docs.stripe.com/api/refunds/list).
"""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, cast

from ledger.audit import ListedEffect, marker_from
from providers.port import EffectPage
from providers.stripe_answers import STANDINGS, is_id, marker_on, target_of
from providers.stripe_http import Session

PAGE = 100  # the most that Stripe gives


async def list_refunds(session: Session, since: datetime | None, go_on: str) -> EffectPage:
    """One page of the refunds made since then; `go_on` is the last refund of the page before."""
    wanted: dict[str, Any] = {"limit": PAGE}
    if since is not None:
        wanted["created"] = {"gte": int(since.timestamp())}
    if go_on:
        wanted["starting_after"] = go_on
    page = await session.ask_page(lambda v1: v1.refunds.list_async(cast(Any, wanted)))
    if page.items is None:
        return EffectPage(False, go_on=go_on, detail=page.answer.detail())
    if page.more and not page.items:
        return EffectPage(
            False, go_on=go_on, detail=page.answer.detail() | {"why": "an empty page says that there are more"}
        )
    effects = tuple(read_listed(refund) for refund in page.items)
    return EffectPage(True, effects, go_on=effects[-1].receipt if page.more else "")


async def read_refund(session: Session, receipt: str) -> EffectPage:
    """The refund of this id; a page without it where Stripe says that there is none."""
    if not is_id(receipt):
        # people may end an operation with any text: nothing stands under it, and no later read would tell more
        return EffectPage(True, detail={"why": "no id of Stripe"})
    answer = await session.ask(lambda v1: v1.refunds.retrieve_async(receipt))
    refund = answer.object or {}
    if answer.status == 404 and answer.error.get("code") == "resource_missing":
        return EffectPage(True, detail=answer.detail())
    if answer.status != 200 or refund.get("object") != "refund" or refund.get("id") != receipt:
        return EffectPage(False, detail=answer.detail())
    return EffectPage(True, (read_listed(refund),))


def read_listed(refund: Mapping[str, Any]) -> ListedEffect:
    """One refund as it is listed."""
    status, amount, currency = refund.get("status"), refund.get("amount"), refund.get("currency")
    created = refund.get("created")
    named = (target_of(refund, "pi_"), target_of(refund, "ch_"))
    return ListedEffect(
        receipt=str(refund.get("id")),
        standing=STANDINGS.get(status) if isinstance(status, str) else None,
        marker=marker_from(marker_on(refund)),
        targets=tuple(name for name in named if isinstance(name, str)),
        amount_minor=amount if type(amount) is int else None,
        currency=currency if isinstance(currency, str) else None,
        created_at=datetime.fromtimestamp(created, UTC) if type(created) is int else None,
    )
