"""The whole table of recovery: for every row and clause facts that fit, and their nearest counter-case.

Seconds count from the first claim; bounds that recur are named in recovery_facts.py. `US` is one step of the clock.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise

import pytest

from ledger import recovery
from ledger.contract import Contract
from ledger.model import Attempt, Decision, Hint, MaySend, Sighting, Standing, Step
from tests.unit.recovery_facts import (
    ANSWERED,
    BLIND_CONDITION,
    CLOSES,
    HASHED,
    KEY_AND_LOOKUP,
    KEY_AND_PAGED,
    KEY_ONLY,
    KEYED_CONDITION,
    LEASE,
    LOOKUP_ONLY,
    NEITHER,
    PAGED,
    PAUSE_OVER,
    QUIET,
    REVIEW_AT,
    ROLLED,
    ROLLED_SETTLED,
    ROLLING,
    SETTLED,
    UNWITNESSED,
    US,
    WITNESSED,
    applied,
    at,
    look,
    look_alike,
    no_effect,
    opened,
    ours,
    refused,
    stranger,
    unknown,
    unrelated,
)

HELD, REVOKED = MaySend.HELD, MaySend.REVOKED
GOOD, PENDING, VOID = Standing.GOOD, Standing.PENDING, Standing.VOID


@dataclass(frozen=True)
class Case:
    """Facts, the row and step they must get, and the sentence that says why."""

    reason: str
    row: str
    step: Step
    contract: Contract
    now: float
    attempts: tuple[Attempt, ...]
    sightings: tuple[Sighting, ...] = ()
    may_send: MaySend = MaySend.YES
    review_at: float = REVIEW_AT
    delay: float | None = None  # None: not what this case is about
    receipt: str | None = None
    standing: Standing | None = None
    says: str | None = None  # a part of the reason that a person reads


Row = Callable[[recovery.Facts], Decision | None]

LOST = (unknown(),)
# Closed by somebody who wrote no time of an answer: the end of the lease stands for it.
UNTIMED = (replace(unknown(), answered_at=None),)
STORED_500 = (unknown(hint=Hint.STORED_ERROR),)
# The first answer was lost; the repeat, claimed at 100, was refused, and the provider keeps that answer for the key.
LOST_THEN_STORED_REFUSAL = (unknown(), refused(2, 100, stored=True))
THEN_SETTLED = 320.0  # quiet_at counts from the second claim: 100 + 160, plus settling

D0 = (
    Case("nothing is decided while a lease lives", "D0", Step.WAIT, KEY_AND_LOOKUP, 5, (opened(),), delay=40),
    Case("the last moment of a lease", "D0", Step.WAIT, KEY_AND_LOOKUP, LEASE - US, (opened(),), delay=US),
    Case("a lease that ends now is over", "D0", Step.CLOSE_ATTEMPT, KEY_AND_LOOKUP, LEASE, (opened(),), delay=0),
    Case("authority does not matter to an open attempt", "D0", Step.CLOSE_ATTEMPT, NEITHER, 99, (opened(),),
         may_send=REVOKED),
    Case("a receipt of an earlier attempt waits too: moves need the fence", "D0", Step.WAIT, KEY_AND_LOOKUP, 101,
         (applied(), opened(2, 100))),
    Case("the open attempt need not be the last one listed", "D0", Step.WAIT, KEY_AND_LOOKUP, 101,
         (opened(2, 100), unknown())),
)  # fmt: skip

D1 = (
    Case("an applied answer is proof", "D1", Step.SUCCEED, NEITHER, 41, (applied(),), receipt="re_1", standing=GOOD),
    Case("pending is an effect that exists", "D1", Step.SUCCEED, NEITHER, 41, (applied(standing=PENDING),),
         receipt="re_1", standing=PENDING),
    Case("one sighting of our effect is proof, at any time", "D1", Step.SUCCEED, LOOKUP_ONLY, 60, LOST,
         (look(50, ours()),), receipt="re_1", standing=GOOD),
    Case("presence counts in an incomplete look too", "D1", Step.SUCCEED, LOOKUP_ONLY, 60, LOST,
         (look(50, ours(), complete=False),), receipt="re_1"),
    Case("what was seen once is not unseen by a later absence", "D1", Step.SUCCEED, LOOKUP_ONLY, 900, LOST,
         (look(50, ours()), look(800))),
    Case("two answers with one receipt are one effect", "D1", Step.SUCCEED, KEY_AND_LOOKUP, 200,
         (applied(), applied(2, 100))),
    Case("the latest standing counts: pending became good", "D1", Step.SUCCEED, KEY_AND_LOOKUP, 200,
         (applied(standing=PENDING),), (look(100, ours()),), standing=GOOD),
    Case("by time, not by order of the rows", "D1", Step.SUCCEED, KEY_AND_LOOKUP, 200, LOST,
         (look(100, ours(standing=GOOD)), look(50, ours(standing=PENDING))), standing=GOOD),
    Case("a known receipt is followed even when its marker is edited away", "D4", Step.REJECT, KEY_AND_LOOKUP, 400,
         (applied(),), (look(300, look_alike("re_1", VOID)),)),
    Case("a look-alike is not proof", "D9", Step.LOOK, LOOKUP_ONLY, 60, LOST, (look(50, look_alike()),)),
    Case("others' effects are not proof", "D9", Step.LOOK, LOOKUP_ONLY, 60, LOST, (look(50, unrelated()),)),
    Case("proof outranks a misused key", "D1", Step.SUCCEED, KEY_AND_LOOKUP, 200,
         (applied(), unknown(2, 100, Hint.MISUSED))),
    Case("proof outranks a refusal of another attempt", "D1", Step.SUCCEED, KEY_AND_LOOKUP, 200,
         (applied(), refused(2, 100))),
)  # fmt: skip

D2 = (
    Case("two answers with two receipts", "D2", Step.REVIEW, KEY_AND_LOOKUP, 200,
         (applied(), applied(2, 100, "re_2")), says="two receipts"),
    Case("an answer and a sighting that differ", "D2", Step.REVIEW, KEY_AND_LOOKUP, 200, (applied(),),
         (look(100, ours("re_2")),)),
    Case("several effects of ours in one look", "D2", Step.REVIEW, LOOKUP_ONLY, 200, LOST,
         (look(100, ours("re_1"), ours("re_2")),)),
    Case("a void and a living one are two", "D2", Step.REVIEW, LOOKUP_ONLY, 200, LOST,
         (look(100, ours("re_1", VOID), ours("re_2")),)),
    Case("two void ones are two", "D2", Step.REVIEW, LOOKUP_ONLY, 900, LOST,
         (look(100, ours("re_1", VOID), ours("re_2", VOID)),)),
    Case("our marker on an effect that does not match", "D2", Step.REVIEW, LOOKUP_ONLY, 60, LOST,
         (look(50, stranger()),), says="does not match"),
    Case("a mismatching effect beside a matching one", "D2", Step.REVIEW, KEY_AND_LOOKUP, 60, (applied(),),
         (look(50, ours(), stranger()),)),
    Case("only the latest complete look can show a mismatch", "D9", Step.LOOK, LOOKUP_ONLY, 120, LOST,
         (look(50, stranger()), look(100))),
    Case("a later incomplete look does not replace it", "D2", Step.REVIEW, LOOKUP_ONLY, 120, LOST,
         (look(50, stranger()), look(100, complete=False))),
    Case("an incomplete look alone cannot show it", "D9", Step.LOOK, LOOKUP_ONLY, 60, LOST,
         (look(50, stranger(), complete=False),)),
    Case("the key was used for something else", "D2", Step.REVIEW, KEY_AND_LOOKUP, 60, (unknown(hint=Hint.MISUSED),),
         says="something else"),
    Case("misused outranks what every attempt is proved to be", "D2", Step.REVIEW, KEY_AND_LOOKUP, 900,
         (unknown(hint=Hint.MISUSED), refused(2, 100, stored=True)), (look(400),)),
    Case("a mismatch outranks a refusal", "D2", Step.REVIEW, LOOKUP_ONLY, 60, (refused(),), (look(50, stranger()),)),
    Case("an answer about another effect is unknown, and a repeat would hear it again", "D9", Step.LOOK,
         KEY_AND_LOOKUP, 60, (unknown(hint=Hint.MISMATCH),)),
)  # fmt: skip

D3 = (
    Case("nothing was executed", "D3", Step.APPROVE_AGAIN, NEITHER, 41, (no_effect(),)),
    Case("nor in any of several", "D3", Step.APPROVE_AGAIN, NEITHER, 141, (no_effect(), no_effect(2, 100))),
    Case("nothing was ever sent", "D3", Step.APPROVE_AGAIN, NEITHER, 0, ()),
    Case("a definite no", "D3", Step.REJECT, NEITHER, 41, (refused(),)),
    Case("a definite no, and the rest had no effect", "D3", Step.REJECT, NEITHER, 141, (no_effect(), refused(2, 100))),
    Case("a refusal speaks for its own attempt only", "D9", Step.LOOK, LOOKUP_ONLY, 200, (unknown(), refused(2, 100))),
    Case("no effect speaks for its own attempt only", "D10", Step.REVIEW, NEITHER, 200, (unknown(), no_effect(2, 100))),
    Case("a stored refusal is the key's only answer", "D3", Step.REJECT, KEY_ONLY, 141, LOST_THEN_STORED_REFUSAL),
    Case("a refusal that is not stored is not", "D7", Step.REPEAT, KEY_ONLY, 200, (unknown(), refused(2, 100))),
    Case("claimed in the last moment of the window", "D3", Step.REJECT, KEY_ONLY, 4000,
         (unknown(), refused(2, CLOSES, stored=True))),
    Case("claimed after it: the key may have been pruned", "D10", Step.REVIEW, KEY_ONLY, 4000,
         (unknown(), refused(2, CLOSES + US, stored=True))),
    Case("without key terms a stored refusal says nothing of the other", "D10", Step.REVIEW, NEITHER, 200,
         LOST_THEN_STORED_REFUSAL),
    Case("a request that left after the window may have met a pruned key", "D10", Step.REVIEW, KEY_ONLY, 4000,
         (unknown(late_send=CLOSES + US), refused(2, 100, stored=True))),
    Case("one that left late but inside it met the key", "D3", Step.REJECT, KEY_ONLY, 4000,
         (unknown(late_send=CLOSES), refused(2, 100, stored=True))),
    Case("where a look is possible it must agree", "D9", Step.LOOK, KEY_AND_LOOKUP, 150, LOST_THEN_STORED_REFUSAL),
    Case("a complete look just after settling agrees", "D3", Step.REJECT, KEY_AND_LOOKUP, 330, LOST_THEN_STORED_REFUSAL,
         (look(THEN_SETTLED + US),)),
    Case("one begun at that very moment is too early", "D9", Step.LOOK, KEY_AND_LOOKUP, 330, LOST_THEN_STORED_REFUSAL,
         (look(THEN_SETTLED),)),
    Case("an incomplete look agrees to nothing", "D9", Step.LOOK, KEY_AND_LOOKUP, 330, LOST_THEN_STORED_REFUSAL,
         (look(THEN_SETTLED + US, complete=False),)),
    Case("nor one of a listing that is never complete", "D9", Step.LOOK, KEY_AND_PAGED, 330, LOST_THEN_STORED_REFUSAL,
         (look(THEN_SETTLED + US),)),
    Case("a look-alike contradicts it", "D9", Step.LOOK, KEY_AND_LOOKUP, 330, LOST_THEN_STORED_REFUSAL,
         (look(THEN_SETTLED + US, look_alike()),)),
    Case("a void look-alike does not", "D3", Step.REJECT, KEY_AND_LOOKUP, 330, LOST_THEN_STORED_REFUSAL,
         (look(THEN_SETTLED + US, look_alike(standing=VOID)),)),
    Case("all refused outranks a void effect", "D3", Step.REJECT, KEY_AND_LOOKUP, 900, (refused(),),
         (look(800, ours(standing=VOID)),)),
)  # fmt: skip

D4 = (
    Case("the only effect is void and nothing is on its way", "D4", Step.REJECT, LOOKUP_ONLY, QUIET + US, LOST,
         (look(50, ours(standing=VOID)),), receipt="re_1", standing=VOID),
    Case("at quiet_at itself something may be", "D4", Step.LOOK, LOOKUP_ONLY, QUIET, LOST,
         (look(50, ours(standing=VOID)),)),
    Case("where nobody can look, wait", "D4", Step.WAIT, KEY_ONLY, QUIET, (applied(standing=VOID),), delay=0.001),
    Case("until just after quiet_at", "D4", Step.WAIT, KEY_ONLY, 100, (applied(standing=VOID),), delay=60.001),
    Case("and then reject", "D4", Step.REJECT, KEY_ONLY, QUIET + 0.001, (applied(standing=VOID),)),
    Case("an unknown answer may be a 5xx that rolls forward", "D4", Step.LOOK, ROLLING, ROLLED, LOST,
         (look(50, ours(standing=VOID)),)),
    Case("but not for longer than the contract says", "D4", Step.REJECT, ROLLING, ROLLED + US, LOST,
         (look(50, ours(standing=VOID)),)),
    Case("nothing rolls forward when every answer is known", "D4", Step.REJECT, ROLLING, QUIET + US,
         (applied(standing=VOID),)),
    Case("a late send moves quiet_at", "D4", Step.LOOK, LOOKUP_ONLY, 450, (unknown(late_send=300),),
         (look(50, ours(standing=VOID)),)),
    Case("by its own moment, not more", "D4", Step.REJECT, LOOKUP_ONLY, 450 + US, (unknown(late_send=300),),
         (look(50, ours(standing=VOID)),)),
    Case("attempts without effect do not move it", "D4", Step.REJECT, LOOKUP_ONLY, QUIET + US,
         (unknown(), no_effect(2, 100)), (look(50, ours(standing=VOID)),)),
    Case("an effect that was answered is not refuted by a stored refusal", "D4", Step.WAIT, KEY_ONLY, 150,
         (applied(standing=VOID), refused(2, 100, stored=True))),
    Case("void outranks a version that moved", "D4", Step.REJECT, UNWITNESSED, 900, LOST,
         (look(800, ours(standing=VOID), moved=True),)),
)  # fmt: skip

D5 = (
    Case("somebody else wrote, and the witness does not name us", "D5", Step.REJECT, WITNESSED, 230, LOST,
         (look(SETTLED + US, moved=True, witness=False),), says="version_stale"),
    Case("a look begun at the settling moment is too early", "D9", Step.LOOK, WITNESSED, 230, LOST,
         (look(SETTLED, moved=True, witness=False),)),
    Case("an incomplete look is none", "D9", Step.LOOK, WITNESSED, 230, LOST,
         (look(SETTLED + US, moved=True, witness=False, complete=False),)),
    Case("without a witness nobody knows who wrote", "D5", Step.REVIEW, UNWITNESSED, 230, LOST,
         (look(SETTLED + US, moved=True),), says="no witness"),
    Case("a witness that the contract does not promise is none", "D5", Step.REVIEW, UNWITNESSED, 230, LOST,
         (look(SETTLED + US, moved=True, witness=False),)),
    Case("a witness that names us is no reason to reject", "D9", Step.LOOK, WITNESSED, 230, LOST,
         (look(SETTLED + US, moved=True, witness=True),)),
    Case("a witness that was not read is no reason either", "D9", Step.LOOK, WITNESSED, 230, LOST,
         (look(SETTLED + US, moved=True),)),
    Case("a version not read is not a moved one", "D9", Step.LOOK, WITNESSED, 230, LOST,
         (look(SETTLED + US, witness=False),)),
    Case("without a conditional write versions say nothing", "D9", Step.LOOK, LOOKUP_ONLY, 230, LOST,
         (look(SETTLED + US, moved=True, witness=False),)),
    Case("only the latest complete look counts", "D8", Step.REPEAT, WITNESSED, 330, LOST,
         (look(SETTLED + US, moved=True, witness=False), look(300, moved=False, witness=False))),
    Case("a moved version outranks a back-off", "D5", Step.REJECT, WITNESSED, 541, (unknown(), no_effect(2, 500)),
         (look(400, moved=True, witness=False),)),
)  # fmt: skip

D6 = (
    Case("the first request still runs", "D6", Step.WAIT, KEY_ONLY, 41, (unknown(hint=Hint.BUSY),), delay=1),
    Case("until the back-off is over", "D7", Step.REPEAT, KEY_ONLY, PAUSE_OVER, (unknown(hint=Hint.BUSY),)),
    Case("the last moment of it", "D6", Step.WAIT, KEY_ONLY, PAUSE_OVER - US, (unknown(hint=Hint.BUSY),), delay=US),
    Case("after no effect too, when an earlier attempt is unknown", "D6", Step.WAIT, KEY_ONLY, 141,
         (unknown(), no_effect(2, 100)), delay=3),
    Case("the pause doubles with the attempts", "D7", Step.REPEAT, KEY_ONLY, 144, (unknown(), no_effect(2, 100))),
    Case("only the last answer asks for it", "D7", Step.WAIT, KEY_ONLY, 141,
         (unknown(hint=Hint.BUSY), unknown(2, 100)), delay=3),
    Case("last by number, not by order", "D6", Step.WAIT, KEY_ONLY, 141, (unknown(2, 100, Hint.BUSY), unknown())),
    Case("a lost answer does not keep us from looking", "D9", Step.LOOK, LOOKUP_ONLY, 41, LOST),
)  # fmt: skip

D7 = (
    Case("the same key, the same bytes", "D7", Step.REPEAT, KEY_AND_LOOKUP, PAUSE_OVER, LOST, delay=0),
    Case("without the time of an answer, back-off counts from the lease", "D7", Step.WAIT, KEY_ONLY, LEASE, UNTIMED,
         delay=2),
    Case("with back-off", "D7", Step.WAIT, KEY_AND_LOOKUP, PAUSE_OVER - 1, LOST, delay=1),
    Case("up to the last safe moment", "D7", Step.REPEAT, KEY_AND_LOOKUP, CLOSES, LOST),
    Case("never after it", "D9", Step.LOOK, KEY_AND_LOOKUP, CLOSES + US, LOST),
    Case("never after it, where nobody can look", "D10", Step.REVIEW, KEY_ONLY, CLOSES + US, LOST),
    Case("the window is counted from the earliest claim", "D10", Step.REVIEW, KEY_ONLY, CLOSES + US,
         (unknown(), unknown(2, 3000))),
    Case("a refusal used the key as well", "D10", Step.REVIEW, KEY_ONLY, CLOSES + US, (refused(), unknown(2, 3000))),
    Case("a request without effect did not", "D7", Step.REPEAT, KEY_ONLY, CLOSES + US, (no_effect(), unknown(2, 3000))),
    Case("a person being told does not end it", "D7", Step.REPEAT, KEY_ONLY, 100, LOST, review_at=50),
    Case("without key terms there is nothing to repeat under", "D10", Step.REVIEW, NEITHER, PAUSE_OVER, LOST),
    Case("a stored error would only come again", "D9", Step.LOOK, KEY_AND_LOOKUP, 100, STORED_500),
    Case("of any attempt", "D9", Step.LOOK, KEY_AND_LOOKUP, 200, (*STORED_500, unknown(2, 100))),
    Case("a stored refusal too", "D9", Step.LOOK, KEY_AND_LOOKUP, 200, (refused(stored=True), unknown(2, 100))),
    Case("after a late send the key cannot be relied on", "D9", Step.LOOK, KEY_AND_LOOKUP, 100,
         (unknown(late_send=11),)),
    Case("revoked: nothing is sent", "D9", Step.LOOK, KEY_AND_LOOKUP, 100, LOST, may_send=REVOKED),
    Case("revoked, and nobody can look", "D10", Step.REVIEW, KEY_ONLY, 100, LOST, may_send=REVOKED),
    Case("held: wait until the window closes", "D7", Step.WAIT, KEY_ONLY, 100, LOST, may_send=HELD,
         delay=CLOSES - 100 + 0.001),
    Case("held: or until a person must be told", "D7", Step.WAIT, KEY_ONLY, 100, LOST, may_send=HELD, review_at=300,
         delay=200),
    Case("held at review_at: go on without sending", "D9", Step.LOOK, KEY_AND_LOOKUP, 300, LOST, may_send=HELD,
         review_at=300),
    Case("held to the moment before", "D7", Step.WAIT, KEY_AND_LOOKUP, 300 - US, LOST, may_send=HELD,
         review_at=300),
    Case("held while the window closes: the wait ends", "D7", Step.WAIT, KEY_ONLY, CLOSES, LOST, may_send=HELD,
         delay=0.001),
    Case("held after it closed", "D10", Step.REVIEW, KEY_ONLY, CLOSES + 0.001, LOST, may_send=HELD),
    Case("held with a stored error: nothing to wait for", "D9", Step.LOOK, KEY_AND_LOOKUP, 100, STORED_500,
         may_send=HELD),
    Case("the key outranks the condition", "D7", Step.REPEAT, KEYED_CONDITION, 100, LOST, (look(50, moved=False),)),
    Case("absence never sends by itself", "D10", Step.REVIEW, LOOKUP_ONLY, 400, LOST, (look(230), look(300))),
)  # fmt: skip

UNCHANGED = (look(50, moved=False),)

D8 = (
    Case("a version that can come back proves nothing", "D9", Step.LOOK, HASHED, 60, LOST, UNCHANGED),
    Case("an unchanged record takes the same write at most once", "D8", Step.REPEAT, UNWITNESSED, 60, LOST, UNCHANGED),
    Case("the look must be later than the last answer", "D9", Step.LOOK, UNWITNESSED, 60, LOST,
         (look(ANSWERED, moved=False),)),
    Case("by whatever little", "D8", Step.REPEAT, UNWITNESSED, 60, LOST, (look(ANSWERED + US, moved=False),)),
    Case("later than the lease, where no answer has a time", "D8", Step.REPEAT, UNWITNESSED, 60, UNTIMED,
         (look(LEASE + US, moved=False),)),
    Case("not at its end", "D9", Step.LOOK, UNWITNESSED, 60, UNTIMED, (look(LEASE, moved=False),)),
    Case("later than the last of several", "D9", Step.LOOK, UNWITNESSED, 200, (unknown(), unknown(2, 100)), UNCHANGED),
    Case("a look that did not read the version says nothing", "D9", Step.LOOK, UNWITNESSED, 60, LOST, (look(50),)),
    Case("an incomplete look says nothing", "D9", Step.LOOK, UNWITNESSED, 60, LOST,
         (look(50, moved=False, complete=False),)),
    Case("a version that moved", "D9", Step.LOOK, UNWITNESSED, 60, LOST, (look(50, moved=True),)),
    Case("the latest look counts", "D9", Step.LOOK, UNWITNESSED, 60, LOST,
         (look(50, moved=False), look(55, moved=True))),
    Case("without a conditional write it would be a second effect", "D9", Step.LOOK, LOOKUP_ONLY, 60, LOST, UNCHANGED),
    Case("held", "D9", Step.LOOK, UNWITNESSED, 60, LOST, UNCHANGED, may_send=HELD),
    Case("revoked", "D9", Step.LOOK, UNWITNESSED, 60, LOST, UNCHANGED, may_send=REVOKED),
    Case("after the back-off", "D8", Step.REPEAT, UNWITNESSED, PAUSE_OVER, LOST, (look(ANSWERED + US, moved=False),)),
    Case("not before", "D9", Step.LOOK, UNWITNESSED, PAUSE_OVER - US, LOST, (look(ANSWERED + US, moved=False),)),
    Case("to the moment before review_at", "D8", Step.REPEAT, UNWITNESSED, 100 - US, LOST, UNCHANGED, review_at=100),
    Case("not from review_at on", "D9", Step.LOOK, UNWITNESSED, 100, LOST, UNCHANGED, review_at=100),
    Case("after the key's window the condition still holds", "D8", Step.REPEAT, KEYED_CONDITION, CLOSES + US, LOST,
         UNCHANGED),
    Case("somebody else's look will do", "D8", Step.REPEAT, BLIND_CONDITION, 60, LOST, UNCHANGED),
    Case("without any, a person", "D10", Step.REVIEW, BLIND_CONDITION, 60, LOST),
)  # fmt: skip

MISSES = tuple(look(t, complete=False) for t in (230.0, 240.0, 250.0))

D9 = (
    Case("the first look, after a pause", "D9", Step.LOOK, LOOKUP_ONLY, ANSWERED, LOST, delay=2),
    Case("or after the lease, where no answer has a time", "D9", Step.LOOK, LOOKUP_ONLY, LEASE, UNTIMED, delay=2),
    Case("the next, after a longer one", "D9", Step.LOOK, LOOKUP_ONLY, 43, LOST, (look(42),), delay=4),
    Case("one is due just after settling", "D9", Step.LOOK, LOOKUP_ONLY, 200, LOST,
         tuple(look(t) for t in (42.0, 47.0, 56.0, 73.0, 106.0, 171.0)), delay=SETTLED + 0.001 - 200),
    Case("the second after settling: half the settling later at least", "D9", Step.LOOK, LOOKUP_ONLY, 222, LOST,
         (look(SETTLED + US),), delay=29 + US),
    Case("and by a longer pause after each miss", "D9", Step.LOOK, LOOKUP_ONLY, 600, LOST,
         tuple(look(230.0 + n, complete=False) for n in range(6)), delay=0),
    Case("capped", "D9", Step.LOOK, LOOKUP_ONLY, 400, LOST,
         tuple(look(230.0 + n, complete=False) for n in range(20)), delay=250 + 300 - 400),
    Case("looks before the last send do not lengthen the pause", "D9", Step.LOOK, LOOKUP_ONLY, 140,
         (unknown(), unknown(2, 100)), (look(42), look(47)), delay=2),
    Case("before review_at, however many", "D9", Step.LOOK, LOOKUP_ONLY, 300 - US, LOST, MISSES, review_at=300),
    Case("from review_at on, three", "D10", Step.REVIEW, LOOKUP_ONLY, 300, LOST, MISSES, review_at=300),
    Case("from review_at on, fewer than three", "D9", Step.LOOK, LOOKUP_ONLY, 300, LOST, MISSES[:2], review_at=300),
    Case("those before settling do not count", "D9", Step.LOOK, LOOKUP_ONLY, 300, LOST,
         (*MISSES[:2], look(SETTLED, complete=False)), review_at=300),
    Case("two complete absences bring the review forward", "D10", Step.REVIEW, LOOKUP_ONLY, 300, LOST,
         (look(SETTLED + US), look(SETTLED + 31 + US))),
    Case("unless they are too near each other", "D9", Step.LOOK, LOOKUP_ONLY, 300, LOST,
         (look(SETTLED + US), look(SETTLED + 31))),
    Case("or one is too early", "D9", Step.LOOK, LOOKUP_ONLY, 300, LOST, (look(SETTLED), look(SETTLED + 31 + US))),
    Case("or one is incomplete", "D9", Step.LOOK, LOOKUP_ONLY, 300, LOST,
         (look(SETTLED + US), look(SETTLED + 31 + US, complete=False))),
    Case("or the listing never is", "D9", Step.LOOK, PAGED, 300, LOST, (look(SETTLED + US), look(SETTLED + 31 + US))),
    Case("a look-alike twice: further looks tell nothing new", "D10", Step.REVIEW, LOOKUP_ONLY, 300, LOST,
         (look(SETTLED + US, look_alike()), look(SETTLED + 31 + US, look_alike()))),
    Case("a lost answer may roll forward: absence waits for it", "D9", Step.LOOK, ROLLING, 900,
         (unknown(hint=Hint.STORED_ERROR),), (look(ROLLED_SETTLED), look(ROLLED_SETTLED + 32))),
    Case("and no longer", "D10", Step.REVIEW, ROLLING, 900, (unknown(hint=Hint.STORED_ERROR),),
         (look(ROLLED_SETTLED + US), look(ROLLED_SETTLED + 32))),
    Case("without lookup terms nobody looks", "D10", Step.REVIEW, NEITHER, 60, LOST),
)  # fmt: skip

D10 = (
    Case("no key, no lookup: a person at once", "D10", Step.REVIEW, NEITHER, 41, LOST, says="nothing safe"),
    Case("a key with a stored error and no lookup", "D10", Step.REVIEW, KEY_ONLY, 60, STORED_500),
    Case("a key, late send and no lookup", "D10", Step.REVIEW, KEY_ONLY, 60, (unknown(late_send=11),)),
)

CASES: tuple[Case, ...] = (*D0, *D1, *D2, *D3, *D4, *D5, *D6, *D7, *D8, *D9, *D10)


def decide(case: Case) -> Decision:
    """The decision on the facts of a case."""
    return recovery.decide(
        case.contract, case.attempts, case.sightings, at(case.now), case.may_send, at(case.review_at)
    )


@pytest.mark.parametrize("case", CASES, ids=lambda c: f"{c.row}-{c.reason}")
def test_the_first_row_that_fits_says_the_next_step(case: Case) -> None:
    """Red when any row, bound or clause of recovery.py changes: each line of the table is met from both sides."""
    decision = decide(case)
    assert (decision.row, decision.step) == (case.row, case.step), f"{case.reason}: {decision}"
    if case.delay is not None:
        assert decision.delay_seconds == pytest.approx(case.delay, abs=US / 10), case.reason
    if case.receipt is not None:
        assert decision.receipt == case.receipt, case.reason
    if case.standing is not None:
        assert decision.standing is case.standing, case.reason
    if case.says is not None:
        assert case.says in decision.reason, case.reason


def test_every_row_has_cases_and_every_case_its_own_sentence() -> None:
    """The table cannot lose a row unnoticed; a failing case is found by its sentence."""
    assert {c.row for c in CASES} == {f"D{n}" for n in range(len(recovery.ROWS))}
    sentences = [(c.row, c.reason) for c in CASES]
    assert len(sentences) == len(set(sentences))


def _noticed(monkeypatch: pytest.MonkeyPatch, rows: tuple[Row, ...]) -> bool:
    monkeypatch.setattr(recovery, "ROWS", rows)
    for case in CASES:
        try:
            decision = decide(case)
        except AssertionError:  # no row answered
            return True
        if (decision.row, decision.step) != (case.row, case.step):
            return True
    return False


@pytest.mark.parametrize("dropped", range(11))
def test_a_row_that_is_missing_is_noticed(monkeypatch: pytest.MonkeyPatch, dropped: int) -> None:
    """The table is not vacuous: without any one row some case decides otherwise."""
    rows = tuple(row for n, row in enumerate(recovery.ROWS) if n != dropped)
    assert _noticed(monkeypatch, rows), f"no case needs row D{dropped}"


@pytest.mark.parametrize(("first", "second"), list(pairwise(range(11))))
def test_two_rows_in_the_wrong_order_are_noticed(monkeypatch: pytest.MonkeyPatch, first: int, second: int) -> None:
    """The first row that fits wins: exchanging any two neighbours changes some case."""
    rows = list(recovery.ROWS)
    rows[first], rows[second] = rows[second], rows[first]
    assert _noticed(monkeypatch, tuple(rows)), f"no case needs D{first} before D{second}"


def test_the_order_of_attempts_and_looks_does_not_matter() -> None:
    """Facts carry their own times and numbers; rows of a table may come in any order."""
    for case in CASES:
        turned = replace(case, attempts=case.attempts[::-1], sightings=case.sightings[::-1])
        assert decide(turned) == decide(case), case.reason
