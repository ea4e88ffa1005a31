"""Refunds at Stripe, API v1: one refund of a named amount, of a payment intent or of a charge that has none.

1. The parameters are frozen at the first claim; nothing in them changes with time or with the number of the attempt.
2. A refund is found by its marker, metadata[operation_id]; it is ours if payment, amount and currency fit as well.
3. What answers mean is in stripe_answers.py, what is left of a payment in stripe_preflight.py, the wire in
   stripe_http.py.
"""

import asyncio
import re
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any, cast

from ledger.contract import Contract, KeyTerms, LookupTerms, Source
from ledger.errors import Broken, Refused
from ledger.model import Operation, Outcome, SeenEffect, Standing
from ledger.money import check_amount
from providers.port import AfterWrite, Classified, Credential, EffectPage, Look, Preflight, Request, SendGuard
from providers.stripe_answers import (
    MARKER,
    STANDINGS,
    Wanted,
    classify,
    is_id,
    marker_on,
    read_sighting,
    target_of,
    target_parameter,
    wanted_by,
)
from providers.stripe_http import Session
from providers.stripe_listing import list_refunds, read_refund
from providers.stripe_preflight import listing_detail, read_preflight, refunds_of
from providers.wire import check_header

ACTION = "refund"
API_VERSION = "2026-10-28.endive"  # the version that stripe-python 16.1.0 is generated for
ENDPOINT = "POST /v1/refunds"

_KEYS = "https://docs.stripe.com/api/idempotent_requests"
_ERRORS = "https://docs.stripe.com/error-low-level"
_READ_ON = "2026-11-29"


def _documented(term: str, text: str, url: str) -> Source:
    return Source(term=term, text=text, url=url, read_on=_READ_ON)


def _assumed(term: str, reason: str) -> Source:
    return Source(term=term, text=reason, read_on=_READ_ON, assumption=True)


CONTRACT = Contract(
    name=ACTION,
    api_version=API_VERSION,
    key=KeyTerms(
        lifetime=24 * 3600,
        margin=3600,
        stores_server_errors=True,
        stores_refusals=True,
        replay_marker="Idempotent-Replayed: true",
        on_changed_parameters="400 idempotency_error",
        while_first_runs="409 idempotency_key_in_use",
    ),
    lookup=LookupTerms(marker=f"metadata[{MARKER}]", settling=10, complete=True, marker_editable=True),
    processing=120,
    roll_forward=12 * 3600,
    effect_can_change=True,
    sources=(
        _documented("api_version", "sent as Stripe-Version with every call, frozen with the request", _ERRORS),
        _documented("key.lifetime", "keys may be removed after they are at least 24 hours old", _KEYS),
        _assumed("key.margin", "an hour for clocks that differ and for a request that is still worked on; "
                 "a key pruned at exactly 24 hours must never meet a repeat"),
        _documented("key.stores_server_errors", "the first answer is kept once execution began, 500s too", _KEYS),
        _documented("key.stores_refusals", "a 400 after execution began is replayed, failed validation not", _ERRORS),
        _documented("key.replay_marker", "replays carry Idempotent-Replayed: true and Original-Request", _ERRORS),
        _documented("key.on_changed_parameters", "a key with other parameters is an error of its own", _KEYS),
        _documented("key.while_first_runs", "idempotency_key_in_use", "https://docs.stripe.com/error-codes"),
        _documented("lookup.marker", "metadata is kept on the refund and listed with it", "https://docs.stripe.com/metadata"),
        _assumed("lookup.settling", "top-level lists of v1 are documented as immediately consistent "
                 "(https://docs.stripe.com/api-v2-overview); ten seconds cost little if one ever is not"),
        _documented("lookup.complete", "refunds can be listed by payment, page by page to the last one",
                    "https://docs.stripe.com/api/refunds/list"),
        _documented("lookup.marker_editable", "the metadata of a refund can be changed later",
                    "https://docs.stripe.com/api/refunds/update"),
        _assumed("processing", "no bound is published; the SDK gives up waiting after 80 seconds, "
                 "and 120 is half as much again"),
        _assumed("roll_forward", "after a stored 500 Stripe may complete the refund later and says no time; half a day "
                 "is longer than an incident is usually left open"),
        _documented("effect_can_change", "a refund may go from succeeded to failed", "https://docs.stripe.com/refunds"),
    ),
)  # fmt: skip

RESOLUTION = """\
happened: the refund's id (re_… or pyr_…) from the payment's page in the dashboard. It is read again at Stripe and \
must be a refund of this payment with this amount and currency that belongs to no other operation.
did_not_happen: later than the end of the key window and of any roll-forward after a 500: the dashboard's log of \
POST /v1/refunds for this payment (request ids and answers) shows no request of ours that made a refund. The list of \
refunds alone proves nothing, because metadata can be edited: name every refund of this amount and say whose it is.
undetermined: nobody can find out, and why; what was asked at Stripe's support, and their answer."""

