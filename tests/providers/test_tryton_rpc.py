"""Tryton's JSON-RPC line: what answers are read as, who logs in and when, and what a write may send.

Raw servers of the test's own count what arrives; what a real Tryton answers is in test_tryton_invoices_real.py.
"""

import asyncio
import datetime
import json
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledger.errors import Broken
from ledger.model import Hint, Outcome
from providers import tryton_rpc
from providers.port import Credential
from providers.tryton_rpc import (
    Kind,
    Logins,
    TrytonSession,
    classify_no,
    content_of,
    context_of,
    encode,
    place_of,
    read_told,
)
from providers.wire import Answer
from tests.providers.raw_tryton_rpc import PASSWORD, RawTryton, error, http, raw_tryton, ticket

UNKNOWN, REFUSED, NO_EFFECT = Outcome.UNKNOWN, Outcome.REFUSED, Outcome.NO_EFFECT
WRITE = "model.x.write"


def told(body: Any, status: int | None = 200, *, sent: bool = True, whole: bool = True) -> tryton_rpc.Told:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    return read_told(Answer(sent, status, {}, raw, whole))


def an_error(*parts: Any) -> dict[str, Any]:
    return {"id": 1, "error": list(parts)}


def user_error(words: str) -> dict[str, Any]:
    return an_error("UserError", [words, "", None])


# What was measured at Tryton 8.2.1, and what a proxy or a broken server may say.
ANSWERS: list[tuple[str, Any, int, Kind]] = [
    ("value", {"id": 1, "result": [5]}, 200, Kind.VALUE),
    ("null", {"id": 1, "result": None}, 200, Kind.VALUE),
    ("version", an_error("ConcurrencyException", "Records were modified in the meanwhile"), 200, Kind.VERSION),
    ("required", user_error('A value is required for field "Account" in "Account Invoice".'), 200, Kind.BUSINESS),
    ("state", user_error('You are not allowed to modify the field "Date" in record "1" of "Line".'), 200, Kind.BUSINESS),
    ("gone", user_error('You are trying to write to records "9" of "Purchase" that don\'t exist.'), 200, Kind.BUSINESS),
    ("warning", an_error("UserWarning", ["name", "Sure?", ""]), 200, Kind.BUSINESS),
    ("access", user_error('You are not allowed to access "Model Log".'), 200, Kind.NOT_PERMITTED),
    ("rule", user_error('You are not allowed to write to records "5" of "Purchase" because'), 200, Kind.NOT_PERMITTED),
    ("create", user_error('You are not allowed to create records of "Account Invoice"'), 200, Kind.NOT_PERMITTED),
    ("button", user_error('Calling button "process on "Purchase" is not allowed.'), 200, Kind.NOT_PERMITTED),
    ("field", user_error('You are not allowed to modify the field "Code" of "Party".'), 200, Kind.NOT_PERMITTED),
    ("authority named inside", user_error('"You are not allowed to access" is a name'), 200, Kind.BUSINESS),
    ("unknown field", an_error("'frobnicate'", ""), 200, Kind.MALFORMED),
    ("arguments", an_error("ModelSQL.write() missing 1 required positional argument: 'values'", ""), 200,
     Kind.MALFORMED),
    ("date", an_error("Invalid isoformat string: 'soon'", ""), 200, Kind.MALFORMED),
    ("another bug", an_error("division by zero", ""), 200, Kind.SERVER),
    ("login wanted", an_error("LoginException", ["password", "Password for x", "password"]), 200, Kind.UNAUTHENTICATED),
    ("no words", an_error("UserError", []), 200, Kind.SERVER),
    ("rate limit without words", an_error(), 200, Kind.SERVER),
    ("error of another shape", {"id": 1, "error": "no"}, 200, Kind.SERVER),
    ("another id", {"id": 2, "result": [5]}, 200, Kind.UNREADABLE),
    ("bare value", [5], 200, Kind.UNREADABLE),
    ("both", {"id": 1, "result": 1, "error": []}, 200, Kind.UNREADABLE),
    ("html", b"<html>ok</html>", 200, Kind.UNREADABLE),
    ("empty", b"", 200, Kind.UNREADABLE),
    ("impossible date", {"id": 1, "result": {"__class__": "date", "year": 2027, "month": 2, "day": 30}}, 200,
     Kind.UNREADABLE),
    ("not a number", {"id": 1, "result": {"__class__": "Decimal", "decimal": "NaN"}}, 200, Kind.UNREADABLE),
    ("a number too large", b'{"id": 1, "result": 1e999999}', 200, Kind.UNREADABLE),
    ("a number too long", b'{"id": 1, "result": 1.00000000000000000000000000001}', 200, Kind.UNREADABLE),
    ("no session", b"", 401, Kind.UNAUTHENTICATED),
    ("unknown method", b"<html>", 403, Kind.UNAUTHENTICATED),
    ("not JSON", b"<html>", 400, Kind.MALFORMED),
    ("no context", b"<html>", 422, Kind.MALFORMED),
    ("no database", b"<html>", 404, Kind.SERVER),
    ("too many", b"", 429, Kind.SERVER),
    ("lost connection", b"<html>the connection is lost", 503, Kind.SERVER),
    ("gateway", b"<html>", 502, Kind.SERVER),
    ("moved", b"", 302, Kind.UNREADABLE),
    ("created", b"{}", 201, Kind.UNREADABLE),
]  # fmt: skip


