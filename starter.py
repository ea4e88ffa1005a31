"""The command line `effects`: everything that talks to Temporal, and read-only views of the ledger.

Wiring only: names, options and help. The bodies stand in `commands/` and are imported by the command that is run, so that
`--help` is quick.
"""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from typer.exceptions import TyperException

from commands import options
from commands.exits import Exit, Misuse, table
from commands.keeping import config, keys, register
from commands.owning import erase, restored
from commands.proposing import propose
from commands.proving import checkpoint, evidence
from commands.voice import run, tell_error

EPILOG = "\b\nExit codes:\n" + table()

app = typer.Typer(
    name="effects",
    help="One durable, approved, provable effect on an outside system: propose it, sign it, see what became of it.",
    epilog=EPILOG,
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
clock = typer.Typer(help="The movable clock of a dev stack.", no_args_is_help=True, rich_markup_mode=None)
for group, name in ((propose, "propose"), (keys, "keys"), (config, "config"), (clock, "clock")):
    app.add_typer(group, name=name)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; its exit code."""
    given = sys.argv[1:] if arguments is None else list(arguments)
    try:
        code = app(given, prog_name="effects", standalone_mode=False)
    except TyperException as error:
        if "--json" in given:
            return tell_error(Misuse(error.format_message()), True)
        show = getattr(error, "show", None)
        print(error.format_message(), file=sys.stderr) if show is None else show()
        return int(Exit.MISUSED)
    except typer.Abort:
        return 130
    return code if isinstance(code, int) else 0


@app.command()
def inbox(as_json: options.Json = False) -> int:
    """What waits for approval, oldest first."""
    from commands.sheets import inbox

    return run(as_json, inbox)


@app.command()
def sheet(
    operation: options.OperationName,
    raw: Annotated[bool, options.opt("Write the exact bytes, and nothing else.", "--raw")] = False,
    as_json: options.Json = False,
) -> int:
    """What an approver signs: read by us and claimed by the agent set apart, the fingerprint recomputed here."""
    from commands.sheets import show

    return run(as_json, lambda voice: show(voice, operation, raw=raw))


@app.command()
def approve(
    operation: options.OperationName,
    who: options.As = "",
    key_file: options.KeyFile = None,
    reason: options.Reason = "",
    yes: options.Yes = False,
    as_json: options.Json = False,
) -> int:
    """Read the latest sheet, sign that it may be sent, and hear whether that counts."""
    from commands.decide import on_a_sheet
    from ledger.statement import StatementType

    return run(as_json, lambda v: on_a_sheet(v, operation, who, key_file, StatementType.APPROVAL, reason, yes=yes))


@app.command()
def decline(
    operation: options.OperationName,
    who: options.As = "",
    key_file: options.KeyFile = None,
    reason: options.Reason = "",
    yes: options.Yes = False,
    as_json: options.Json = False,
) -> int:
    """Read the latest sheet and sign that it must not be sent."""
    from commands.decide import on_a_sheet
    from ledger.statement import StatementType

    return run(as_json, lambda v: on_a_sheet(v, operation, who, key_file, StatementType.DECLINE, reason, yes=yes))


@app.command()
def withdraw(
    operation: options.OperationName,
    who: options.As = "",
    key_file: options.KeyFile = None,
    reason: options.Reason = "",
    wait: options.Wait = 15,
    yes: options.Yes = False,
    as_json: options.Json = False,
) -> int:
    """Sign that it is no longer wanted. Before the first send this ends it; later nothing can be recalled."""
    from commands.decide import withdraw

    return run(as_json, lambda v: withdraw(v, operation, who, key_file, reason, wait, yes=yes))


@app.command()
def show(operation: options.OperationName, as_json: options.Json = False) -> int:
    """Where it stands: who must act, schedule, attempts, receipt, link to the provider."""
    from commands.show import show

    return run(as_json, lambda voice: show(voice, operation))


@app.command()
def trail(
    operation: Annotated[str, options.arg("One of them; the ledger itself if left out: configuration, holds.")] = "",
    as_json: options.Json = False,
) -> int:
    """Everything that happened to an operation, or to the ledger itself, in sentences: when, what, who."""
    from commands.show import trail

    return run(as_json, lambda voice: trail(voice, operation))


@app.command()
def review(
    operation: Annotated[str, options.arg("One of them; all if left out.")] = "",
    as_json: options.Json = False,
) -> int:
    """What people must settle, oldest first; for one of them the evidence and the commands that settle it."""
    from commands.review import review

    return run(as_json, lambda voice: review(voice, operation))


@app.command()
def resolve(
    operation: options.OperationName,
    evidence: Annotated[str, options.opt("What it rests on, in words and references.")] = "",
    happened: Annotated[str, options.opt("It exists, under this id.", metavar="RECEIPT")] = "",
    did_not_happen: Annotated[bool, options.opt("It does not exist and will not.", "--did-not-happen")] = False,
    undetermined: Annotated[bool, options.opt("Nobody can find out.", "--undetermined")] = False,
    look_again: Annotated[bool, options.opt("What is there changed: look at the provider.", "--look-again")] = False,
    foreign: Annotated[list[str] | None, options.opt("A receipt that looks like ours and is not; repeatable.")] = None,
    seen: Annotated[int, options.opt("The last event you read; `effects review` prints it.", min=0)] = 0,
    who: options.As = "",
    key_file: options.KeyFile = None,
    wait: options.Wait = 60,
    yes: options.Yes = False,
    as_json: options.Json = False,
) -> int:
    """Sign how an operation in review ended, on the evidence that you read."""
    from commands.review import Said, resolve

    said = Said(happened, did_not_happen, undetermined, look_again, evidence, tuple(foreign or ()), seen)
    return run(as_json, lambda v: resolve(v, operation, said, who, key_file, wait, yes=yes))


@app.command()
def look(operation: options.OperationName, wait: options.Wait = 15, as_json: options.Json = False) -> int:
    """Wake its workflow, or start it again from the ledger, so that it reads clock, ledger and provider now."""
    from commands.review import look

    return run(as_json, lambda voice: look(voice, operation, wait))


@app.command()
def hold(
    scope: Annotated[str, options.arg("all, tenant:NAME, provider:NAME or operation:NAME.")],
    reason: options.Reason,
    who: options.As = "",
    key_file: options.KeyFile = None,
    yes: options.Yes = False,
    as_json: options.Json = False,
) -> int:
    """Stop sending in a scope; one operator suffices."""
    from commands.holding import sign_about
    from ledger.statement import StatementType

    return run(as_json, lambda v: sign_about(v, scope, StatementType.HOLD, reason, who, key_file, yes=yes))


@app.command()
def release(
    scope: Annotated[str, options.arg("The scope as it was held; `restored` after a restore.")],
    reason: options.Reason,
    who: options.As = "",
    key_file: options.KeyFile = None,
    yes: options.Yes = False,
    as_json: options.Json = False,
) -> int:
    """Let sending in a scope go on; it takes two operators."""
    from commands.holding import sign_about
    from ledger.statement import StatementType

    return run(as_json, lambda v: sign_about(v, scope, StatementType.RELEASE, reason, who, key_file, yes=yes))


@app.command()
def holds(as_json: options.Json = False) -> int:
    """What is held, since when, by whom and why."""
    from commands.holding import current

    return run(as_json, current)


@app.command()
def doctor(as_json: options.Json = False) -> int:
    """What answers, what is unsettled, and what to do first; works while workers or Temporal are down."""
    from commands.doctor import doctor

    return run(as_json, doctor)


@app.command()
def explain(
    action: Annotated[str, options.arg("Like refund; every action with its contract stands in docs/contracts.md.")],
    lost_answer: Annotated[bool, options.opt("The answer was lost.", "--lost-answer")] = False,
    stored_error: Annotated[bool, options.opt("A 5xx, stored for our key.", "--stored-error")] = False,
    busy: Annotated[bool, options.opt("An earlier request still ran.", "--busy")] = False,
    misused: Annotated[bool, options.opt("The key was used for something else.", "--misused")] = False,
    unreadable: Annotated[bool, options.opt("The answer could not be parsed.", "--unreadable")] = False,
    mismatch: Annotated[bool, options.opt("The answer was about another effect.", "--mismatch")] = False,
    refused: Annotated[bool, options.opt("A definite no.", "--refused")] = False,
    no_effect: Annotated[bool, options.opt("Proved not executed, like a 429.", "--no-effect")] = False,
    not_sent: Annotated[bool, options.opt("The send guard stopped it.", "--not-sent")] = False,
    applied: Annotated[bool, options.opt("The effect was confirmed.", "--applied")] = False,
    open_: Annotated[bool, options.opt("The worker died: nothing was recorded.", "--open")] = False,
    at: Annotated[str, options.opt("The step at this time after the claim, like +25h.")] = "",
    review_after: Annotated[str, options.opt("When a person is told; the policy says.")] = "4h",
    held: Annotated[bool, options.opt("While sending is held.", "--held")] = False,
    revoked: Annotated[bool, options.opt("While an authority is revoked.", "--revoked")] = False,
    as_json: options.Json = False,
) -> int:
    """What recovery would do after one attempt that ended so, at every turning point; no server is asked."""
    from commands.explain import ENDINGS, explain

    unclear = (lost_answer, stored_error, busy, misused, unreadable, mismatch)
    said = (*unclear, refused, no_effect, not_sent, applied, open_)
    chosen = [ending for ending, given in zip(ENDINGS, said, strict=True) if given]
    return run(as_json, lambda v: explain(v, action, chosen, at, review_after, held=held, revoked=revoked))


@app.command()
def webhooks(as_json: options.Json = False) -> int:
    """Receive Stripe's webhooks into the inbox, until Ctrl-C: a process of its own, without a worker's rights."""
    from commands.webhooks import webhooks

    return run(as_json, webhooks)


@app.command()
def codec(as_json: options.Json = False) -> int:
    """Decrypt payloads for Temporal's Web UI, until Ctrl-C: a process of its own, with the keys and no ledger."""
    from commands.codec import codec

    return run(as_json, codec)


@app.command()
def migrate(
    check: Annotated[bool, options.opt("Only tell whether the schema is this code's.", "--check")] = False,
    test_clock: Annotated[bool, options.opt("Dev stack only: a movable clock.", "--test-clock")] = False,
    as_json: options.Json = False,
) -> int:
    """Bring the ledger's database to this code's schema (owner's DSN)."""
    from commands.upkeep import migrate

    return run(as_json, lambda voice: migrate(voice, check=check, test_clock=test_clock))


app.command()(register)


@app.command()
def verify(
    checkpoint: Annotated[list[Path] | None, options.opt("Compare with what this file signed; repeatable.")] = None,
    as_json: options.Json = False,
) -> int:
    """Recompute hash chains, states, fingerprints and signatures; name every row that differs."""
    from commands.upkeep import verify

    return run(as_json, lambda voice: verify(voice, checkpoint or []))


app.command()(evidence)
app.command()(checkpoint)


@app.command()
def audit(
    repair: Annotated[bool, options.opt("Start or wake what nobody works on.", "--repair")] = False,
    wait: Annotated[float, options.opt("Seconds to wait for a worker to list the providers; 0: ask none.", min=0)] = 60,
    as_json: options.Json = False,
) -> int:
    """Compare the ledger with Temporal and with what providers list: what nobody works on, and what nobody recorded."""
    from commands.audit import audit

    return run(as_json, lambda voice: audit(voice, repair=repair, wait=wait))


app.command()(restored)
app.command()(erase)


@clock.command("advance")
def clock_advance(by: Annotated[str, options.arg("Like +25h.")], as_json: options.Json = False) -> int:
    """Dev stack only: move the ledger's clock and the stand-in's, and wake what is open."""
    from commands.upkeep import advance

    return run(as_json, lambda voice: advance(voice, by))


@app.command()
def demo(all_scenarios: Annotated[bool, options.opt("Every scenario.", "--all")] = False) -> int:
    """Run the jobs on an embedded stack, judged by the receivers' own records."""
    from commands.staging import demo

    return demo(all_scenarios=all_scenarios)


@app.command()
def up(erp: Annotated[bool, options.opt("An ERP, an address book and a mail server too.", "--erp")] = False) -> int:
    """Start the stack and leave it running until Ctrl-C."""
    from commands.staging import up

    return up(erp=erp)


if __name__ == "__main__":
    sys.exit(main())
