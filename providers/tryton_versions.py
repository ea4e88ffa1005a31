"""What both conditional writes on Tryton share: the versions of records, our mark in their texts, and the sending itself.

1. A version is the text of every record that a write changes with its `_timestamp`. Tryton takes a missing one for "no
   condition", in silence: a text that is not whole is `Broken`, and nothing is sent on it.
2. Our mark is a line of its own in a text field. People can overwrite it, so that its absence proves nothing; what the log
   proves is in tryton_witness.py.
3. No id of a change exists at Tryton. Its receipt names the record and the operation.
4. A null, which is all that Tryton answers to a write, and every refusal are believed after a look: a date can be dropped in
   silence, without a queue worker a queued task may refuse when the write is committed, and a request that something between
   us and the server sent twice is refused because it was made.
"""

import asyncio
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

from ledger.contract import Contract, LookupTerms, Source
from ledger.errors import Broken, Refused
from ledger.model import Hint, Operation, Outcome, SeenEffect, Standing
from providers.port import AfterWrite, Classified, Credential, Look, Request, SendGuard
from providers.tryton_rpc import Logins, Rows, Told, TrytonSession, classify_no, context_of, parts_of, place_of, whose
from providers.tryton_witness import Records, hear, look_of, micros_at

API_VERSION = "8.2"  # Tryton's series; its calls carry no version of their own
MOST_RECORDS = 300  # in one write: more would make a version that no operation can hold
_SERVER = "Tryton 8.2.1"
_READ_ON = "2026-11-30"
_RECORD = re.compile(r"[a-z_]+(\.[a-z_]+)+,[1-9]\d{0,17}")
_STAMP = re.compile(r"\d{1,12}(\.\d{1,6})?")
_MARK = re.compile(r"\[effect ([^\[\]]{1,80})\]")


def contract_of(action: str, marker: str) -> Contract:
    """The terms of a conditional write on Tryton; `marker` says where our mark is put."""

    def measured(term: str, text: str) -> Source:
        return Source(term=term, text=text, read_on=_READ_ON, measured_on=_SERVER)

    def assumed(term: str, reason: str) -> Source:
        return Source(term=term, text=reason, read_on=_READ_ON, assumption=True)

    return Contract(
        name=action,
        api_version=API_VERSION,
        lookup=LookupTerms(marker=marker, settling=10, complete=True, marker_editable=True),
        processing=3600,
        conditional_write=True,
        witness=True,
        sources=(
            measured("api_version", "the series that common.server.version tells; JSON-RPC has no version of its own"),
            measured("conditional_write", "of simultaneous writers with one _timestamp exactly one wins, and a stale one on "
                     "any record refuses the whole write: ConcurrencyException (on PostgreSQL; on SQLite several win)"),
            measured("versions_return", "a version is the time of the last write; a write that changes nothing moves it too"),
            measured("witness", "ir.model.log has a row for each record and write, of the write's own create_date; our user "
                     "and a buyer may read it, and neither may write or delete it"),
            assumed("witness", "only this ledger writes as its user of Tryton, no administrator edits or purges the log while "
                    "an operation is open, and no module of the server writes these records past it"),
            measured("lookup.marker", "the mark is written in the transaction of the change itself"),
            assumed("lookup.settling", "what is committed is seen by the next read, as there is one database; ten seconds "
                    "cost little where a replica answers"),
            measured("lookup.complete", "a record is read with all its parts in one transaction of the server"),
            measured("lookup.marker_editable", "a buyer may overwrite the text that holds the mark"),
            assumed("processing", "a lock in the ERP's database holds a write back, also when its client has gone, and no "
                    "timeout ends it; an hour is longer than an update or a batch run should hold these records"),
            assumed("effect_can_change", "what somebody writes later is another change, under a version of its own"),
        ),
    )  # fmt: skip


def version_text(stamps: Mapping[str, str]) -> str | None:
    """One text for these records at these `_timestamp`s, whatever their order; None if that is not a version."""
    if not stamps or not all(_RECORD.fullmatch(name) and _STAMP.fullmatch(stamp) for name, stamp in stamps.items()):
        return None
    return ";".join(f"{name}@{stamps[name]}" for name in sorted(stamps, key=_by_model_and_id))


def read_version(text: object) -> dict[str, str]:
    """The `_timestamp` of each record. `Broken` unless the text is whole: the write would be unconditional, in silence."""
    parts = text.split(";") if isinstance(text, str) else []
    stamps = {name: stamp for name, _, stamp in (part.partition("@") for part in parts)}
    if not stamps or version_text(stamps) != text:
        raise Broken("the expected version names no _timestamp for every record: nothing is sent without a condition")
    return stamps