@pytest.mark.parametrize(("name", "body", "status", "kind"), ANSWERS, ids=[row[0] for row in ANSWERS])
def test_every_answer_has_a_kind(name: str, body: Any, status: int, kind: Kind) -> None:
    assert told(body, status).kind is kind


def test_what_is_not_whole_is_lost_and_what_was_not_sent_is_not() -> None:
    """Even a refusal: half of an answer may be the beginning of another."""
    assert told(user_error("no"), whole=False).kind is Kind.LOST
    assert told(b"", None).kind is Kind.LOST
    assert told(b"", None, sent=False).kind is Kind.NOT_SENT


def test_a_kind_means_the_same_for_every_write() -> None:
    meanings = {kind: classify_no(tryton_rpc.Told(kind, Answer(True))) for kind in Kind}
    assert meanings.pop(Kind.VALUE) is None
    assert {kind: (seen.outcome, seen.hint) for kind, seen in meanings.items() if seen} == {
        Kind.VERSION: (REFUSED, Hint.VERSION_STALE),
        Kind.BUSINESS: (REFUSED, Hint.BUSINESS_RULE),
        Kind.NOT_PERMITTED: (REFUSED, Hint.NOT_PERMITTED),
        Kind.MALFORMED: (REFUSED, Hint.MALFORMED),
        Kind.UNAUTHENTICATED: (NO_EFFECT, Hint.NONE),
        Kind.SERVER: (UNKNOWN, Hint.LOST),
        Kind.UNREADABLE: (UNKNOWN, Hint.UNREADABLE),
        Kind.LOST: (UNKNOWN, Hint.LOST),
        Kind.NOT_SENT: (NO_EFFECT, Hint.NOT_SENT),
    }


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(
        st.sampled_from(["id", "result", "error", "__class__", "decimal", "year", "x"]), inner, max_size=4),
    max_leaves=12,
)  # fmt: skip


@given(body=st.binary(max_size=80) | JSON.map(lambda value: json.dumps(value).encode()), status=st.integers(100, 599))
def test_no_answer_raises(body: bytes, status: int) -> None:
    read = told(body, status)
    assert read.kind in Kind and json.dumps(read.detail())
    classify_no(read)


@given(error=JSON)
def test_no_error_raises(error: Any) -> None:
    read = told({"id": 1, "error": error})
    assert read.kind not in (Kind.VALUE, Kind.LOST, Kind.NOT_SENT)


def test_values_come_without_floats() -> None:
    stamp = {"__class__": "datetime", "year": 2027, "month": 1, "day": 2, "hour": 3, "minute": 4, "second": 5,
             "microsecond": 6}  # fmt: skip
    value = [
        {"__class__": "Decimal", "decimal": "12.50"},
        {"__class__": "date", "year": 2027, "month": 1, "day": 2},
        stamp,
    ]
    read = told(json.dumps({"id": 1, "result": [*value, 3.0, 3]}).encode()).value
    assert read == [
        Decimal("12.50"),
        datetime.date(2027, 1, 2),
        datetime.datetime(2027, 1, 2, 3, 4, 5, 6, datetime.UTC),
        Decimal(3),
        3,
    ]
    assert [type(number) for number in read[3:]] == [Decimal, int]


