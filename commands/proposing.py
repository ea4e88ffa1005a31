"""The wiring of `effects propose`: what an agent's key signs."""

from pathlib import Path
from typing import Annotated

import typer

from commands import options
from commands.voice import run

propose = typer.Typer(help="Ask for an effect, signed with a granted key.", no_args_is_help=True, rich_markup_mode=None)


@propose.command("refund")
def propose_refund(
    payment: Annotated[str, options.arg("pi_… or ch_… of the payment to give back.")],
    amount: Annotated[str, options.opt("Like 15.00: all decimals of the currency, or none.")],
    currency: Annotated[str, options.opt("Three lower-case letters.")],
    key: Annotated[str, options.opt("Business key: the name of this one intent.")],
    requested_by: Annotated[str, options.opt("The human for whom it is asked.")],
    tenant: Annotated[str, options.opt("The tenant; the key's own if left out.")] = "",
    actor: Annotated[str, options.opt("In whose name; the key's only actor if left out.")] = "",
    evidence: Annotated[list[str] | None, options.opt("kind=reference, like ticket=T-77; repeatable.")] = None,
    distinct_from: Annotated[
        list[str] | None, options.opt("An operation or receipt that looks the same and is not; repeatable.")
    ] = None,
    reason: Annotated[str, options.opt("duplicate or requested_by_customer.")] = "",
    who: options.As = "",
    key_file: options.KeyFile = None,
    wait: Annotated[float | None, options.opt("Seconds to wait until it is settled.", min=0)] = None,
    fault: Annotated[str, options.opt("Dev stack only: break this one, like lost-answer.")] = "",
    as_json: options.Json = False,
) -> int:
    """Propose a refund. The same command again with the same key is the poll: it never makes a second one."""
    from commands.propose import Wanted, refund

    wanted = Wanted(
        target=payment,
        amount=amount,
        currency=currency,
        business_key=key,
        requested_by=requested_by,
        tenant=tenant,
        actor=actor,
        reason=reason,
        evidence=evidence or [],
        distinct_from=distinct_from or [],
    )
    return run(as_json, lambda voice: refund(voice, wanted, who, key_file, wait, fault))


@propose.command("file")
def propose_file(
    file: Annotated[Path, options.arg("JSON: action, target, arguments, business_key, actor and the rest.")],
    who: options.As = "",
    key_file: options.KeyFile = None,
    wait: Annotated[float | None, options.opt("Seconds to wait until it is settled.", min=0)] = None,
    as_json: options.Json = False,
) -> int:
    """Propose what a JSON file says, for any action. The same file again is the poll."""
    from commands.files import proposal

    return run(as_json, lambda voice: proposal(voice, file, who, key_file, wait))


@propose.command("order")
def propose_order(
    file: Annotated[Path, options.arg("JSON: the order as it was read from the mail.")],
    who: options.As = "",
    key_file: options.KeyFile = None,
    wait: Annotated[float | None, options.opt("Seconds to wait until all its steps ended.", min=0)] = None,
    as_json: options.Json = False,
) -> int:
    """Invoice an order, update the customer, confirm by mail. The same file again is the poll, and resumes."""
    from commands.files import order

    return run(as_json, lambda voice: order(voice, file, who, key_file, wait))