_ARGUMENTS = {"amount_minor", "currency", "reason"}
_REASONS = ("duplicate", "requested_by_customer")  # not "fraudulent": it puts card and mail on block lists
_TARGET = re.compile(r"(pi|ch|py)_[A-Za-z0-9_]{1,200}")


def check_target(target: str) -> None:
    """Refuses everything but the id of a payment intent (pi_…) or of a charge (ch_…, py_…)."""
    if not _TARGET.fullmatch(target):
        raise Refused("target_malformed", "name a payment intent (pi_…) or a charge (ch_…, py_…)", field="target")


def pure_target(target: str) -> str | None:
    """The canonical target if no read is needed to know it: a payment intent is one, a charge may belong to one."""
    check_target(target)
    return target if target.startswith("pi_") else None


def check_arguments(arguments: dict[str, Any]) -> None:
    """Refuses everything but {amount_minor, currency} and an optional reason, each well-formed."""
    for name in arguments:
        if name not in _ARGUMENTS:
            raise Refused("argument_unknown", "a refund takes amount_minor, currency and reason", field=str(name)[:40])
    for name in ("amount_minor", "currency"):
        if name not in arguments:
            raise Refused("argument_missing", "a refund always names its amount and currency", field=name)
    check_amount(arguments["amount_minor"], arguments["currency"])
    if "reason" in arguments and arguments["reason"] not in _REASONS:
        raise Refused("reason_not_allowed", f"reason is one of {', '.join(_REASONS)}, or left out", field="reason")


def equivalence_key(target: str, arguments: Mapping[str, Any]) -> str:
    """Two refunds of the same amount of the same payment are the same thing until a person says otherwise."""
    return f"{ACTION}:{target}:{arguments['amount_minor']}:{arguments['currency']}"


def build_request(operation: Operation, basis: Mapping[str, Any]) -> Request:
    """The one request of this operation; it rests on nothing that was read."""
    arguments = operation.arguments
    check_header("idempotency key", operation.idempotency_key)
    if arguments["amount_minor"] != operation.amount_minor or arguments["currency"] != operation.currency:
        raise Broken("amount or currency of the operation differ from its arguments")
    parameters: dict[str, Any] = {
        # Always sent: a refund without an amount takes whatever remains at that moment.
        "amount": arguments["amount_minor"],
        "metadata": {MARKER: str(operation.operation_id)},
        target_parameter(operation.target): operation.target,
    }
    if "reason" in arguments:
        parameters["reason"] = arguments["reason"]
    return Request(ENDPOINT, parameters, operation.idempotency_key, operation.account, API_VERSION)


