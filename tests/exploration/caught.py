"""Where each mutant is caught: the shape, the faults that a run may have (all of them at once), and by which invariant."""

from typing import NamedTuple

from ledger.contract import Contract
from tests.exploration.environment import Scenario
from tests.exploration.scenarios import CHAIN, SIGNED, TWINS, TWO, WAIVED
from tests.exploration.shapes import KEY_AND_LOOKUP as BOTH
from tests.exploration.shapes import KEY_ONLY as KEY
from tests.exploration.shapes import LOOKUP_ONLY as LOOK
from tests.exploration.shapes import NEITHER
from tests.exploration.shapes import UNWITNESSED as BARE
from tests.exploration.shapes import WITNESSED as COND


class At(NamedTuple):
    """A shape, faults separated by commas, and the invariant that breaks (for equivalent mutants: why none does)."""

    shape: Contract
    faults: str
    says: str
    amounts: tuple[int, ...] = WAIVED
    chained: bool = False

    @property
    def scenario(self) -> Scenario:
        """The shape, where every fault may happen once, all in one run."""
        faults = [fault for fault in self.faults.split(",") if fault]
        return Scenario(self.shape, frozenset(faults), len(faults), self.amounts, self.chained)


CAUGHT = {
    "edge 1 to proposed removed": At(KEY, "", "nothing_breaks"),
    "edge 2 to awaiting_approval removed": At(KEY, "", "nothing_breaks", SIGNED),
    "edge 3 to approved removed": At(KEY, "", "nothing_breaks"),
    "edge 4 to blocked removed": At(KEY, "withdrawn", "nothing_breaks"),
    "edge 5 to approved removed": At(KEY, "", "nothing_breaks", SIGNED),
    "edge 6 to blocked removed": At(KEY, "withdrawn", "nothing_breaks", SIGNED),
    "edge 7 to in_flight removed": At(KEY, "", "nothing_breaks"),
    "edge 8 to blocked removed": At(KEY, "withdrawn", "nothing_breaks"),
    "edge 9 to awaiting_approval removed": At(KEY, "approval revoked", "nothing_breaks", SIGNED),
    "edge 10 to succeeded removed": At(KEY, "", "nothing_breaks"),
    "edge 11 to rejected removed": At(KEY, "refused", "nothing_breaks"),
    "edge 12 to approved removed": At(KEY, "answered 429", "nothing_breaks"),
    "edge 13 to unknown removed": At(KEY, "answer lost", "nothing_breaks"),
    "edge 14 to in_flight removed": At(KEY, "answer lost", "nothing_breaks"),
    "edge 15 to succeeded removed": At(LOOK, "answer lost", "nothing_breaks"),
    "edge 16 to rejected removed": At(LOOK, "worker stopped,refused", "nothing_breaks"),
    "edge 17 to approved removed": At(LOOK, "worker stopped,answered 429", "nothing_breaks"),
    "edge 18 to needs_review removed": At(NEITHER, "answer lost", "nothing_breaks"),
    "edge 19 to succeeded removed": At(NEITHER, "answer lost,happened", "nothing_breaks"),
    "edge 20 to rejected removed": At(NEITHER, "request lost,did not happen", "nothing_breaks"),
    "edge 21 to undetermined removed": At(NEITHER, "request lost,undetermined", "nothing_breaks"),
    "edge 22 to unknown removed": At(LOOK, "request lost,look again", "nothing_breaks"),
    "edge 23 to rejected removed": At(NEITHER, "worker stopped,refused", "nothing_breaks"),
    "edge 23 to approved removed": At(NEITHER, "worker stopped,answered 429", "nothing_breaks"),
    "row D0 disabled": At(KEY, "started twice", "something_is_next"),
    "row D1 disabled": At(KEY, "", "proof_ends_it"),
    "row D2 disabled": At(KEY, "key misused", "repeated_without_doubt"),
    "row D3 disabled": At(KEY, "refused", "review_is_the_last_resort"),
    "row D4 disabled": At(BOTH, "answer lost,effect turned void", "review_is_the_last_resort"),
    "row D5 disabled": At(COND, "request lost,record edited by somebody", "nothing_is_put_off"),
    "row D7 disabled": At(KEY, "request lost", "review_is_the_last_resort"),
    "row D8 disabled": At(COND, "request lost", "nothing_is_put_off"),
    "row D9 disabled": At(LOOK, "request lost", "review_is_the_last_resort"),
    "row D10 disabled": At(NEITHER, "request lost", "nothing_breaks"),
    "rows D0 and D1 swapped": At(KEY, "worker stopped,request lost", "stale_fence_moves_nothing"),
    "rows D1 and D2 swapped": At(BOTH, "answer lost,key misused,webhook", "proof_ends_it"),
    "rows D2 and D3 swapped": At(
        LOOK, "worker stopped,refused,stranger with our marker", "contradictions_go_to_people"
    ),
    "rows D4 and D5 swapped": At(BARE, "answer lost,effect turned void,all workers down", "review_is_the_last_resort"),
    "rows D8 and D9 swapped": At(COND, "request lost,all workers down", "nothing_is_put_off"),
    "rows D9 and D10 swapped": At(LOOK, "request lost", "review_is_the_last_resort"),
    "anchor from the last attempt": At(KEY, "answer lost,request lost,all workers down", "at_most_one_effect"),
    "anchor from attempts without effect": At(
        KEY, "answered 429,request lost,all workers down", "review_is_the_last_resort"
    ),
    "quiet_at without processing": At(LOOK, "request lost", "review_is_the_last_resort"),
    "quiet_at without the call": At(LOOK, "request lost", "review_is_the_last_resort"),
    "quiet_at without the guard's delay": At(LOOK, "request lost", "review_is_the_last_resort"),
    "quiet_at without roll-forward": At(LOOK, "answered 5xx", "review_is_the_last_resort"),
    "quiet_at from the first attempt": At(BOTH, "request lost,answered 5xx", "review_is_the_last_resort"),
    "quiet_at forgets late sends": At(LOOK, "worker stopped,request lost", "review_is_the_last_resort"),
    "window without margin": At(KEY, "answer lost,all workers down", "at_most_one_effect"),
    "window for ever": At(KEY, "answer lost,all workers down", "at_most_one_effect"),
    "late sends stop no repeat": At(KEY, "worker stopped,answer lost", "repeated_without_doubt"),
    "stored answers stop no repeat": At(KEY, "answered 5xx", "repeated_without_doubt"),
    "absence trusted at once": At(LOOK, "request lost", "review_is_the_last_resort"),
    "absence trusted before settling": At(LOOK, "worker stopped,request lost", "review_is_the_last_resort"),
    "incomplete looks count as absence": At(
        LOOK, "request lost,list incomplete,list incomplete", "review_is_the_last_resort"
    ),
    "one look is enough": At(LOOK, "request lost", "review_is_the_last_resort"),
    "look-alikes are nothing": At(
        LOOK, "answer lost,marker edited away,did not happen", "no_effect_where_none_is_told"
    ),
    "a look-again forgets nothing": At(BOTH, "key misused,look again", "review_is_the_last_resort"),
    "D0: leases are over at once": At(KEY, "started twice", "stale_fence_moves_nothing"),
    "D0: leases are never over": At(KEY, "worker crashed", "comes_to_an_end"),
    "D1: strangers do not matter": At(LOOK, "answer lost,stranger with our marker", "contradictions_go_to_people"),
    "D1: void is good": At(BOTH, "answer lost,effect turned void", "effect_where_one_is_told"),
    "D2: misuse does not matter": At(KEY, "key misused", "repeated_without_doubt"),
    "D3: unknown is no effect": At(LOOK, "request delayed", "no_effect_where_none_is_told"),
    "D3: one refusal is enough": At(COND, "request delayed,worker crashed", "no_effect_where_none_is_told"),
    "D5: looks too early count": At(
        COND, "request delayed,record edited by somebody,lookup lags", "no_effect_where_none_is_told"
    ),
    "D5: needs no witness": At(COND, "answer lost,marker edited away", "no_effect_where_none_is_told"),
    "D7: window always open": At(KEY, "answer lost,all workers down", "at_most_one_effect"),
    "D7: revoked may repeat": At(KEY, "answer lost,grant revoked", "sent_with_authority"),
    "D7: held may repeat": At(KEY, "answer lost,hold set", "sent_with_authority"),
    "D7: what is kept may be asked again": At(KEY, "answered 5xx", "repeated_without_doubt"),
    "D7: no pause": At(KEY, "answer lost", "repeated_without_doubt"),
    "D8: older looks count": At(COND, "request lost,answer lost", "repeated_without_doubt"),
    "D8: moved may repeat": At(COND, "request lost,record edited by somebody", "repeated_without_doubt"),
    "D8: whatever authority says": At(COND, "request lost,grant revoked", "sent_with_authority"),
    "D9: looks are not counted": At(LOOK, "request lost", "nothing_is_put_off"),
    "D9: one late look is enough": At(LOOK, "request lost,list incomplete", "review_is_the_last_resort"),
    "D9: looks for ever": At(LOOK, "request lost", "nothing_is_put_off"),
    "holds are not seen": At(KEY, "answer lost,hold set", "sent_with_authority"),
    "revocations are not seen": At(KEY, "answer lost,grant revoked", "sent_with_authority"),
    "a revoked grant is not seen": At(KEY, "answer lost,grant revoked", "sent_with_authority"),
    "a revoked approver is not seen": At(KEY, "answer lost,approval revoked", "sent_with_authority", SIGNED),
    "a look-again needs no look": At(BOTH, "key misused,look again", "look_again_looks_first"),
    "ages are trusted after the clock was set back": At(
        KEY, "answer lost,all workers down,clock set back", "at_most_one_effect"
    ),
    "a closed attempt stays open": At(KEY, "worker crashed", "nothing_breaks"),
    "nothing is next": At(KEY, "answer lost", "something_is_next"),
    "approved again without a next step": At(KEY, "answered 429", "something_is_next"),
    "the guard asks nobody": At(KEY, "hold set", "sent_with_authority"),
    "the guard reads no clock": At(KEY, "worker stopped", "sent_in_time"),
    "late sends are not told": At(KEY, "worker stopped", "sent_in_time"),
    "late sends are not kept": At(KEY, "worker stopped,answer lost", "sent_in_time"),
    "the guard forgets holds": At(KEY, "hold set", "sent_with_authority"),
    "the guard forgets revocations": At(KEY, "grant revoked", "sent_with_authority"),
    "a first claim ignores holds": At(KEY, "hold set", "sent_with_authority"),
    "a first claim ignores refusals": At(KEY, "grant revoked", "sent_with_authority"),
    "a first claim ignores what is there": At(LOOK, "ledger restored", "at_most_one_effect"),
    "a first claim reads incomplete lists": At(LOOK, "ledger restored,list incomplete", "at_most_one_effect"),
    "a first claim makes no pause": At(KEY, "worker stopped,started twice,answered 429", "repeated_without_doubt"),
    "an open attempt keeps its age": At(KEY, "worker stopped,clock set back in flight", "at_most_one_effect"),
    "a repeat needs no decision": At(LOOK, "answer lost,started twice", "repeated_without_doubt"),
    "a late answer settles": At(NEITHER, "worker stopped,undetermined", "nothing_breaks"),
    "a claim keeps the fence": At(KEY, "answer lost", "nothing_breaks"),
    "nobody comes after the lease": At(KEY, "", "something_is_next"),
    "now() read before the lock": At(KEY, "worker stopped,all workers down", "sent_with_authority"),
    "a look began when it was recorded": At(
        LOOK, "request delayed,worker stopped", "looks_are_dated_by_their_beginning"
    ),
    "a look is never due": At(LOOK, "answer lost", "comes_to_an_end"),
    "approvals are not counted": At(KEY, "started twice,nobody approves", "comes_to_an_end", SIGNED),
    "revoked approvers count": At(KEY, "approval revoked", "sent_with_authority", SIGNED),
    "an expired approval is good": At(KEY, "all workers down", "sent_with_authority"),
    "a withdrawal is not read": At(KEY, "withdrawn,answered 429", "sent_with_authority"),
    "a revoked grant is good": At(KEY, "grant revoked", "sent_with_authority"),
    "a revoked approver is not asked again": At(KEY, "approval revoked", "sent_with_authority", SIGNED),
    "amounts are not compared": At(NEITHER, "", "amount_never_exceeded", TWO),
    "the same thing again is another": At(NEITHER, "", "amount_never_exceeded", TWINS),
    "other operations hold nothing": At(NEITHER, "", "amount_never_exceeded", TWO),
    "a withdrawal recalls what was sent": At(KEY, "withdrawn", "nothing_breaks"),
    "people may certify after a late send": At(
        NEITHER, "worker stopped,request lost,did not happen", "certified_in_quiet_only"
    ),
    "people may certify while the key is honoured": At(KEY, "key misused,did not happen", "certified_in_quiet_only"),
    "people may certify before it is quiet": At(NEITHER, "request delayed,did not happen", "certified_in_quiet_only"),
    "people may certify without looks": At(
        LOOK, "answer lost,stranger with our marker,did not happen", "certified_in_quiet_only"
    ),
    "a look-again where nobody can look": At(NEITHER, "answer lost,look again", "comes_to_an_end"),
    "a definite answer can change": At(KEY, "answer recorded twice", "nothing_breaks"),
    "receipts: what is recorded last counts": At(BOTH, "worker stopped,effect turned void", "void_is_told_as_void"),
    "receipts: void is read as good again": At(
        BOTH, "effect pending,started twice,effect turned void", "void_is_told_as_void"
    ),
    "receipts: void is told to nobody": At(BOTH, "effect pending,effect turned void", "what_was_undone_goes_to_people"),
    "receipts: pending is good": At(BOTH, "effect pending", "told_as_it_is"),
    "receipts: pending is the end": At(BOTH, "effect pending", "pending_is_followed"),
    "receipts: pending is read once": At(BOTH, "effect pending", "pending_is_followed"),
    "receipts: pending is not read": At(BOTH, "effect pending", "reading_is_believed"),
    "receipts: a reading is not written down": At(BOTH, "effect pending", "reading_is_believed"),
    "receipts: an end is not read again": At(BOTH, "effect turned void,webhook", "pending_is_followed"),
    "receipts: looks after a success tell nobody": At(
        BARE, "worker stopped,effect turned void", "void_is_told_as_void"
    ),
    "receipts: whatever comes after the end alarms": At(
        BOTH, "worker stopped,effect turned void", "nobody_is_alarmed_for_nothing"
    ),
    "void holds its amount": At(
        BOTH, "worker stopped,effect turned void,webhook", "blocked_only_by_what_is_held", TWINS
    ),
    "a changed policy is not read": At(KEY, "policy changed", "sent_with_authority"),
    "a first send asks for nothing that it depends on": At(KEY, "", "nothing_breaks", CHAIN, True),
    "what was undone still counts": At(BOTH, "effect turned void,webhook", "nothing_breaks", CHAIN, True),
    "a repeat asks for nothing that it depends on": At(
        BOTH, "answer lost,effect turned void,webhook", "sent_with_authority", CHAIN, True
    ),
    "what is there waits for what it depends on": At(BOTH, "stranger with our marker", "comes_to_an_end", CHAIN, True),
}