def test_what_is_sent_is_plain_and_equal_whatever_the_order_of_keys() -> None:
    price = {"unit_price": Decimal("12.50"), "due": datetime.date(2027, 1, 2)}
    moment = datetime.datetime(2027, 1, 2, 3, 4, 5, 6, datetime.UTC)
    assert encode(moment) == {
        "__class__": "datetime", "year": 2027, "month": 1, "day": 2, "hour": 3, "minute": 4, "second": 5, "microsecond": 6,
    }  # fmt: skip
    plain = {
        "unit_price": {"__class__": "Decimal", "decimal": "12.50"},
        "due": {"__class__": "date", "year": 2027, "month": 1, "day": 2},
    }
    assert encode(price) == plain and encode(plain) == plain
    assert encode(Decimal("1E+2")) == {"__class__": "Decimal", "decimal": "100"}
    body = content_of("m", [plain, {"b": 1, "a": 2}])
    assert body == content_of("m", [dict(reversed(plain.items())), {"a": 2, "b": 1}])
    assert set(json.loads(body)) == {"id", "method", "params"}


@pytest.mark.parametrize("value", [1.5, b"x", Decimal("NaN"), object(), datetime.datetime(2027, 1, 1)])
def test_what_tryton_could_take_for_something_else_is_not_sent(value: Any) -> None:
    with pytest.raises(Broken):
        content_of("m", [value, {}])


@pytest.mark.parametrize(
    "change",
    [
        {"account": "erp"}, {"account": "erp/0"}, {"account": "erp/1/2"}, {"account": "../1"}, {"account": "a b/1"},
        {"secret": "robot"}, {"secret": ":x"}, {"secret": "robot:"},
        {"endpoint": ""}, {"endpoint": "http://h/path"}, {"endpoint": "http://u:p@h"}, {"endpoint": "ftp://h"},
        {"endpoint": "http://h:1?x=1"}, {"account": "erp/1٧"}, {"endpoint": "http://h:8٧"},
    ],
    ids=str,
)  # fmt: skip
def test_a_credential_of_another_shape_is_broken(change: dict[str, str]) -> None:
    """A path or a user in the endpoint would send the secret somewhere else than a person reads."""
    known = {"account": "erp/1", "secret": "robot:x", "endpoint": "http://erp.example:8000"}
    assert place_of(Credential(livemode=False, **known)).url == "http://erp.example:8000/erp/rpc/"  # type: ignore[arg-type]
    with pytest.raises(Broken):
        place_of(Credential(livemode=False, **known | change))  # type: ignore[arg-type]


def session(raw: RawTryton, logins: Logins | None = None, seconds: float = 5.0) -> TrytonSession:
    return TrytonSession(raw.credential, logins or Logins(), deadline_seconds=seconds)


async def yes() -> bool:
    return True


async def test_every_call_carries_company_and_language_and_one_login_serves_many() -> None:
    """Red: keep no ticket in `Logins`, and every call costs the server its password hash."""
    logins = Logins()
    async with raw_tryton(lambda method, params: len(params)) as raw:
        first = await session(raw, logins).call("model.x.read", [1])
        await session(raw, logins).call("model.x.read", [1], _timestamp={"x,1": "5"})
    assert first.kind is Kind.VALUE and raw.logins == 1
    assert [params[-1] for _, params in raw.calls] == [
        {"company": 1, "language": "en"},
        {"company": 1, "language": "en", "_timestamp": {"x,1": "5"}},
    ]


async def test_many_at_once_log_in_once() -> None:
    """Red: drop the gate, and each of them logs in."""
    logins = Logins()
    async with raw_tryton(lambda method, params: True) as raw:
        seen = await asyncio.gather(*(session(raw, logins).call("model.x.read", [n]) for n in range(8)))
    assert [one.kind for one in seen] == [Kind.VALUE] * 8 and raw.logins == 1


async def test_another_secret_or_database_is_another_login() -> None:
    """Red: leave the password out of `Place.key`, and a replaced secret goes on with the session of the old one."""
    logins = Logins()
    async with raw_tryton(lambda method, params: True) as raw:
        await session(raw, logins).call("model.x.read", [1])
        wrong = Credential("erp/1", False, "robot:wrong-password", endpoint=raw.base_url)
        seen = await TrytonSession(wrong, logins, deadline_seconds=5).call("model.x.read", [1])
        assert seen.kind is Kind.NOT_SENT and raw.logins == 2 and len(raw.calls) == 1
        other = Credential("erp2/1", False, f"robot:{PASSWORD}", endpoint=raw.base_url)
        await TrytonSession(other, logins, deadline_seconds=5).call("model.x.read", [1])
    assert raw.logins == 3


