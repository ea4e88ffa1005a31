"""Reads and conditional writes over HTTP (RFC 9110): what can be asked of any server that serves strong entity tags.

1. A version is a strong entity tag, sent back byte for byte as it was served, or `ABSENT` where nothing stands.
2. Nothing is written without a version. `*` is none: as If-Match it fits whatever stands there.
3. Judged is what was on the wire. `classify` is pure and total; what it does not list is unknown.
4. A no for what stands there (`UNSETTLED`) does not yet say that nothing was done: an intermediary may have sent the request
   a second time, and this is the answer to that. `settled` judges it together with a reading made after it.
"""

import asyncio
import base64
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any, Self

from ledger.errors import Broken
from ledger.model import Hint, Outcome
from providers.port import AfterWrite, Classified, Credential, SendGuard
from providers.wire import Answer, Wire, check_header, words

ABSENT = "absent"
MOST_LOGIN = 500
# By RFC 9110, 6585 and 4918 each of these says that the request was not carried out, whoever on the way says it.
MALFORMED = frozenset({400, 405, 406, 411, 413, 414, 415, 417, 422, 428, 431})
UNSETTLED = frozenset({404, 409, 410, 412})
_TAG = re.compile(r'"[\x21\x23-\x7e]{1,200}"')
_KEPT_HEADERS = ("etag", "content-type")
# A coded form has a tag of its own, and a cache may serve a record that stands no longer.
_PLAIN = {"Accept-Encoding": "identity", "Cache-Control": "no-cache"}


@dataclass(frozen=True)
class Reading:
    """One record as a read showed it. Not `complete`: nothing may be concluded from it, neither presence nor absence."""

    complete: bool
    version: str | None = None  # its strong tag, or ABSENT; None where it stands without one
    body: bytes = b""
    answer: Answer = Answer(sent=False)

    @property
    def absent(self) -> bool:
        """Whether nothing stands there."""
        return self.complete and self.version == ABSENT


def version_served(headers: Mapping[str, str]) -> str | None:
    """The strong tag that these headers of an answer bear, as it was served; None for a weak, bare, empty or second one."""
    tag = headers.get("etag", "")
    return tag if _TAG.fullmatch(tag) else None


def read_record(answer: Answer) -> Reading:
    """What the answer to a GET says about the record. Total: what is neither a whole 200 nor a whole 404 or 410 says nothing."""
    if answer.whole and answer.status == 200:
        return Reading(True, version_served(answer.headers), answer.body, answer)
    if answer.whole and answer.status in (404, 410):
        return Reading(True, ABSENT, b"", answer)
    return Reading(False, answer=answer)


def condition(version: object) -> dict[str, str]:
    """The header that lets a write through at this version only. `Broken` unless it is a real version."""
    if version == ABSENT:
        return {"If-None-Match": "*"}
    if isinstance(version, str) and _TAG.fullmatch(version):
        return {"If-Match": version}
    raise Broken("there is no version to make the write conditional on: it would be unconditional, and is not sent")


def classify(answer: Answer, version: str) -> Classified:
    """What the answer to a PUT at `version`, or its absence, means. Total and pure; everything unlisted is unknown.

    A creation must be answered 201 and a replacement 200 or 204 (RFC 9110, 9.3.4): the other one is about another write than
    ours. 401 says by definition that the request was not applied. 429 does not: RFC 6585 tells when it is sent, not what was
    done before, so that only a look can tell. A 5xx is decided anywhere, before the write or after it.
    """
    detail = told(answer)
    if not answer.sent:
        return Classified(Outcome.NO_EFFECT, Hint.NOT_SENT, detail=detail)
    if not answer.whole or answer.status is None or answer.status >= 500:
        return Classified(Outcome.UNKNOWN, Hint.LOST, detail=detail)
    match answer.status:
        case 201 if version == ABSENT:
            return Classified(Outcome.APPLIED, detail=detail)
        case 200 | 204 if version != ABSENT and not answer.body:
            return Classified(Outcome.APPLIED, detail=detail)
        case 201 | 204:
            return Classified(Outcome.UNKNOWN, Hint.MISMATCH, detail=detail)
        case 401:
            return Classified(Outcome.NO_EFFECT, detail=detail)
        case 403:
            return Classified(Outcome.REFUSED, Hint.NOT_PERMITTED, detail=detail)
        case 423:
            return Classified(Outcome.REFUSED, Hint.BUSINESS_RULE, detail=detail)
        case no if no in MALFORMED:
            return Classified(Outcome.REFUSED, Hint.MALFORMED, detail=detail)
        case _:
            return Classified(Outcome.UNKNOWN, Hint.UNREADABLE, detail=detail)


