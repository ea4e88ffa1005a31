"""`explain`: what recovery would do and when, by the adapter's contract alone; no server is asked."""

from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

from commands import facts
from commands.amounts import duration, lasting
from commands.exits import Misuse
from commands.page import Page
from commands.voice import Voice
from ledger.contract import Contract
from ledger.model import Attempt, Hint, MaySend, Outcome, Standing, Step
from ledger.recovery import decide
from providers.registry import default_registry

FIRST_CLAIM = datetime(2026, 1, 1, tzinfo=UTC)  # everything is told as time since then
A_MOMENT = timedelta(seconds=1)


@dataclass(frozen=True)
class Ending:
    """How the one attempt ended, as the adapter would classify it."""

    words: str
    outcome: Outcome
    hint: Hint = Hint.NONE
    stored: bool = False
    receipt: str | None = None
    standing: Standing | None = None


ENDINGS: dict[str, Ending] = {
    "lost-answer": Ending("the answer was lost", Outcome.UNKNOWN, Hint.LOST),
    "stored-error": Ending(
        "a 5xx that the provider stored for our key", Outcome.UNKNOWN, Hint.STORED_ERROR, stored=True
    ),
    "busy": Ending("an earlier request with our key was still running", Outcome.UNKNOWN, Hint.BUSY),
    "misused": Ending("the provider says our key was used for something else", Outcome.UNKNOWN, Hint.MISUSED),
    "unreadable": Ending("an answer that could not be parsed", Outcome.UNKNOWN, Hint.UNREADABLE),
    "mismatch": Ending("an answer about another effect", Outcome.UNKNOWN, Hint.MISMATCH),
    "refused": Ending("a definite no, stored for our key", Outcome.REFUSED, stored=True),
    "no-effect": Ending("proved not executed, like a 429", Outcome.NO_EFFECT),
    "not-sent": Ending("the send guard stopped it", Outcome.NO_EFFECT, Hint.NOT_SENT),
    "applied": Ending("the effect exists and was confirmed", Outcome.APPLIED, receipt="re_1", standing=Standing.GOOD),
    "open": Ending("nothing was recorded: the worker died", Outcome.UNKNOWN),
}


@dataclass(frozen=True)
class Moment:
    """What would be done at one moment."""

    after: timedelta
    row: str
    step: str
    reason: str
    wait: timedelta

    def told(self) -> dict[str, object]:
        """For JSON."""
        seconds = {"at_seconds": self.after.total_seconds(), "in_seconds": self.wait.total_seconds()}
        return {"row": self.row, "step": self.step, "reason": self.reason, **seconds}


async def explain(
    voice: Voice, action: str, chosen: list[str], at: str, review_after: str, *, held: bool, revoked: bool
) -> Page:
    """The schedule after one attempt that ended so, the step at every turning point, and the contract with its sources."""
    if len(chosen) != 1:
        raise Misuse(f"say how the attempt ended, by one of {', '.join('--' + name for name in ENDINGS)}")
    if held and revoked:
        raise Misuse("give --held or --revoked, not both")
    contract = default_registry().for_action(action).contract
    ending = ENDINGS[chosen[0]]
    attempt = made(contract, ending)
    patience = duration(review_after)
    may = MaySend.HELD if held else MaySend.REVOKED if revoked else MaySend.YES
    plan = facts.schedule(contract, (attempt,), FIRST_CLAIM, FIRST_CLAIM + patience, patience)
    page = Page(
        {"action": action, "ending": chosen[0], "may_send": may.value, "contract": contract.model_dump(mode="json")}
    )
    page.title(f"{action}: one attempt, claimed at +0 s; {ending.words}; nothing else is known")
    page.fact("sending", {MaySend.YES: "allowed", MaySend.HELD: "held", MaySend.REVOKED: "revoked"}[may])
    if not plan.provisional:
        for name, moment in (
            ("repeat until", plan.repeat_until),
            ("a request may still be worked on until", plan.quiet_at),
            ("absence counts from", plan.absence_from),
            ("look at least until", plan.look_until),
            ("review at", plan.review_at),
        ):
            page.fact(name, "" if moment is None else f"+{lasting(moment - FIRST_CLAIM)}")
        page.document["schedule"] = {
            name: None if moment is None else (moment - FIRST_CLAIM).total_seconds()
            for name, moment in vars(plan).items()
            if name != "provisional"
        }
    points = turning_points(attempt, plan)
    steps = [step_at(contract, attempt, point, may, plan.review_at) for point in points]
    page.say("")
    page.table(("from", "row", "step", "why", "next"), [_row(step) for step in _merged(steps)])
    page.document["steps"] = [step.told() for step in steps]
    if at:
        chosen_step = step_at(contract, attempt, duration(at), may, plan.review_at)
        page.document["at"] = chosen_step.told()
        page.say("")
        page.title(f"At +{lasting(chosen_step.after)}: {chosen_step.row}, {chosen_step.step}")
        page.say(chosen_step.reason)
    page.say("")
    terms(page, contract)
    return page