async def test_a_forgotten_session_is_renewed_once_for_a_read() -> None:
    logins = Logins()
    async with raw_tryton(lambda method, params: True) as raw:
        await session(raw, logins).call("model.x.read", [1])
        raw.revoke()
        assert (await session(raw, logins).call("model.x.read", [2])).kind is Kind.VALUE
        raw.handler = lambda method, params: (401, b"")
        assert (await session(raw, logins).call("model.x.read", [3])).kind is Kind.UNAUTHENTICATED
    assert raw.logins == 3 and len(raw.calls) == 5


async def test_a_write_is_never_sent_twice_not_even_after_a_401() -> None:
    """Red: let `write` renew the session as `call` does. The 401 proves that nothing was executed."""
    logins = Logins()
    async with raw_tryton(lambda method, params: None) as raw:
        await session(raw, logins).call("model.x.read", [1])
        raw.revoke()
        seen = await session(raw, logins).write(WRITE, [[1], {}, context_of(1)], yes, lambda: None)
        meant = classify_no(seen)
        assert meant is not None and (meant.outcome, meant.hint) == (NO_EFFECT, Hint.NONE)
        assert raw.methods().count(WRITE) == 1
        again = await session(raw, logins).write(WRITE, [[1], {}, context_of(1)], yes, lambda: None)
    assert again.kind is Kind.VALUE and again.value is None and raw.logins == 2


async def test_the_guard_is_asked_once_when_the_login_is_done_and_its_no_leaves_the_wire_empty() -> None:
    """Red: log in over the guarded wire, and a slow login is sent after the guard has spoken."""
    asked: list[int] = []
    written: list[int] = []
    async with raw_tryton(lambda method, params: None) as raw:

        async def guard() -> bool:
            asked.append(raw.logins)
            return len(asked) > 1

        for wanted in (Kind.NOT_SENT, Kind.VALUE):
            line = session(raw)
            seen = await line.write(WRITE, [[1], {}, context_of(1)], guard, lambda: written.append(len(raw.calls)))
            assert seen.kind is wanted
    assert asked == [1, 2] and raw.methods() == [WRITE] and written == [0]


async def test_without_a_login_nothing_is_written_and_no_guard_is_asked() -> None:
    async def never() -> bool:
        raise AssertionError("asked")

    async with raw_tryton() as raw:
        wrong = Credential("erp/1", False, "robot:wrong-password", endpoint=raw.base_url)
        line = TrytonSession(wrong, Logins(), deadline_seconds=5)
        seen = await line.write(WRITE, [[1], {}, context_of(1)], never, lambda: None)
    assert seen.kind is Kind.NOT_SENT and raw.calls == []
    assert "401" in seen.detail()["message"] and "wrong-password" not in repr(seen)


