"""The line to a Tryton server: its JSON-RPC over HTTP, typed, for all adapters that write to one.

1. Every body has exactly `id`, `method` and `params`: only then the server answers HTTP 200 with `result` or `error`.
2. Every call carries its company and English as context; a number is an int or a Decimal, never a float, on both ways.
3. `read_told` is pure and total: any bytes that a server may send get a kind, and none raises.
4. A login costs the server a third of a second, so its session is kept per endpoint, database and secret. One that the
   server has forgotten is renewed once for a read; for a write its 401 is the proof that nothing was executed.
5. A write is one guarded request over a wire of its own; the login before it is not guarded.
"""

import asyncio
import base64
import datetime
import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from enum import StrEnum
from typing import Any
from weakref import WeakKeyDictionary

from ledger.errors import Broken
from ledger.model import Hint, Outcome
from providers.port import AfterWrite, Classified, Credential, SendGuard
from providers.wire import Answer, Wire, words

PAGE = 200
MAX_PAGES = 200
_PARTS = ("year", "month", "day", "hour", "minute", "second", "microsecond")
DIGITS = 28  # what Python's decimal arithmetic keeps
_ENDPOINT = re.compile(r"https?://(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9.-]+)(:[0-9]{1,5})?")
_ACCOUNT = re.compile(r"([A-Za-z0-9_][A-Za-z0-9_.-]{0,62})/([1-9][0-9]{0,9})")
_HEADERS = {"Content-Type": "application/json", "Accept": "application/json"}
# Of the errors that Tryton words for people, in English because we ask for it, the ones about authority.
_NOT_PERMITTED = re.compile(
    r"You are not allowed to (access|create|read|write|delete|execute|search) |"
    r'You are not allowed to modify the field "[^"]*" of "|Calling button "'
)
# Python's own words for a request that the method cannot take: an unknown field or model, arguments, a date in text.
_MALFORMED = re.compile(
    r"'[\w.]+'|[\w.]+\(\) (missing \d+ required|takes \d+ positional|got an unexpected).{0,200}|"
    r"Invalid isoformat string: .{0,200}"
)


class Kind(StrEnum):
    """What kind of answer a call got."""

    VALUE = "value"  # the method's value, after its commit
    VERSION = "version"  # ConcurrencyException: a record is not at the version that the context names
    BUSINESS = "business"  # UserError or UserWarning: the receiver's rules, in its words
    NOT_PERMITTED = "not_permitted"  # UserError about access, a record rule or a button
    MALFORMED = "malformed"  # a field, method or shape that the server does not know
    UNAUTHENTICATED = "unauthenticated"  # 401 or 403: nothing was executed
    SERVER = "server"  # an error of its own, or of what stands before it: what was executed is open
    UNREADABLE = "unreadable"  # a whole answer that is none of Tryton's
    LOST = "lost"  # sent, and no whole answer came
    NOT_SENT = "not_sent"  # no byte of the request left: no connection, no login, or the guard


_MEANINGS = {
    Kind.VERSION: (Outcome.REFUSED, Hint.VERSION_STALE),
    Kind.BUSINESS: (Outcome.REFUSED, Hint.BUSINESS_RULE),
    Kind.NOT_PERMITTED: (Outcome.REFUSED, Hint.NOT_PERMITTED),
    Kind.MALFORMED: (Outcome.REFUSED, Hint.MALFORMED),
    Kind.UNAUTHENTICATED: (Outcome.NO_EFFECT, Hint.NONE),
    Kind.SERVER: (Outcome.UNKNOWN, Hint.LOST),
    Kind.UNREADABLE: (Outcome.UNKNOWN, Hint.UNREADABLE),
    Kind.LOST: (Outcome.UNKNOWN, Hint.LOST),
    Kind.NOT_SENT: (Outcome.NO_EFFECT, Hint.NOT_SENT),
}


@dataclass(frozen=True)
class Told:
    """One answer, decoded. `value` counts for `Kind.VALUE` only; `word` and `words` are Tryton's own, and untrusted."""

    kind: Kind
    answer: Answer
    value: Any = None
    word: str = ""  # UserError, ConcurrencyException, …
    words: str = ""

    def detail(self) -> dict[str, Any]:
        """The evidence worth keeping, short and printable."""
        told = {"kind": self.kind.value, "type": words(self.word), "message": words(self.words)}
        return self.answer.told() | {name: text for name, text in told.items() if text}


