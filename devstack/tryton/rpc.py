"""A session with a Tryton server: JSON-RPC over HTTP, so that nothing of Tryton's own code is ever imported.

The server has two ways to answer. A body with exactly `id`, `method` and `params` is answered with HTTP 200 and either
`result` or `error` in the body; any other body with a bare value, and refusals as HTTP codes. This client uses the first.
"""

import base64
import datetime
import json
import threading
from collections.abc import Mapping
from decimal import Decimal
from types import TracebackType
from typing import Any, Self

import httpx

from devstack.child import DevstackError

# The receiver's own records are read under locks and load as well.
_SECONDS = 60.0


class TrytonError(DevstackError):
    """What Tryton answered instead of a value. `kind` is its own word, as `UserError`; `words` is what it says."""

    def __init__(self, kind: str, words: str, detail: Any = None) -> None:
        """`detail` is the rest of the error as it came."""
        super().__init__(f"{kind}: {words}")
        self.kind = kind
        self.words = words
        self.detail = detail


class TrytonSession:
    """One login, used for all calls; a session that the server has forgotten is renewed once per call."""

    def __init__(self, base_url: str, database: str, login: str, password: str) -> None:
        """Nothing is sent before the first call. Threads may share one session."""
        self.login = login
        self._password = password
        self._path = f"/{database}/rpc/"
        self._http = httpx.Client(base_url=base_url, timeout=_SECONDS)
        self._lock = threading.Lock()
        self._authorization = ""
        self._context: dict[str, Any] = {}

    def call(self, method: str, *arguments: Any, **context: Any) -> Any:
        """The value of `method`, as `model.party.party.read`; `context` is added to the user's own. TrytonError if refused."""
        return _value(self.answer(method, *arguments, **context))

    def answer(self, method: str, *arguments: Any, **context: Any) -> httpx.Response:
        """The answer as it came, for those who look at the protocol."""
        authorization = self.authorization()
        answer = self._send(method, [*arguments, {**self._context, **context}], authorization)
        if answer.status_code == httpx.codes.UNAUTHORIZED:
            authorization = self._log_in(authorization)
            answer = self._send(method, [*arguments, {**self._context, **context}], authorization)
        return answer

    def create(self, model: str, *rows: Mapping[str, Any], **context: Any) -> list[int]:
        """Make records; returns their ids in the order of `rows`."""
        made: list[int] = self.call(f"model.{model}.create", [dict(row) for row in rows], **context)
        return made

    def write(self, model: str, ids: list[int], values: Mapping[str, Any], **context: Any) -> None:
        """Change records, whatever their version is, unless `_timestamp` says otherwise."""
        self.call(f"model.{model}.write", ids, dict(values), **context)

    def read(self, model: str, ids: list[int], fields: list[str], **context: Any) -> list[dict[str, Any]]:
        """These fields of these records, in the order of `ids`."""
        rows: list[dict[str, Any]] = self.call(f"model.{model}.read", ids, fields, **context)
        order = {id_: position for position, id_ in enumerate(ids)}
        return sorted(rows, key=lambda row: order[row["id"]])

    def find(self, model: str, domain: list[Any], fields: list[str], **context: Any) -> list[dict[str, Any]]:
        """Every record that matches, oldest first, with these fields."""
        rows: list[dict[str, Any]] = self.call(
            f"model.{model}.search_read", domain, 0, None, [["id", "ASC"]], fields, **context
        )
        return rows

    def only(self, model: str, domain: list[Any], **context: Any) -> int:
        """The id of the one record that matches; TrytonError if there are none or several."""
        found: list[int] = self.call(f"model.{model}.search", domain, 0, 2, None, **context)
        if len(found) != 1:
            raise TrytonError("NotOne", f"{len(found) or 'none'} of {model} match {domain}")
        return found[0]

    def press(self, model: str, button: str, ids: list[int], **context: Any) -> Any:
        """What a person does with a button of a form."""
        return self.call(f"model.{model}.{button}", ids, **context)

    def context(self) -> dict[str, Any]:
        """What the server itself wants every call of this user to carry: company, language, groups."""
        if not self._authorization:
            self._log_in("")
        return dict(self._context)

    def authorization(self) -> str:
        """The header that every call of this session carries."""
        return self._authorization or self._log_in("")

    def forget(self) -> None:
        """Log in anew at the next call, as after a change of the user's own settings."""
        self._authorization = ""

    def close(self) -> None:
        """Let the connections go."""
        self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def _log_in(self, seen: str) -> str:
        """Log in unless another thread has done so since `seen` was current: each login costs the server 0.3 s."""
        with self._lock:
            if self._authorization != seen:
                return self._authorization
            answer = self._send("common.db.login", [self.login, {"password": self._password}], "")
            user, token, _ = _value(answer)
            ticket = base64.b64encode(f"{self.login}:{user}:{token}".encode()).decode()
            authorization = f"Session {ticket}"
            self._context = _value(self._send("model.res.user.get_preferences", [True, {}], authorization))
            self._authorization = authorization
            return authorization

    def _send(self, method: str, params: list[Any], authorization: str) -> httpx.Response:
        body = json.dumps({"id": 1, "method": method, "params": params}, default=_encode)
        headers = {"Content-Type": "application/json", "Accept": "application/json"}
        if authorization:
            headers["Authorization"] = authorization
        return self._http.post(self._path, content=body, headers=headers)


def _value(answer: httpx.Response) -> Any:
    if answer.status_code != httpx.codes.OK:
        raise TrytonError(f"HTTP {answer.status_code}", answer.text[:400])
    body = json.loads(answer.text, object_hook=_decode)
    if "error" not in body:
        return body["result"]
    kind, detail = body["error"]
    # A Tryton exception is (its name, its arguments); any other is (its text, a traceback that is usually withheld).
    words = detail if isinstance(detail, str) else detail[0] if detail else ""
    raise TrytonError(kind, words or kind, detail)


def _encode(value: object) -> dict[str, Any]:
    match value:
        case Decimal():
            return {"__class__": "Decimal", "decimal": str(value)}
        case datetime.datetime():
            parts = ("year", "month", "day", "hour", "minute", "second", "microsecond")
            return {"__class__": "datetime", **{part: getattr(value, part) for part in parts}}
        case datetime.date():
            return {"__class__": "date", "year": value.year, "month": value.month, "day": value.day}
        case datetime.timedelta():
            return {"__class__": "timedelta", "seconds": value.total_seconds()}
    raise TypeError(f"{type(value).__name__} cannot be sent to Tryton")


def _decode(found: dict[str, Any]) -> Any:
    kind = found.get("__class__")
    numbers = {name: value for name, value in found.items() if name != "__class__"}
    if kind == "Decimal":
        return Decimal(found["decimal"])
    if kind == "date":
        return datetime.date(**numbers)
    if kind == "datetime":
        return datetime.datetime(**numbers, tzinfo=datetime.UTC)
    if kind == "timedelta":
        return datetime.timedelta(**numbers)
    return found