def ids_of(stamps: Mapping[str, str], model: str) -> list[int]:
    """The records of this model, by id."""
    found = (name.split(",") for name in stamps)
    return sorted(int(number) for of, number in found if of == model)


def only_id(stamps: Mapping[str, str], model: str) -> int:
    """The one record of this model; `Broken` if there are none or several."""
    found = ids_of(stamps, model)
    if len(found) != 1:
        raise Broken(f"the expected version names {len(found)} records of {model} instead of one")
    return found[0]


def mark_of(marker: str) -> str:
    """The line that says whose change this is."""
    return f"[effect {marker}]"


def with_mark(text: object, marker: str) -> str:
    """The text with our mark as its last line; nothing else of it changes."""
    old = text if isinstance(text, str) else ""
    return f"{old}{'' if not old or old.endswith(chr(10)) else chr(10)}{mark_of(marker)}"


def has_mark(text: object, marker: str) -> bool:
    """Whether a line of the text is our mark and nothing else."""
    return marker in marks_in(text)


def marks_in(text: object) -> list[str]:
    """The operation ids that stand in a text, whosever they are."""
    lines = text.splitlines() if isinstance(text, str) else []
    return [found[1] for line in lines if (found := _MARK.fullmatch(line.strip()))]


def receipt_of(name: str, marker: str) -> str:
    """The record, as "party.party,7", and whose change of it this is."""
    return f"{name}#{marker}"


def check_argument_names(arguments: Mapping[str, Any], known: Sequence[str]) -> None:
    """Refuse arguments that the action does not have."""
    for name in arguments:
        if name not in known:
            raise Refused("argument_unknown", f"this takes {', '.join(known)} and nothing else", field=str(name)[:40])


def freeze(operation: Operation, method: str, ids: list[int], values: dict[str, Any], login: object) -> Request:
    """The request that writes `values` on the condition of every version that the operation expects.

    `login` is whose rows in the log are ours, also if another user should take over later.
    """
    if not isinstance(login, str) or not login:
        raise Broken("the basis names no user whose writes are ours")
    context = context_of(parts_of(operation.account)[1]) | {"_timestamp": read_version(operation.expected_version)}
    parameters = {"params": [ids, values, context], "login": login}
    return Request(method, parameters, operation.idempotency_key, operation.account, API_VERSION)


def check_frozen(
    credential: Credential, operation: Operation, request: Request, method: str, header: str
) -> dict[str, Any]:
    """The values that the frozen request writes. `Broken` unless it is this operation's, with its whole condition."""
    stamps = read_version(operation.expected_version)
    params = request.parameters.get("params")
    told = (request.operation, request.idempotency_key, request.account, credential.account, credential.livemode)
    wanted = (method, operation.idempotency_key, operation.account, operation.account, operation.livemode)
    context = context_of(place_of(credential).company) | {"_timestamp": stamps}
    if told != wanted or not isinstance(params, list) or len(params) != 3 or not isinstance(params[1], dict):
        raise Broken("the frozen request or the credential is not the one of this operation: nothing is sent")
    if params[0] != [only_id(stamps, header)] or params[2] != context:
        raise Broken("the frozen request is not conditional on the version that was approved: nothing is sent")
    return params[1]


def logins_of(credential: Credential, operation: Operation) -> frozenset[str]:
    """Whose rows in the log are ours: the user of today, and the one that the request was frozen for."""
    frozen = (operation.frozen_request or {}).get("parameters")
    then = frozen.get("login") if isinstance(frozen, Mapping) else None
    return frozenset({place_of(credential).login, *([then] if isinstance(then, str) and then else [])})


def classify(told: Told, receipt: str) -> Classified:
    """What one answer to the write means, before any look. Pure and total."""
    no = classify_no(told)
    if no is not None:
        return no
    if told.value is not None:
        return Classified(Outcome.UNKNOWN, Hint.UNREADABLE, detail=told.detail())
    return Classified(Outcome.APPLIED, receipt=receipt, standing=Standing.GOOD, detail=told.detail())


def needs_look(seen: Classified) -> bool:
    """Whether the answer is believed only after a look.

    So is a ConcurrencyException: where something between us and the server sends a request twice, the second one is refused
    because the first was made.
    """
    return seen.outcome in (Outcome.APPLIED, Outcome.REFUSED)