# Changes that no run can show, and why. They are explored all the same: if one is caught one day, its reason is gone.
EQUIVALENT = {
    "a first claim trusts a clock set back": At(
        KEY,
        "clock set back,worker stopped",
        "`distrust_ages` marks the open attempt while ledger time stands still. The claim waits for when nobody works then.",
    ),
    "row D6 disabled": At(
        KEY,
        "answered 429",
        "D7, D8 and D9 make the same pause by themselves, and `_first_claim` makes it before another first send.",
    ),
    "rows D3 and D4 swapped": At(
        BOTH,
        "answer lost,effect turned void",
        "D4 needs a void receipt, D3 that every attempt is proved: with an `applied` attempt D3 never fits.",
    ),
    "rows D5 and D6 swapped": At(
        COND, "request lost,record edited by somebody", "D6 only waits: the same rejection follows one pause later."
    ),
    "rows D6 and D7 swapped": At(
        KEY, "answer lost,hold set", "Where D7 fits it makes the same pause; where it does not, D6 is next."
    ),
    "rows D7 and D8 swapped": At(
        KEY, "answer lost", "No shape has a key and a condition; with both, either row says repeat."
    ),
    "D3: stored refusals outside the window": At(
        KEY,
        "answer lost,refused,all workers down",
        "D7 claims nothing after the window has closed, so no such attempt exists.",
    ),
    "D3: no look agrees": At(
        BOTH,
        "request lost,refused",
        "A receiver that keeps a refusal for the key has executed nothing under it: the look is a second lock.",
    ),
    "D4: void is the end at once": At(
        BOTH,
        "request delayed,answer lost,effect turned void",
        "The request that may still land is answered by the kept key, or fails its condition.",
    ),
    "a stale version is sent": At(
        COND,
        "record edited by somebody,lookup lags",
        "The receiver refuses it: the block before it spares a request, and is no condition of its own.",
    ),
    "the guard forgets the fence": At(
        KEY,
        "worker stopped,request lost",
        "A fence changes only after the lease, which is longer than S: the clock has said no by then.",
    ),
    "the guard forgets the state": At(
        KEY, "worker stopped", "The state of a claim changes only by its answer, or after its lease: see the fence."
    ),
    "a stale fence settles": At(
        KEY,
        "worker stopped,request lost",
        "While a newer fence is in flight its attempt is open, and D0 moves nothing before its lease is over.",
    ),
    "anything found is ours": At(
        LOOK,
        "stranger with our marker",
        "What was found is recorded as a sighting as well: D2 sees the stranger in it and asks a person.",
    ),
    "receipts: answers after a success tell nobody": At(
        BOTH,
        "worker stopped,effect turned void",
        "Who is answered that it is void asked after whoever was told that it is good: two workers would have to be stopped.",
    ),
    "people may certify while an attempt is open": At(
        KEY, "key misused,did not happen", "An attempt is open only in flight, and people resolve only in review."
    ),
    "a repeat trusts ages": At(
        KEY,
        "answer lost,clock set back,worker stopped",
        "Who repeats while ledger time stands still does so at its beginning; what is lost then is distrusted on settling.",
    ),
}
