"""The faults of one exchange, and what each must lead to for an action, by what its contract has."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from devstack.faults import BlackHole, CutReply, CutRequest, DripReply, Fault, HoldReply, HoldRequest, ReplaceReply
from tests.matrix import AFTER, BEFORE, Trouble

if TYPE_CHECKING:
    from tests.recovery.test_receivers_faults import Job

AT_ERP = ("change_delivery_date", "update_customer", "create_draft_invoice")
IN_BOOK = ("create_contact", "update_contact")
BY_MAIL = ("send_mail", "send_mail_unarchived")
AT_STRIPE = ("refund",)
EVERYWHERE = (*AT_ERP, *IN_BOOK, *BY_MAIL, *AT_STRIPE)
# By what the contract allows after a lost answer: the same key again, the same condition again, a look, or nothing.
KEYED = ("refund",)
REPEATED = ("change_delivery_date", "update_customer")
LOOKED_FOR = ("create_draft_invoice", "create_contact", "update_contact", "send_mail")
BLIND = ("send_mail_unarchived",)


def page(code: str) -> bytes:
    """What a gateway says, and not the receiver."""
    body = f"<html><body><h1>{code}</h1></body></html>".encode()
    head = f"HTTP/1.1 {code}\r\nContent-Type: text/html\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    return head.encode() + body


def turned_away(job: "Job") -> Fault:
    """Told that nothing was done, and nothing was."""
    return ReplaceReply(answer=job.not_now, deliver=False)


@dataclass(frozen=True)
class Case:
    """A fault, and whether the receiver carries out what it concerns.

    Never, at once, when it is let go; or never, and that is proved: then it is sent again, or was refused.
    """

    name: str
    fault: "Callable[[Job], Fault]"
    executed: str
    trouble: Trouble  # its row in docs/faults.md
    by: tuple[str, ...] = EVERYWHERE  # whose receivers can say it

    @property
    def when(self) -> str:
        """Whether the receiver had carried it out when this began."""
        return AFTER if self.executed == "at once" else BEFORE


def instead(code: str, *, deliver: bool = True) -> "Callable[[Job], Fault]":
    """A page in place of the answer."""
    return lambda job: ReplaceReply(answer=page(code), deliver=deliver)


CASES = (
    Case("cut before the request", lambda job: CutRequest(), "never", Trouble.RESET),
    Case("closed before the request", lambda job: CutRequest(reset=False), "never", Trouble.FIN),
    Case("cut in the request", lambda job: CutRequest(passing=job.inside), "never", Trouble.TRUNCATED),
    Case("black hole", lambda job: BlackHole(), "never", Trouble.HANG),
    Case("503 of a gateway", instead("503 Unavailable", deliver=False), "never", Trouble.PAGE_502),
    Case("page, and the request is lost", instead("200 OK", deliver=False), "never", Trouble.PAGE_200),
    Case("409 of a gateway", instead("409 Conflict", deliver=False), "never", Trouble.CONFLICT_409, AT_ERP),
    Case("409 of the book", instead("409 Conflict", deliver=False), "refused", Trouble.CONFLICT_409, IN_BOOK),
    Case("429 of a gateway", instead("429 Slow Down", deliver=False), "never", Trouble.RATE_429, (*AT_ERP, *IN_BOOK)),
    Case("cut before the answer", lambda job: CutReply(), "at once", Trouble.RESET),
    Case("closed before the answer", lambda job: CutReply(reset=False), "at once", Trouble.FIN),
    Case("cut in the answer", lambda job: CutReply(passing=3), "at once", Trouble.TRUNCATED),
    Case("silence instead of the answer", lambda job: HoldReply(), "at once", Trouble.HANG),
    Case("answer in drops", lambda job: DripReply(pause=1.0), "at once", Trouble.DRIP),
    Case("502 of a gateway", instead("502 Bad Gateway"), "at once", Trouble.PAGE_502),
    Case("page instead of the answer", instead("200 OK"), "at once", Trouble.PAGE_200),
    Case("arrives late", lambda job: HoldRequest(), "late", Trouble.LATE),
    Case("turned away", turned_away, "again", Trouble.LOGIN_401, (*AT_ERP, *IN_BOOK, *AT_STRIPE)),
    Case("told to come back later", turned_away, "again", Trouble.RATE_429, BY_MAIL),
)


def early(action: str, case: Case) -> tuple[str, int, int]:
    """Where it stands before time has passed and anything late was let go: state, effects, and how often it was sent."""
    made = int(case.executed == "at once")
    if case.executed == "refused":
        return "rejected", 0, 1
    if action in KEYED:
        return "succeeded", 1, 2
    if action in REPEATED or case.executed == "again":
        return "succeeded", 1, 2 - made
    if action in BLIND:
        return "needs_review", made, 1
    return "succeeded" if made else "unknown", made, 1


def end(action: str, case: Case) -> tuple[str, int, int]:
    """How it ends, and what it must have come to."""
    made = int(case.executed != "never")
    if action in KEYED + REPEATED or case.executed in ("again", "refused"):
        return early(action, case)
    if action in BLIND:
        return "needs_review", made, 1
    return "succeeded" if made else "needs_review", made, 1