def made(contract: Contract, ending: Ending) -> Attempt:
    """The attempt of an ending: answered at the call's deadline, or never."""
    lost = facts.lost_attempt(contract, FIRST_CLAIM)
    if ending is ENDINGS["open"]:
        return replace(lost, outcome=None, hint=Hint.NONE, answered_at=None)
    return replace(
        lost,
        outcome=ending.outcome,
        hint=ending.hint,
        stored=ending.stored,
        receipt=ending.receipt,
        standing=ending.standing,
    )


def turning_points(attempt: Attempt, plan: facts.Schedule) -> list[timedelta]:
    """Moments at which the step may change, each just before and just after its bound."""
    found = {attempt.answered_at or attempt.lease_until, attempt.lease_until}
    for bound in (plan.repeat_until, plan.quiet_at, plan.absence_from, plan.look_until, plan.review_at):
        if bound is not None:
            found |= {bound, bound + A_MOMENT}
    return sorted({moment - FIRST_CLAIM for moment in found})


def step_at(contract: Contract, attempt: Attempt, after: timedelta, may: MaySend, review_at: datetime) -> Moment:
    """The decision at one moment, on this one attempt and no look."""
    told = decide(contract, (attempt,), (), FIRST_CLAIM + after, may, review_at)
    return Moment(after, told.row, told.step.value, told.reason, timedelta(seconds=told.delay_seconds))


def _merged(steps: list[Moment]) -> list[Moment]:
    kept: list[Moment] = []
    for step in steps:
        if not kept or (kept[-1].row, kept[-1].step, kept[-1].reason) != (step.row, step.step, step.reason):
            kept.append(step)
    return kept


def _row(step: Moment) -> tuple[str, str, str, str, str]:
    following = f"in {lasting(step.wait)}" if step.wait else "at once"
    ends = (Step.SUCCEED, Step.REJECT, Step.REVIEW)
    return f"+{lasting(step.after)}", step.row, step.step, step.reason, "" if step.step in ends else following


def terms(page: Page, contract: Contract) -> None:
    """The contract's terms, each with its source or the reason of the assumption."""
    page.title(f"Contract of {contract.name}, API version {contract.api_version}")
    for source in contract.sources:
        where = f"ASSUMED on {source.read_on}" if source.assumption else f"{source.url}, read on {source.read_on}"
        if source.measured_on:
            where = f"measured on {source.measured_on}, {source.read_on}"
        page.fact(source.term, term_value(contract, source.term))
        page.say(f"    {source.text} ({where})")


def term_value(contract: Contract, term: str) -> str:
    """The value of a dotted term."""
    value: object = contract
    for name in term.split("."):
        value = getattr(value, name, None)
    if isinstance(value, float):
        return lasting(timedelta(seconds=value))
    return (
        {True: "yes", False: "no", None: "none"}.get(value, str(value))
        if isinstance(value, bool | None)
        else str(value)
    )
