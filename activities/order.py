"""An order from a mail, as an agent extracted it, and the three proposals that follow from it. Pure: no ledger, no provider.

What a caller signs and what the trusted side records come from the same `plan`: a changed order is another proposal.
Amounts are integers in the minor unit of the currency; times ISO 8601 in UTC.
"""

from collections.abc import Iterator
from enum import StrEnum
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError

from activities.messages import Proposal
from ledger.errors import Refused
from ledger.money import check_amount, shown

ORDER_WORKFLOW = "OrderToInvoiceWorkflow"

Name = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9._/-]{1,80}$")]
Text = Annotated[str, StringConstraints(min_length=1, max_length=200)]
Digest = Annotated[str, StringConstraints(pattern=r"^sha256:[0-9a-f]{64}$")]
Count = Annotated[int, Field(gt=0, le=1_000_000)]
Minor = Annotated[int, Field(ge=0, le=2**53 - 1)]


class Step(StrEnum):
    """The three effects of one order."""

    INVOICE = "invoice"
    CUSTOMER = "customer"
    MAIL = "mail"


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class OrderItem(_Strict):
    """One line of the order."""

    product: Name
    quantity: Count
    unit_price_minor: Minor


class Mail(_Strict):
    """The mail that the order was taken from: its reference (a Message-ID, say) and the digest of what was read."""

    reference: Text
    digest: Digest


class Order(_Strict):
    """What the agent extracted. `total_minor` is what the mail says; it must be the sum of the items, without tax.

    `confirm_to` gets the confirmation. `customer_action` says which address book is updated: `update_customer` (Tryton)
    or `update_contact` (CardDAV). `revisions` counts, per step, the revisions of steps that ended badly. `tokens` holds
    one signature per step (`workflows.client.sign_order`).
    """

    tenant: str
    order: Name
    actor: str
    requested_by: str = ""
    customer: Name
    contact: Name | None = None  # the customer's name in the address book, where it is another one
    currency: Annotated[str, StringConstraints(pattern=r"^[a-z]{3}$")]
    items: Annotated[list[OrderItem], Field(min_length=1, max_length=100)]
    total_minor: Annotated[int, Field(gt=0, le=2**53 - 1)]
    mail: Mail
    confirm_to: Text
    customer_action: Literal["update_customer", "update_contact"] = "update_customer"
    mail_action: Literal["send_mail", "send_mail_unarchived"] = "send_mail"
    revisions: dict[str, Annotated[int, Field(ge=0, le=99)]] = {}
    tokens: dict[str, str] = {}


class PlannedStep(BaseModel):
    """One step with its proposal, and the steps that must have succeeded before."""

    step: Step
    proposal: Proposal
    needs: list[Step] = []


class Plan(BaseModel):
    """What an order comes to; or, with a `reason`, why it comes to nothing."""

    steps: list[PlannedStep] = []
    reason: str = ""
    field: str = ""
    message: str = ""


class StepView(BaseModel):
    """Where one step stands, as the ledger says."""

    step: Step
    business_key: str
    operation_id: str = ""
    state: str = ""  # of the operation; empty while nothing is recorded
    reason: str = ""
    field: str = ""
    message: str = ""
    receipt: str = ""
    since: str = ""  # when it came to this state
    until: str = ""  # when the next step falls due
    ended: bool = False
    met: bool = False  # succeeded, and nothing speaks against it
    sentence: str = ""


class Keys(BaseModel):
    """Which operations to read, of one tenant: business key by step, and the digest of what each must be (hex)."""

    tenant: str
    steps: dict[Step, str]
    digests: dict[Step, str]


class Views(BaseModel):
    """The steps of an order as the ledger has them."""

    steps: list[StepView]


class OrderAnswer(BaseModel):
    """What a caller is told of an order. `ended`: nothing more will happen without a revision or a person."""

    order: str = ""
    state: str  # refused, under_way, done, or ended (something did not succeed)
    reason: str = ""
    field: str = ""
    message: str = ""
    ended: bool = False
    steps: list[StepView] = []


def read_order(given: Any) -> Order:
    """The order in this JSON value. Refused: `order_malformed`, with the field."""
    try:
        return Order.model_validate(given)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        field = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in first["loc"]).lstrip(".")
        raise Refused("order_malformed", first["msg"], field=field) from None


def check_order(order: Order) -> None:
    """Return only for an order that adds up. Refused: `total_wrong`, `step_unknown`."""
    total = sum(item.quantity * item.unit_price_minor for item in order.items)
    if total != order.total_minor:
        raise Refused(
            "total_wrong", f"the items come to {total}, the order says {order.total_minor}", field="total_minor"
        )
    check_amount(order.total_minor, order.currency)
    for field, named in (("revisions", order.revisions), ("tokens", order.tokens)):
        for step in named:
            if step not in set(Step):
                raise Refused("step_unknown", f"the steps are {', '.join(Step)}", field=f"{field}.{step[:40]}")


def business_key(order: Order, step: Step, revision: int | None = None) -> str:
    """The key of a step's operation: `4711/mail`, and `4711/mail.1` for its first revision."""
    number = order.revisions.get(step, 0) if revision is None else revision
    return f"{order.order}/{step}" + (f".{number}" if number else "")


def plan(order: Order) -> list[PlannedStep]:
    """The proposals of an order, with their dependencies and, where there is one, their signature.

    Invoice first; customer record and mail each rest on it, not on each other. Refused as `check_order`.
    """
    check_order(order)
    return list(_steps(order))


def _steps(order: Order) -> Iterator[PlannedStep]:
    invoice = business_key(order, Step.INVOICE)
    items = [item.model_dump() for item in order.items]
    money = {"amount_minor": order.total_minor, "currency": order.currency}
    yield PlannedStep(
        step=Step.INVOICE,
        proposal=_proposal(
            order,
            Step.INVOICE,
            "create_draft_invoice",
            order.customer,
            {"order": order.order, "items": items, **money},
        ),
    )
    note = {"note": f"Order {order.order}: draft invoice {{receipt}}"}
    target = order.contact or order.customer
    yield PlannedStep(
        step=Step.CUSTOMER,
        needs=[Step.INVOICE],
        proposal=_proposal(order, Step.CUSTOMER, order.customer_action, target, note, {invoice: "note"}),
    )
    fields = {
        "order": order.order,
        "customer": order.customer,
        "total": shown(order.total_minor, order.currency),
        "invoice": "{receipt}",
    }
    letter = {"to": order.confirm_to, "template": "order-invoiced-1", "fields": fields}
    yield PlannedStep(
        step=Step.MAIL,
        needs=[Step.INVOICE],
        proposal=_proposal(order, Step.MAIL, order.mail_action, order.customer, letter, {invoice: "fields.invoice"}),
    )


def _proposal(
    order: Order,
    step: Step,
    action: str,
    target: str,
    arguments: dict[str, Any],
    receipts: dict[str, str] | None = None,
) -> Proposal:
    revision = order.revisions.get(step, 0)
    return Proposal(
        tenant=order.tenant,
        business_key=business_key(order, step),
        action=action,
        target=target,
        arguments=arguments,
        actor=order.actor,
        requested_by=order.requested_by,
        evidence=[{"kind": "order-mail", "reference": order.mail.reference, "digest": order.mail.digest}],
        depends_on=[
            {"business_key": key, "state": "succeeded", "into": into} for key, into in (receipts or {}).items()
        ],
        supersedes=business_key(order, step, revision - 1) if revision else None,
        token=order.tokens.get(step, ""),
    )