def read_told(answer: Answer) -> Told:
    """What one exchange means as JSON-RPC of Tryton. Pure and total."""
    if not answer.sent:
        return Told(Kind.NOT_SENT, answer)
    if not answer.whole or answer.status is None:
        return Told(Kind.LOST, answer)
    match answer.status:
        case 200:
            return _read_body(answer)
        case 401 | 403:
            return Told(Kind.UNAUTHENTICATED, answer)
        case 400 | 422:
            return Told(Kind.MALFORMED, answer)
        case status if status >= 400:
            return Told(Kind.SERVER, answer)
        case _:
            return Told(Kind.UNREADABLE, answer)


def classify_no(told: Told) -> Classified | None:
    """What every answer but a value means for a write; None for a value, which the adapter must compare.

    A refusal is raised inside the server's transaction, before its commit. The exception: a server without a queue worker
    runs queued tasks after the commit, and what these raise looks alike. Adapters of writes that queue tasks must look.
    """
    meaning = _MEANINGS.get(told.kind)
    return None if meaning is None else Classified(*meaning, detail=told.detail())


@dataclass(frozen=True)
class Place:
    """Where a credential leads: a company in a database of a server, and who logs in there."""

    endpoint: str
    database: str
    company: int
    login: str
    password: str = field(repr=False)

    @property
    def url(self) -> str:
        """Where every call of this database goes."""
        return f"{self.endpoint}/{self.database}/rpc/"

    @property
    def key(self) -> str:
        """What names the login without telling its secret."""
        whole = json.dumps([self.endpoint, self.database, self.login, self.password])
        return hashlib.sha256(whole.encode()).hexdigest()


def place_of(credential: Credential) -> Place:
    """Endpoint http(s)://host[:port], account as below, secret "login:password"; `Broken` for all else."""
    database, company = parts_of(credential.account)
    login, colon, password = credential.secret.partition(":")
    if not _ENDPOINT.fullmatch(credential.endpoint) or not (login and colon and password):
        raise Broken("a credential for Tryton has an endpoint http(s)://host:port and a secret login:password")
    return Place(credential.endpoint, database, company, login, password)


def parts_of(account: str) -> tuple[str, int]:
    """Database and company of an account "DATABASE/COMPANY_ID"; `Broken` for all else."""
    found = _ACCOUNT.fullmatch(account)
    if found is None:
        raise Broken("an account at Tryton is database/company-id")
    return found[1], int(found[2])


@dataclass(frozen=True)
class Ticket:
    """A session of the server, which is a secret for as long as it lives."""

    key: str
    header: str = field(repr=False)
    cut: tuple[str, ...] = field(repr=False)


class Logins:
    """Sessions kept between calls, in memory only. Safe under concurrency: of many callers one logs in, the rest wait."""

    def __init__(self) -> None:
        self._kept: dict[str, Ticket] = {}
        # A lock belongs to its loop.
        self._gates: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[str, asyncio.Lock]] = WeakKeyDictionary()

    async def ticket(self, place: Place, deadline: float) -> Ticket | Told:
        """A kept session or a new one; what the server said instead of giving one."""
        kept = self._kept.get(place.key)
        if kept is not None:
            return kept
        gate = self._gates.setdefault(asyncio.get_running_loop(), {}).setdefault(place.key, asyncio.Lock())
        try:
            async with asyncio.timeout_at(deadline), gate:
                return self._kept.get(place.key) or await self._log_in(place, deadline)
        except TimeoutError:
            return Told(Kind.NOT_SENT, Answer(sent=False, ended="deadline"))

    def forget(self, ticket: Ticket) -> None:
        """The server does not know it any more. A newer one of the same login stays."""
        if self._kept.get(ticket.key) is ticket:
            del self._kept[ticket.key]

    async def _log_in(self, place: Place, deadline: float) -> Ticket | Told:
        body = content_of("common.db.login", [place.login, {"password": place.password}])
        async with Wire(cut=(place.password,)) as wire:
            answer = await wire.ask("POST", place.url, deadline=deadline, headers=_HEADERS, content=body)
        told = read_told(answer)
        value = told.value if told.kind is Kind.VALUE else None
        if not isinstance(value, list) or len(value) < 2 or type(value[0]) is not int or type(value[1]) is not str:
            # Whatever came holds no session that we can read, but it may hold one: keep none of it.
            return replace(told, kind=Kind.UNREADABLE if told.kind is Kind.VALUE else told.kind, value=None)
        user, token = value[0], value[1]
        ticket = base64.b64encode(f"{place.login}:{user}:{token}".encode()).decode()
        self._kept[place.key] = Ticket(place.key, f"Session {ticket}", (ticket, token, place.password))
        return self._kept[place.key]