class StripeRefunds:
    """The adapter. Holds no connection and no secret between calls; safe under concurrency."""

    action = ACTION
    provider = "stripe"
    contract = CONTRACT
    resolution = RESOLUTION

    def __init__(self, base_url: str | None = None, *, read_deadline_seconds: float = 20.0) -> None:
        """`base_url` replaces Stripe's own address, for a stand-in or an egress gateway."""
        self._base_url = base_url
        self._read_deadline = read_deadline_seconds

    # The pure part of the adapter stands above, as functions; here they get their place in the port.
    check_arguments = staticmethod(check_arguments)
    check_target = staticmethod(check_target)
    pure_target = staticmethod(pure_target)
    equivalence_key = staticmethod(equivalence_key)
    build_request = staticmethod(build_request)

    def marker_of(self, operation: Operation) -> str:
        """The operation id as text: what the refund carries in its metadata."""
        return str(operation.operation_id)

    def link(self, operation: Operation) -> str:
        """The payment's page in the dashboard of its account."""
        account = f"{operation.account}/" if operation.account.startswith("acct_") else ""
        mode = "" if operation.livemode else "test/"
        return f"https://dashboard.stripe.com/{account}{mode}payments/{operation.target}"

    async def preflight(self, credential: Credential, target: str, arguments: dict[str, Any], marker: str) -> Preflight:
        """Read the payment and all its refunds; `unfit` is a word, its sentence is facts["unfit"]."""
        async with self._reading(credential) as session:
            return await read_preflight(session, credential.livemode, target, arguments, marker)

    async def send(
        self,
        credential: Credential,
        operation: Operation,
        request: Request,
        contract: Contract,
        guard: SendGuard,
        after_write: AfterWrite,
    ) -> Classified:
        """Send the frozen request once. Raises only `Broken`, before the first byte, and the caller's cancellation."""
        _check_frozen(credential, operation, request)
        wanted = wanted_by(operation)
        now = asyncio.get_running_loop().time
        ends = now() + contract.timing.call_deadline
        async with Session(
            credential,
            base_url=self._base_url,
            api_version=request.api_version,
            deadline_seconds=contract.timing.call_deadline,
            guard=guard,
            after_write=after_write,
        ) as session:
            answer = await session.ask(
                lambda v1: v1.refunds.create_async(
                    cast(Any, _in_order(request.parameters)),
                    {"idempotency_key": request.idempotency_key, "max_network_retries": 0},
                )
            )
        seen = classify(answer, wanted)
        if seen.outcome is Outcome.APPLIED and answer.replayed:
            return await self._as_of_now(credential, seen, wanted, max(ends - now(), 0.0))
        return seen

    async def look(self, credential: Credential, operation: Operation, since: datetime) -> Look:
        """List every refund of the payment to the end, and compare each one here."""
        wanted = wanted_by(operation)
        async with self._reading(credential) as session:
            listing = await refunds_of(session, wanted.target)
        effects = tuple(
            read_sighting(refund, wanted, since)
            for refund in listing.items
            if target_of(refund, wanted.target) == wanted.target or marker_on(refund) == wanted.marker
        )
        return Look(listing.complete, effects, detail=listing_detail(listing))

    async def read_receipt(self, credential: Credential, operation: Operation, receipt: str) -> SeenEffect | None:
        """The refund of this id as it is now; None when it cannot be read, for whatever reason."""
        if not is_id(receipt):
            return None
        async with self._reading(credential) as session:
            refund = await _refund_of_id(session, receipt)
        return None if refund is None else read_sighting(refund, wanted_by(operation))

    async def list_effects(self, credential: Credential, since: datetime | None, go_on: str) -> EffectPage:
        """One page of the account's refunds, newest first."""
        async with self._reading(credential) as session:
            return await list_refunds(session, since, go_on)

    async def read_effect(self, credential: Credential, receipt: str) -> EffectPage:
        """The refund of this id, whosever."""
        async with self._reading(credential) as session:
            return await read_refund(session, receipt)

    async def whose(self, credential: Credential) -> Credential | None:
        """The account that Stripe names for the secret, and the mode of its prefix; None if either is unsaid."""
        async with self._reading(credential) as session:
            answer = await session.ask(lambda v1: v1.accounts.retrieve_current_async())
        account = (answer.object or {}).get("id")
        mode = re.match(r"[a-z]+_(live|test)_", credential.secret)
        if answer.status != 200 or not isinstance(account, str) or not is_id(account) or mode is None:
            return None
        return replace(credential, account=account, livemode=mode[1] == "live")

    async def _as_of_now(self, credential: Credential, seen: Classified, wanted: Wanted, seconds: float) -> Classified:
        """A replay tells the standing of the past: read the refund again, or call a good one pending."""
        receipt = seen.receipt or ""
        async with self._reading(credential, seconds) as session:
            refund = await _refund_of_id(session, receipt) if seconds > 0 else None
        if refund is not None and wanted.fits(refund) and refund.get("status") in STANDINGS:
            told = refund["status"]
            detail = seen.detail | {"read_again": True, "refund_status": told}
            return replace(seen, standing=STANDINGS[told], detail=detail)
        standing = Standing.PENDING if seen.standing is Standing.GOOD else seen.standing
        return replace(seen, standing=standing, detail=seen.detail | {"read_again": False})

    def _reading(self, credential: Credential, seconds: float | None = None) -> Session:
        deadline = self._read_deadline if seconds is None else min(seconds, self._read_deadline)
        return Session(credential, base_url=self._base_url, api_version=API_VERSION, deadline_seconds=deadline)


async def _refund_of_id(session: Session, receipt: str) -> dict[str, Any] | None:
    answer = await session.ask(lambda v1: v1.refunds.retrieve_async(receipt))
    refund = answer.object
    if answer.status != 200 or refund is None or refund.get("object") != "refund" or refund.get("id") != receipt:
        return None
    return refund


def _check_frozen(credential: Credential, operation: Operation, request: Request) -> None:
    """Raise `Broken` unless the frozen request is the operation's and the credential is for its account and mode."""
    check_header("idempotency key", request.idempotency_key)
    parameters = request.parameters
    told = (
        request.operation,
        request.idempotency_key,
        (request.account, credential.account, credential.livemode),
        parameters.get(target_parameter(operation.target)),
        (parameters.get("amount"), parameters.get("metadata")),
    )
    wanted = (
        ENDPOINT,
        operation.idempotency_key,
        (operation.account, operation.account, operation.livemode),
        operation.target,
        (operation.arguments["amount_minor"], {MARKER: str(operation.operation_id)}),
    )
    if told != wanted:
        raise Broken("the frozen request or the credential is not the one of this operation: nothing is sent")


def _in_order(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters in one order: a database may have changed theirs, and a repeat sends equal bytes."""
    return {
        name: _in_order(value) if isinstance(value, Mapping) else value for name, value in sorted(parameters.items())
    }