def settled(seen: Classified, version: str, again: Reading, *, marked: bool, matching: bool) -> Classified:
    """What an `UNSETTLED` answer means, given a reading made after it and whether our marker was found. Pure and total.

    A 412 while the version stands is about something else than the version: the receiver cannot take what we sent.
    """
    now = "" if again.version is None else again.version
    seen = replace(seen, detail=seen.detail | {"read_again": again.complete, "version_now": words(now)})
    if marked:
        outcome = Outcome.APPLIED if matching else Outcome.UNKNOWN
        return replace(seen, outcome=outcome, hint=Hint.NONE if matching else Hint.MISMATCH)
    if not again.complete or again.version is None:
        return replace(seen, outcome=Outcome.UNKNOWN, hint=Hint.LOST)
    number = seen.detail.get("http_status")
    if number == 409:
        return replace(seen, outcome=Outcome.REFUSED, hint=Hint.BUSINESS_RULE)
    if again.version != version:
        return replace(seen, outcome=Outcome.REFUSED, hint=Hint.VERSION_STALE)
    if number == 412:
        return replace(seen, outcome=Outcome.REFUSED, hint=Hint.MALFORMED)
    return replace(seen, outcome=Outcome.UNKNOWN, hint=Hint.UNREADABLE)


def told(answer: Answer) -> dict[str, Any]:
    """How the exchange went, with the tag it ended with. Nothing rests on that tag: what is stored may differ from what came."""
    tag = words(answer.headers.get("etag"))
    return answer.told() | ({"etag": tag} if tag else {})


class Line:
    """The connections of one call of the port: to one endpoint, with one login, until one deadline (of the running loop).

    With a guard it carries one write and nothing else. Use as an async context manager.
    """

    def __init__(
        self,
        credential: Credential,
        *,
        deadline: float,
        guard: SendGuard | None = None,
        after_write: AfterWrite | None = None,
    ) -> None:
        """`Broken` unless the credential has an endpoint and a login that can be sent."""
        self.endpoint = credential.endpoint.rstrip("/")
        if not re.fullmatch(r"https?://[^\s?#@]+", self.endpoint):
            raise Broken("the endpoint is no http or https address, or has a login, a query or a fragment in it")
        if ":" not in credential.secret or len(credential.secret) > MOST_LOGIN or not credential.secret.isprintable():
            raise Broken("the secret is no login:password")
        token = base64.b64encode(credential.secret.encode()).decode()
        check_header("login", token)
        self._headers = {"Authorization": f"Basic {token}"}
        self._deadline = deadline
        self._guarded = guard is not None
        cut = (credential.secret, token)
        self._wire = Wire(cut=cut, kept_headers=_KEPT_HEADERS, guard=guard, after_write=after_write)
        # A record is written back as it was read: nothing may be cut out of its text.
        self._faithful = Wire(kept_headers=_KEPT_HEADERS)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._wire.close()
        await self._faithful.close()

    async def read(self, path: str) -> Reading:
        """The record at this path under the endpoint."""
        headers = self._headers | _PLAIN
        return read_record(await self._faithful.ask("GET", self._url(path), deadline=self._deadline, headers=headers))

    async def write(self, path: str, version: object, content: bytes, content_type: str) -> Answer:
        """Put this there if it still stands at the version. `Broken`, and nothing is sent, without a real one or a guard."""
        if not self._guarded:
            raise Broken("a write needs the send guard")
        headers = self._headers | condition(version) | {"Content-Type": content_type}
        return await self._wire.ask("PUT", self._url(path), deadline=self._deadline, headers=headers, content=content)

    async def ask(self, method: str, path: str, headers: Mapping[str, str], content: bytes) -> Answer:
        """Any other question. Not for what could change something."""
        if method not in ("PROPFIND", "REPORT"):
            raise Broken(f"{method} is no question")
        headers = self._headers | _PLAIN | dict(headers)
        return await self._wire.ask(method, self._url(path), deadline=self._deadline, headers=headers, content=content)

    def _url(self, path: str) -> str:
        if not re.fullmatch(r"[A-Za-z0-9._~@/-]+", path) or any(
            part in ("", ".", "..") for part in path.rstrip("/").split("/")
        ):
            raise Broken("the path has characters or parts that could lead elsewhere")
        return f"{self.endpoint}/{path}"


def deadline_in(seconds: float) -> float:
    """A moment of the running loop's clock."""
    return asyncio.get_running_loop().time() + seconds