async def test_a_login_that_hangs_ends_for_each_who_waits_for_it_with_its_own_deadline() -> None:
    """Red: wait for the gate without a deadline, and the patience of the first is that of all."""

    async def hang(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        await asyncio.sleep(30)

    server = await asyncio.start_server(hang, "127.0.0.1", 0)
    endpoint = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    credential = Credential("erp/1", False, f"robot:{PASSWORD}", endpoint=endpoint)
    logins = Logins()
    patient, *hasty = [TrytonSession(credential, logins, deadline_seconds=seconds) for seconds in (25, 0.4, 0.5)]
    first = asyncio.create_task(patient.call("model.x.read", [1]))
    await asyncio.sleep(0.1)
    async with asyncio.timeout(10):
        seen = await asyncio.gather(*(line.write(WRITE, [context_of(1)], yes, lambda: None) for line in hasty))
    assert [one.kind for one in seen] == [Kind.NOT_SENT] * 2 and not first.done()
    first.cancel()
    server.close()


@pytest.mark.parametrize("params", [[], [[1], {}], [[1], {}, {"company": 2}], [[1], {}, None]])
async def test_a_write_for_another_company_is_broken_before_the_first_byte(params: list[Any]) -> None:
    async with raw_tryton() as raw:
        with pytest.raises(Broken):
            await session(raw).write(WRITE, params, yes, lambda: None)
    assert raw.logins == 0


async def test_no_secret_is_in_an_answer_or_a_repr() -> None:
    """Take `cut` from the wire, and what a server echoes ends in the ledger."""
    logins = Logins()

    async with raw_tryton() as raw:

        def echo(method: str, params: list[Any]) -> bytes:
            return error("UserError", [f"{PASSWORD} {raw.tokens[-1]} {ticket(raw.tokens[-1])}", "", None])

        raw.handler = echo
        line = session(raw, logins)
        seen = await line.write(WRITE, [[1], {}, context_of(1)], yes, lambda: None)
        kept = await logins.ticket(line.place, asyncio.get_running_loop().time() + 1)
        shown = f"{seen!r} {seen.detail()} {vars(line)} {kept!r} {line.place!r} {vars(logins)}"
        for secret in (PASSWORD, raw.tokens[-1], ticket(raw.tokens[-1])):
            assert secret not in shown
    assert seen.words == "[secret] [secret] [secret]"


@pytest.mark.parametrize(
    "answer",
    [
        http(200, b"<html>"),
        http(200, b'{"id": 1, "result": null}'),
        http(200, b'{"id": 1, "result": ["7", "token", null]}'),
        http(200, b'{"id": 1, "result": [true, "token", null]}'),
        http(200, b'{"id": 1, "error": ["LoginException", ["code", "Give the code", "char"]]}'),
        http(500, b""),
        http(429, b""),
    ],
)
async def test_a_login_that_gives_no_session_sends_nothing(answer: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RawTryton, "answer", lambda raw, head, body: answer)
    async with raw_tryton() as raw:
        seen = await session(raw).call("model.x.read", [1])
    assert seen.kind is Kind.NOT_SENT and classify_no(seen) is not None


async def test_rows_are_read_to_the_end_by_id(monkeypatch: pytest.MonkeyPatch) -> None:
    """Red: page by offset, or stop at the first page."""
    monkeypatch.setattr(tryton_rpc, "PAGE", 2)
    stored = [3, 5, 8, 13, 21]

    def search_read(method: str, params: list[Any]) -> Any:
        domain, offset, limit, order, fields, _ = params
        assert (offset, limit, order, fields) == (0, 2, [["id", "ASC"]], ["code", "id"])
        assert domain[0] == ["a", "=", 1]
        return [{"id": n} for n in stored if n > domain[1][2]][:limit]

    async with raw_tryton(search_read) as raw:
        rows = await session(raw).rows("x", ["a", "=", 1], ["code"])
    assert rows.complete and [row["id"] for row in rows.items] == stored and len(raw.calls) == 3


@pytest.mark.parametrize(
    "page",
    [
        [{"id": 1}, {"id": 1}], [{"id": 2}, {"id": 1}], [{"id": "1"}], [{"id": True}], [{}], ["x"], [{"id": 0}], {}, None, 7,
        (500, b""), (401, b""), error("UserError", ["no", "", None]), http(200, b"<html>"),
    ],
    ids=repr,
)  # fmt: skip
async def test_a_page_that_repeats_itself_or_cannot_be_read_is_no_complete_list(
    page: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tryton_rpc, "PAGE", 2)
    async with raw_tryton(lambda method, params: page) as raw:
        rows = await session(raw).rows("x", [], [])
    assert not rows.complete and rows.detail()["why"]


async def test_a_list_without_an_end_is_not_complete(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tryton_rpc, "PAGE", 1)
    monkeypatch.setattr(tryton_rpc, "MAX_PAGES", 3)
    async with raw_tryton(lambda method, params: [{"id": params[0][1][2] + 1}]) as raw:
        rows = await session(raw).rows("x", [], [])
    assert not rows.complete and len(rows.items) == 3


@pytest.mark.parametrize(
    ("preferences", "account"),
    [
        ({"companies": [1], "company": 1}, "erp/1"), ({"companies": [1, 2], "company": 2}, "erp/2"),
        ({"companies": [1]}, "erp/none"), ({"companies": [], "company": None}, "erp/none"), ({}, None), ([], None),
        ((503, b""), None),
    ],
    ids=repr,
)  # fmt: skip
async def test_whose_the_login_is_says_the_server(preferences: Any, account: str | None) -> None:
    """Red: answer with the credential's own account, or name its company in the context: Tryton gives that back."""
    async with raw_tryton(lambda method, params: preferences) as raw:
        owner = await tryton_rpc.whose(raw.credential, Logins(), 5)
    assert (None if owner is None else owner.account) == account
    assert raw.calls == [("model.res.user.get_preferences", [True, {"language": "en"}])]


async def test_whose_nobody_answers_is_nobodys() -> None:
    gone = Credential("erp/1", False, "robot:x", endpoint="http://127.0.0.1:9")
    assert await tryton_rpc.whose(gone, Logins(), 5) is None