def after_look(seen: Classified, look: Look) -> Classified:
    """The answer, corrected by a look right after it. Pure."""
    marked = [effect for effect in look.effects if effect.marked]
    detail = seen.detail | {"read_again": look.complete}
    if seen.outcome is Outcome.APPLIED:
        if look.complete and any(not effect.matching for effect in marked):
            return Classified(Outcome.UNKNOWN, Hint.MISMATCH, detail=detail)
        return replace(seen, detail=detail)
    # Who may not write here may often not read either, and no queued task speaks of that.
    if not marked and (look.complete or seen.hint is Hint.NOT_PERMITTED):
        return replace(seen, detail=detail)
    return Classified(Outcome.UNKNOWN, Hint.LOST, detail=detail)


def elsewhere(receipt: str) -> SeenEffect:
    """A receipt that is not this operation's effect, whatever stands behind it."""
    return SeenEffect(receipt[:200], Standing.GOOD, False, False, {"why": "not an effect of this operation"})


class ConditionalWrites(ABC):
    """The I/O of an adapter that changes one record and its parts. Keeps sessions of the server, and no secret of ours."""

    provider = "tryton"
    header: str  # the model that the write is called on; the records of other models are its parts
    method: str

    def __init__(self, logins: Logins | None = None, *, read_deadline_seconds: float = 20.0) -> None:
        """`logins` may be shared with other adapters for Tryton."""
        self._logins = logins or Logins()
        self._read_deadline = read_deadline_seconds

    @staticmethod
    @abstractmethod
    def check_values(operation: Operation, values: Mapping[str, Any]) -> None:
        """Raise `Broken` unless these values are what the operation asks for, with its mark."""

    @abstractmethod
    async def read_records(self, session: TrytonSession, operation: Operation) -> tuple[Rows, Records | None]:
        """What the write touches, as it is now; None where it is gone, hidden or not told."""

    def marker_of(self, operation: Operation) -> str:
        """The operation id as text."""
        return str(operation.operation_id)

    def link(self, operation: Operation) -> str:
        """Nothing: where people open the ERP is not where its calls go."""
        return ""

    async def whose(self, credential: Credential) -> Credential | None:
        """The database and the company that the user works for."""
        return await whose(credential, self._logins, self._read_deadline)

    async def send(
        self,
        credential: Credential,
        operation: Operation,
        request: Request,
        contract: Contract,
        guard: SendGuard,
        after_write: AfterWrite,
    ) -> Classified:
        """Send the frozen write once, and compare what it did. Raises only `Broken`, before the first byte."""
        self.check_values(operation, check_frozen(credential, operation, request, self.method, self.header))
        now = asyncio.get_running_loop().time
        ends = now() + contract.timing.call_deadline
        session = TrytonSession(credential, self._logins, deadline_seconds=contract.timing.call_deadline)
        told = await session.write(self.method, request.parameters["params"], guard, after_write)
        seen = classify(told, self._receipt(operation))
        if not needs_look(seen):
            return seen
        return after_look(seen, await self._look(credential, operation, 0, seconds=max(ends - now(), 0.0)))

    async def look(self, credential: Credential, operation: Operation, since: datetime) -> Look:
        """Read the records again and, if they moved, the log of everything that the write would have touched."""
        # Before its first claim an operation has written nothing: a write of ours from its version is another one's.
        claimed = operation.frozen_request is not None
        return await self._look(credential, operation, micros_at(since) or 0, attributable=claimed)

    async def read_receipt(self, credential: Credential, operation: Operation, receipt: str) -> SeenEffect | None:
        """The records as they are now, seen as this operation's effect; None when they cannot be read."""
        if receipt != self._receipt(operation):
            return elsewhere(receipt)
        look = await self._look(credential, operation, 0)
        if not look.complete:
            return None
        return look.effects[0] if look.effects else elsewhere(receipt)

    async def _look(
        self,
        credential: Credential,
        operation: Operation,
        since: int,
        *,
        attributable: bool = True,
        seconds: float | None = None,
    ) -> Look:
        session = self._reading(credential, seconds)
        listing, records = await self.read_records(session, operation)
        if records is None:
            return Look(complete=False, detail=listing.detail())
        logins = logins_of(credential, operation) if attributable else frozenset[str]()
        heard = await hear(session, records.touched, logins, since)
        return look_of(self._receipt(operation), records, heard, records.version != operation.expected_version)

    def _receipt(self, operation: Operation) -> str:
        number = only_id(read_version(operation.expected_version), self.header)
        return receipt_of(f"{self.header},{number}", str(operation.operation_id))

    def _reading(self, credential: Credential, seconds: float | None = None) -> TrytonSession:
        deadline = self._read_deadline if seconds is None else min(seconds, self._read_deadline)
        return TrytonSession(credential, self._logins, deadline_seconds=deadline)


def _by_model_and_id(name: str) -> tuple[str, int]:
    model, _, number = name.partition(",")
    return model, int(number)