@dataclass(frozen=True)
class Rows:
    """Records that matched. `complete` means: read until the server had no more."""

    complete: bool
    items: tuple[dict[str, Any], ...]
    last: Told
    why: str = ""  # why it is not complete

    def detail(self) -> dict[str, Any]:
        """The evidence of a listing: its last answer, how much was listed, and why it is not complete."""
        told = self.last.detail() | {"listed": len(self.items)}
        return told if self.complete else told | {"why": self.why}


class TrytonSession:
    """One call of the port: its credential and its total deadline. Holds no connection between two exchanges."""

    def __init__(self, credential: Credential, logins: Logins, *, deadline_seconds: float) -> None:
        self.place = place_of(credential)
        self._logins = logins
        self._deadline = asyncio.get_running_loop().time() + deadline_seconds

    def context(self, **more: Any) -> dict[str, Any]:
        """What every call carries; with `more`, as `_timestamp`, added."""
        return context_of(self.place.company) | more

    async def call(self, method: str, *arguments: Any, **context: Any) -> Told:
        """An unguarded call, for what changes nothing. A session that was forgotten is renewed once."""
        return await self._read(method, [*arguments, self.context(**context)])

    async def write(self, method: str, params: Sequence[Any], guard: SendGuard, after_write: AfterWrite) -> Told:
        """The guarded call: exactly these params, context included, once. `Broken` if that is not of our company.

        Without a session nothing is sent, and `words` says why. A 401 proves that nothing was executed.
        """
        context = params[-1] if params else None
        if not isinstance(context, Mapping) or context.get("company") != self.place.company:
            raise Broken("the context of a write does not name the company of its account")
        return await self._ask(method, params, guard, after_write)

    async def rows(
        self, model: str, domain: Sequence[Any], fields: Sequence[str], *, one_page: bool = False, **context: Any
    ) -> Rows:
        """Every record that the domain finds, by ascending id, page by page until one that is not full; or one page.
        The domain is the server's to understand: compare every row with what you wanted."""
        items: list[dict[str, Any]] = []
        told, last = Told(Kind.NOT_SENT, Answer(sent=False)), 0
        for _ in range(MAX_PAGES):
            # By id and not by offset: rows that come and go meanwhile shift no page.
            page, order = [list(domain), ["id", ">", last]], [["id", "ASC"]]
            told = await self.call(f"model.{model}.search_read", page, 0, PAGE, order, [*fields, "id"], **context)
            found = _page(told, last)
            if found is None:
                return Rows(False, tuple(items), told, "a page could not be read")
            items.extend(found)
            if len(found) < PAGE or one_page:  # the limit is SQL's: the server has cut nothing else off
                return Rows(True, tuple(items), told)
            last = found[-1]["id"]
        return Rows(False, tuple(items), told, f"more than {MAX_PAGES} pages")

    async def whose(self) -> str | None:
        """The account of this login as the server tells it: the company that its user works for now. None if unsaid."""
        # No company in this context: Tryton would give back the one that we name.
        told = await self._read("model.res.user.get_preferences", [True, {"language": "en"}])
        if told.kind is not Kind.VALUE or not isinstance(told.value, dict) or "companies" not in told.value:
            return None
        company = told.value.get("company")  # left out for a user who works for none
        return f"{self.place.database}/{company if type(company) is int else 'none'}"

    async def _read(self, method: str, params: Sequence[Any]) -> Told:
        told = await self._ask(method, params)
        return await self._ask(method, params) if told.answer.status == 401 else told

    async def _ask(
        self,
        method: str,
        params: Sequence[Any],
        guard: SendGuard | None = None,
        after_write: AfterWrite | None = None,
    ) -> Told:
        ticket = await self._logins.ticket(self.place, self._deadline)
        if isinstance(ticket, Told):
            why = f"no login: {ticket.kind}, HTTP {ticket.answer.status}, {ticket.answer.ended or ticket.words}"
            return Told(Kind.NOT_SENT, Answer(sent=False, ended="login"), words=why)
        headers, body = _HEADERS | {"Authorization": ticket.header}, content_of(method, params)
        async with Wire(cut=ticket.cut, guard=guard, after_write=after_write) as wire:
            answer = await wire.ask("POST", self.place.url, deadline=self._deadline, headers=headers, content=body)
        if answer.status == 401:
            self._logins.forget(ticket)
        return read_told(answer)


