"""Tryton's own log as the witness of a conditional write: who wrote a record first after the version that we expected.

1. Tryton logs each write on each record, and neither a buyer nor our own user can change the log. Our write, conditional on
   one version of all its records, was made if and only if the first write after that version is, on every one of them, by
   our user, of our fields and in one transaction.
2. What cannot be explained so is unknown, never a no. A no is said only where the log, or a record that never moved, shows
   that our write cannot have been made.
3. That no two operations of ours write from one version is the core's: equal equivalence keys are never open together.
4. A mark that the log denies makes a person look.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

from ledger.model import SeenEffect, Standing
from providers.port import Look
from providers.tryton_rpc import Kind, TrytonSession

_LOG = "ir.model.log"
_FIELDS = ("resource", "event", "target", "user.login", "create_date")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class Touched:
    """One record that our write changes: at the version it was made for, and as it stands now."""

    name: str
    expected: str
    now: str | None  # its `_timestamp`; None when the record is gone
    made_at: int | None  # when it was created, microseconds
    fields: frozenset[str]  # what the log may name for a write of ours on it
    marked: bool | None = None  # whether it carries our mark; None where our write puts none


@dataclass(frozen=True)
class Row:
    """One line of the log."""

    id: int
    resource: str
    event: str
    target: str
    login: str
    at: int  # microseconds


@dataclass(frozen=True)
class Witnessed:
    """What the log says about our write. `ours` None means: it cannot be told."""

    ours: bool | None
    why: str
    at: int | None = None  # when our write was made, microseconds

    def summary(self) -> dict[str, Any]:
        """For people."""
        if self.at is None:
            return {"witness": self.why}
        return {"witness": self.why, "written_at": (_EPOCH + timedelta(microseconds=self.at)).isoformat()}


@dataclass(frozen=True)
class Records:
    """What our write would have touched, as it was read in one transaction of the server."""

    touched: tuple[Touched, ...]
    version: str | None  # of all that it would touch today
    fits: bool  # these are the target's records, in the account's company
    as_asked: bool  # they say what was asked
    marked: bool  # our mark stands on them
    summary: Mapping[str, Any]


@dataclass(frozen=True)
class Heard:
    """What the log says, and whether it was read to its end."""

    complete: bool
    witnessed: Witnessed
    detail: dict[str, Any] = field(default_factory=dict)


def micros(stamp: str) -> int:
    """A `_timestamp` in whole microseconds."""
    return int(Decimal(stamp) * 1_000_000)


def micros_at(moment: object) -> int | None:
    """A moment that Tryton told, in microseconds; None if it is none."""
    if not isinstance(moment, datetime) or moment.tzinfo is None:
        return None
    return (moment - _EPOCH) // timedelta(microseconds=1)


def judge_log(touched: Sequence[Touched], rows: Iterable[Row], logins: frozenset[str], since: int = 0) -> Witnessed:
    """Whether our write was made, by the rules at the top of this module. Pure.

    Rows count in the order of their ids: a row is inserted while its transaction holds the record, whose write_date is the
    transaction's beginning and may be earlier than that of a transaction which ended before.
    """
    if any(t.now == t.expected for t in touched):
        return Witnessed(False, "a record that our write would have changed is still at the expected version")
    # Our write writes every record from its expected version or none, so that each record tells by its own log alone: one no
    # is a no, also where others say nothing or are gone, and with them their logs.
    there = [t for t in touched if t.now is not None]
    kept = sorted(rows, key=lambda row: row.id)
    firsts = [_first_after(t, [row for row in kept if row.resource == t.name], logins) for t in there]
    for ours in (False, None):
        told = next((first for first in firsts if first.ours is ours), None)
        if told is not None:
            return told
    moments = {first.at for first in firsts}
    if len(moments) != 1:
        return Witnessed(None, "our user wrote these records, but not in one transaction")
    (at,) = moments
    if at is None or at < since:
        return Witnessed(None, "our user wrote these records before this operation could have been sent")
    if any(t.marked is False and t.now is not None and micros(t.now) == at for t in there):
        return Witnessed(False, "our user wrote these records, without the mark of this operation")
    return Witnessed(True, "the first write after the expected version is ours, on every record", at)


def _first_after(touched: Touched, rows: Sequence[Row], logins: frozenset[str]) -> Witnessed:
    """Whose the first write after the expected version is. `rows` are the record's own, by id."""
    expected = micros(touched.expected)
    at_version = [row.id for row in rows if row.at == expected]
    if at_version:
        later = [row for row in rows if row.id > at_version[-1]]
    elif touched.made_at == expected:
        later = list(rows)  # a creation has no row of its own
    else:
        return Witnessed(None, "the log does not know the expected version")
    first = next((row for row in later if row.event == "write"), None)
    if first is None:
        if any(row.at == micros(touched.now or "0") for row in later):
            return Witnessed(False, "somebody moved a record by a button, and our write never came")
        return Witnessed(None, "the log does not say who moved a record")
    if first.login not in logins:
        return Witnessed(False, "the first write after the expected version is somebody else's")
    if first.target not in touched.fields:
        return Witnessed(None, "our user wrote other fields than this operation")
    if any(row.id < first.id and row.at != first.at for row in later):
        # A button moves a record or does not. If it did, this is a write of ours from a later version.
        return Witnessed(None, "somebody pressed a button between the expected version and our user's write")
    return Witnessed(True, "", first.at)


async def hear(session: TrytonSession, touched: Sequence[Touched], logins: frozenset[str], since: int) -> Heard:
    """Read the log of these records, unless what they are already says that our write was not made."""
    without = judge_log(touched, (), logins)
    # The log of a record that is gone may not be read, and asking for it would hide the others.
    names = [t.name for t in touched if t.now is not None]
    if without.ours is False or not logins or not names:
        return Heard(True, without)
    listing = await session.rows(_LOG, [["resource", "in", names]], _FIELDS)
    if listing.last.kind is Kind.NOT_PERMITTED:
        return Heard(True, Witnessed(None, "our user may not read the log"), listing.detail())
    rows = [_row(item) for item in listing.items]
    if not listing.complete or None in rows:
        return Heard(False, Witnessed(None, "the log could not be read"), listing.detail())
    return Heard(True, judge_log(touched, [row for row in rows if row is not None], logins, since), listing.detail())


def look_of(receipt: str, records: Records, heard: Heard, moved: bool) -> Look:
    """What a look saw. Pure.

    After a later write by somebody else the records need not say any more what was asked. Where neither mark nor log tells,
    what says what was asked could be ours with its mark edited away.
    """
    witnessed = heard.witnessed
    effects: tuple[SeenEffect, ...] = ()
    if records.marked or witnessed.ours is True or (witnessed.ours is None and records.as_asked and moved):
        again = witnessed.ours is True and any(t.now is None or micros(t.now) != witnessed.at for t in records.touched)
        seen = SeenEffect(
            receipt=receipt,
            standing=Standing.GOOD,
            marked=records.marked or witnessed.ours is True,
            matching=records.fits and witnessed.ours is not False and (records.as_asked or again),
            summary={**records.summary, **witnessed.summary(), "as_asked": records.as_asked},
        )
        effects = (seen,)
    return Look(heard.complete, effects, moved, witnessed.ours, heard.detail | {"witness": witnessed.why})


def _row(item: Mapping[str, Any]) -> Row | None:
    user, at = item.get("user."), micros_at(item.get("create_date"))
    login = user.get("login") if isinstance(user, Mapping) else ""
    texts = [item.get("resource"), item.get("event"), item.get("target") or "", login]
    if at is None or not all(isinstance(text, str) for text in texts):
        return None
    resource, event, target, by = map(str, texts)
    return Row(item["id"], resource, event, target, by, at)