async def whose(credential: Credential, logins: Logins, deadline_seconds: float) -> Credential | None:
    """`Provider.whose` of every adapter of Tryton, which has no modes."""
    account = await TrytonSession(credential, logins, deadline_seconds=deadline_seconds).whose()
    return None if account is None else replace(credential, account=account)


def context_of(company: int) -> dict[str, Any]:
    """The company that a call is for, and the language of the server's words."""
    return {"company": company, "language": "en"}


def content_of(method: str, params: Sequence[Any]) -> bytes:
    """The bytes of one call; equal params give equal bytes, whatever order a database kept their keys in."""
    body = {"id": 1, "method": method, "params": encode(list(params))}
    return json.dumps(body, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()


def encode(value: Any) -> Any:
    """As plain JSON that Tryton reads back; what is plain already stays as it is. `Broken` for a float and the unknown."""
    match value:
        case None | bool() | int() | str():
            return value
        case Decimal() if value.is_finite():
            return {"__class__": "Decimal", "decimal": f"{value:f}"}
        case datetime.date() if type(value) is datetime.date:
            return {"__class__": "date", "year": value.year, "month": value.month, "day": value.day}
        case datetime.datetime() if value.tzinfo is datetime.UTC:
            return {"__class__": "datetime"} | {part: getattr(value, part) for part in _PARTS}
        case Mapping():
            return {str(name): encode(item) for name, item in value.items()}
        case list() | tuple():
            return [encode(item) for item in value]
    raise Broken(f"a {type(value).__name__} is not sent to Tryton")


def _read_body(answer: Answer) -> Told:
    try:
        body = json.loads(answer.body, object_hook=_decode, parse_float=_number, parse_constant=_number)
    except (ValueError, TypeError, KeyError, ArithmeticError, RecursionError):
        return Told(Kind.UNREADABLE, answer)
    if isinstance(body, dict) and body.keys() == {"id", "result"} and body["id"] == 1:
        return Told(Kind.VALUE, answer, body["result"])
    if isinstance(body, dict) and body.keys() == {"id", "error"} and body["id"] == 1:
        return _read_error(answer, body["error"])
    return Told(Kind.UNREADABLE, answer)


def _read_error(answer: Answer, error: Any) -> Told:
    """A Tryton exception is (its name, its arguments); any other is (its text, a traceback that is usually withheld)."""
    if not isinstance(error, list) or len(error) != 2 or not isinstance(error[0], str):
        return Told(Kind.SERVER, answer)
    word, told = error
    parts = [told] if isinstance(told, str) else told if isinstance(told, list) else []
    texts = [part for part in parts if isinstance(part, str)]
    match word:
        case "ConcurrencyException" if texts:
            return Told(Kind.VERSION, answer, word=word, words=texts[0])
        case "UserError" if texts:
            kind = Kind.NOT_PERMITTED if _NOT_PERMITTED.match(texts[0]) else Kind.BUSINESS
            return Told(kind, answer, word=word, words=" ".join(filter(None, texts)))
        case "UserWarning" if texts:
            return Told(Kind.BUSINESS, answer, word=word, words=" ".join(filter(None, texts)))
        case "LoginException":
            return Told(Kind.UNAUTHENTICATED, answer, word=word)
        case _:
            kind = Kind.MALFORMED if isinstance(told, str) and _MALFORMED.fullmatch(word) else Kind.SERVER
            return Told(kind, answer, word="error", words=word)


def _decode(found: dict[str, Any]) -> Any:
    numbers = {name: value for name, value in found.items() if name != "__class__"}
    match found.get("__class__"):
        case "Decimal":
            return _number(str(found["decimal"]))
        case "date":
            return datetime.date(**numbers)
        case "datetime":
            return datetime.datetime(**numbers, tzinfo=datetime.UTC)
        case _:
            return found  # of what we never ask for, the plain form will do


def _number(text: str) -> Decimal:
    """Exact, and small enough to be computed with exactly."""
    number = Decimal(text)
    if not number.is_finite() or len(number.as_tuple().digits) > DIGITS or abs(number.adjusted()) > DIGITS:
        raise ValueError("not a number to compute with")
    return number


def _page(told: Told, last: int) -> list[dict[str, Any]] | None:
    """The rows of a page, if each is an object with an id above the one before."""
    if told.kind is not Kind.VALUE or not isinstance(told.value, list):
        return None
    for row in told.value:
        if not isinstance(row, dict) or type(row.get("id")) is not int or row["id"] <= last:
            return None
        last = row["id"]
    return told.value
