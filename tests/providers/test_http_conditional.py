"""Conditional reads and writes over HTTP: what each answer means, and the bytes that leave. The judge is what arrived."""

import asyncio
import base64
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from devstack.ports import free_port
from ledger.errors import Broken
from ledger.model import Hint, Outcome
from providers.http_conditional import (
    ABSENT,
    UNSETTLED,
    Line,
    Reading,
    classify,
    condition,
    deadline_in,
    read_record,
    settled,
    version_served,
)
from providers.port import Classified, Credential
from providers.wire import Answer
from tests.providers.raw_stripe import Serve, answering, recording

TAG, LATER = '"v-1"', '"v-2"'
SECRET = "service:open:sesame"
APPLIED, REFUSED, NO_EFFECT, UNKNOWN = Outcome.APPLIED, Outcome.REFUSED, Outcome.NO_EFFECT, Outcome.UNKNOWN
HTML = b"<html>Welcome! Please log in.</html>"
NO_VERSIONS: list[Any] = [
    None,
    "",
    "*",
    '"*',
    'W/"v-1"',
    "v-1",
    '""',
    '"a" ',
    '"a", "b"',
    '"a"\r\nX: y',
    '"ü"',
    7,
    b'"v"',
]


def answer(status: int | None, body: bytes = b"", *, whole: bool = True, sent: bool = True, **headers: str) -> Answer:
    return Answer(sent, status, headers, body, whole, "" if whole else "ReadError")


@pytest.mark.parametrize(
    ("tag", "version"),
    [
        (TAG, TAG),
        ('"a,b:c=d/e"', '"a,b:c=d/e"'),
        ('"!#~"', '"!#~"'),
        ('W/"v-1"', None),
        ("v-1", None),
        ('""', None),
        ("", None),
        ("*", None),
        ('"a", "b"', None),
        ('"with space"', None),
        ('"ü"', None),
        ('"' + "x" * 201 + '"', None),
    ],
)
def test_only_one_strong_tag_is_a_version_and_byte_for_byte(tag: str, version: str | None) -> None:
    """Red: let `_TAG` begin with an optional W/, and a weak tag is sent as if it could hold a write back."""
    assert version_served({"etag": tag}) == version
    if version is not None:
        assert condition(version) == {"If-Match": tag}


def test_no_tag_is_no_version() -> None:
    assert version_served({}) is None


@pytest.mark.parametrize("version", NO_VERSIONS, ids=repr)
def test_without_a_real_version_there_is_no_condition(version: Any) -> None:
    """Red: return {} or {"If-Match": "*"} at the end of `condition`."""
    with pytest.raises(Broken):
        condition(version)


def test_absence_is_a_version_of_its_own() -> None:
    assert condition(ABSENT) == {"If-None-Match": "*"}


@pytest.mark.parametrize(
    ("got", "complete", "version"),
    [
        (answer(200, b"x", etag=TAG), True, TAG),
        (answer(200, b"x", etag='W/"1"'), True, None),
        (answer(200, b"x"), True, None),
        (answer(404, HTML), True, ABSENT),
        (answer(410), True, ABSENT),
        (answer(200, b"x", whole=False, etag=TAG), False, None),
        (answer(404, whole=False), False, None),
        (answer(206, b"x", etag=TAG), False, None),
        (answer(304, etag=TAG), False, None),
        (answer(302), False, None),
        (answer(401), False, None),
        (answer(403), False, None),
        (answer(500), False, None),
        (answer(None, whole=False), False, None),
        (answer(None, whole=False, sent=False), False, None),
    ],
)
def test_a_reading_is_whole_or_says_nothing(got: Answer, complete: bool, version: str | None) -> None:
    """Red: drop `answer.whole` in `read_record`: half a record is taken for the record."""
    reading = read_record(got)
    assert (reading.complete, reading.version) == (complete, version)
    assert reading.absent == (version == ABSENT)


ROWS: list[tuple[str, Answer, str, Outcome, Hint]] = [
    ("not sent", answer(None, whole=False, sent=False), TAG, NO_EFFECT, Hint.NOT_SENT),
    ("no answer", answer(None, whole=False), TAG, UNKNOWN, Hint.LOST),
    ("204", answer(204, etag=LATER), TAG, APPLIED, Hint.NONE),
    ("204 without a tag", answer(204), TAG, APPLIED, Hint.NONE),
    ("200 empty", answer(200), TAG, APPLIED, Hint.NONE),
    ("200 html", answer(200, HTML), TAG, UNKNOWN, Hint.UNREADABLE),
    ("204 cut", answer(204, whole=False), TAG, UNKNOWN, Hint.LOST),
    ("201 for a change", answer(201), TAG, UNKNOWN, Hint.MISMATCH),
    ("201 for a creation", answer(201), ABSENT, APPLIED, Hint.NONE),
    ("201 cut", answer(201, b"<", whole=False), ABSENT, UNKNOWN, Hint.LOST),
    ("204 for a creation", answer(204), ABSENT, UNKNOWN, Hint.MISMATCH),
    ("200 for a creation", answer(200), ABSENT, UNKNOWN, Hint.UNREADABLE),
    ("202", answer(202), TAG, UNKNOWN, Hint.UNREADABLE),
    ("207", answer(207), TAG, UNKNOWN, Hint.UNREADABLE),
    ("301", answer(301), TAG, UNKNOWN, Hint.UNREADABLE),
    ("307", answer(307), TAG, UNKNOWN, Hint.UNREADABLE),
    ("400", answer(400), TAG, REFUSED, Hint.MALFORMED),
    ("401", answer(401), TAG, NO_EFFECT, Hint.NONE),
    ("401 cut", answer(401, whole=False), TAG, UNKNOWN, Hint.LOST),
    ("402", answer(402), TAG, UNKNOWN, Hint.UNREADABLE),
    ("403", answer(403), TAG, REFUSED, Hint.NOT_PERMITTED),
    ("404", answer(404), TAG, UNKNOWN, Hint.UNREADABLE),
    ("405", answer(405), TAG, REFUSED, Hint.MALFORMED),
    ("408", answer(408), TAG, UNKNOWN, Hint.UNREADABLE),
    ("409", answer(409), TAG, UNKNOWN, Hint.UNREADABLE),
    ("410", answer(410), TAG, UNKNOWN, Hint.UNREADABLE),
    ("411", answer(411), TAG, REFUSED, Hint.MALFORMED),
    ("412", answer(412), TAG, UNKNOWN, Hint.UNREADABLE),
    ("413", answer(413), TAG, REFUSED, Hint.MALFORMED),
    ("415", answer(415), TAG, REFUSED, Hint.MALFORMED),
    ("417", answer(417), TAG, REFUSED, Hint.MALFORMED),
    ("418", answer(418), TAG, UNKNOWN, Hint.UNREADABLE),
    ("422", answer(422), TAG, REFUSED, Hint.MALFORMED),
    ("423", answer(423), TAG, REFUSED, Hint.BUSINESS_RULE),
    ("428", answer(428), TAG, REFUSED, Hint.MALFORMED),
    ("429", answer(429), TAG, UNKNOWN, Hint.UNREADABLE),
    ("500", answer(500, HTML), TAG, UNKNOWN, Hint.LOST),
    ("502", answer(502, HTML), TAG, UNKNOWN, Hint.LOST),
    ("507", answer(507), TAG, UNKNOWN, Hint.LOST),
    ("599", answer(599), TAG, UNKNOWN, Hint.LOST),
]


@pytest.mark.parametrize(("name", "got", "version", "outcome", "hint"), ROWS, ids=[row[0] for row in ROWS])
def test_the_table_of_answers(name: str, got: Answer, version: str, outcome: Outcome, hint: Hint) -> None:
    """Break any `case` of `classify`, or its first two lines, and rows go red."""
    seen = classify(got, version)
    assert (seen.outcome, seen.hint, seen.stored) == (outcome, hint, False)
    assert seen.detail["sent"] == got.sent


def test_what_waits_for_a_reading_is_never_definite() -> None:
    """An adapter that forgets to read again stays on the safe side."""
    for status in UNSETTLED:
        assert classify(answer(status), TAG).outcome is UNKNOWN


@settings(max_examples=300, deadline=None)
@given(
    st.none() | st.integers(100, 999),
    st.binary(max_size=40),
    st.booleans(),
    st.booleans(),
    st.dictionaries(st.sampled_from(["etag", "content-type"]), st.text(max_size=30)),
    st.sampled_from([TAG, ABSENT]),
)
def test_any_answer_gets_a_meaning(
    status: int | None, body: bytes, whole: bool, sent: bool, headers: dict[str, str], version: str
) -> None:
    got = Answer(sent, status, headers, body, whole)
    read_record(got)
    seen = classify(got, version)
    if seen.outcome is APPLIED:
        assert sent and whole and status in ((201,) if version == ABSENT else (200, 204))
    if seen.outcome is NO_EFFECT:
        assert not sent or status == 401
    for text in seen.detail.values():
        assert not isinstance(text, str) or (len(text) <= 300 and text.isprintable())


@pytest.mark.parametrize(
    ("status", "again", "marked", "matching", "outcome", "hint"),
    [
        (412, Reading(True, LATER), True, True, APPLIED, Hint.NONE),
        (412, Reading(True, LATER), True, False, UNKNOWN, Hint.MISMATCH),
        (412, Reading(True, LATER), False, False, REFUSED, Hint.VERSION_STALE),
        (412, Reading(True, ABSENT), False, False, REFUSED, Hint.VERSION_STALE),
        (412, Reading(True, TAG), False, False, REFUSED, Hint.MALFORMED),
        (412, Reading(True, None), False, False, UNKNOWN, Hint.LOST),
        (412, Reading(False), False, False, UNKNOWN, Hint.LOST),
        # What was seen was seen, though the rest could not be read.
        (412, Reading(False), True, True, APPLIED, Hint.NONE),
        (409, Reading(True, TAG), False, False, REFUSED, Hint.BUSINESS_RULE),
        (409, Reading(True, LATER), False, False, REFUSED, Hint.BUSINESS_RULE),
        (409, Reading(True, LATER), True, True, APPLIED, Hint.NONE),
        (409, Reading(False), False, False, UNKNOWN, Hint.LOST),
        (404, Reading(True, ABSENT), False, False, REFUSED, Hint.VERSION_STALE),
        (410, Reading(True, LATER), False, False, REFUSED, Hint.VERSION_STALE),
        (404, Reading(True, TAG), False, False, UNKNOWN, Hint.UNREADABLE),
    ],
)
def test_a_no_for_what_stands_there_is_judged_by_a_reading_after_it(
    status: int, again: Reading, marked: bool, matching: bool, outcome: Outcome, hint: Hint
) -> None:
    """Red: call every 412 `version_stale`, and a write that an intermediary sent twice is called refused though it stands."""
    seen = settled(classify(answer(status), TAG), TAG, again, marked=marked, matching=matching)
    assert (seen.outcome, seen.hint) == (outcome, hint)
    assert seen.detail["read_again"] == again.complete


def credential(endpoint: str, secret: str = SECRET) -> Credential:
    return Credential("book", False, secret, endpoint=endpoint)


def raw_http(status: int, body: bytes = b"", *headers: str) -> bytes:
    return "\r\n".join([f"HTTP/1.1 {status} X", f"content-length: {len(body)}", *headers]).encode() + b"\r\n\r\n" + body


async def write(
    endpoint: str, version: Any, *, allowed: bool = True, seconds: float = 5.0, secret: str = SECRET
) -> Answer:
    async def guard() -> bool:
        return allowed

    async with Line(credential(endpoint, secret), deadline=deadline_in(seconds), guard=guard) as line:
        return await line.write("a/b.txt", version, b"text", "text/plain")


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("version", "sent", "unsent"),
    [(TAG, b'if-match: "v-1"\r\n', b"if-none-match"), (ABSENT, b"if-none-match: *\r\n", b"if-match")],
)
async def test_a_write_carries_its_condition_and_its_length(
    version: str, sent: bytes, unsent: bytes, serve: Serve
) -> None:
    """Red: leave `condition(version)` out of `Line.write`."""
    async with serve(answering(raw_http(204))) as raw:
        got = await write(raw.base_url, version)
    assert classify(got, TAG).outcome is APPLIED
    head = bytes(raw.seen).lower()
    assert head.startswith(b"put /a/b.txt http/1.1\r\n") and head.endswith(b"\r\n\r\ntext")
    assert sent in head and unsent not in head
    assert b"content-length: 4\r\n" in head and b"transfer-encoding" not in head
    assert b"authorization: basic " + base64.b64encode(SECRET.encode()).lower() in head


@pytest.mark.asyncio
@pytest.mark.parametrize("version", NO_VERSIONS, ids=repr)
async def test_without_a_real_version_nothing_arrives(version: Any, serve: Serve) -> None:
    async with serve(recording) as raw:
        with pytest.raises(Broken):
            await write(raw.base_url, version)
        assert raw.connections == 0


@pytest.mark.asyncio
async def test_without_a_guard_nothing_is_written(serve: Serve) -> None:
    """Red: drop the check in `Line.write`."""
    async with serve(recording) as raw:
        async with Line(credential(raw.base_url), deadline=deadline_in(2.0)) as line:
            with pytest.raises(Broken):
                await line.write("a/b.txt", TAG, b"text", "text/plain")
            for method in ("PUT", "DELETE", "POST", "MOVE", "PROPPATCH"):
                with pytest.raises(Broken):
                    await line.ask(method, "a/b.txt", {}, b"")
        assert raw.connections == 0


@pytest.mark.asyncio
async def test_a_guard_that_says_no_leaves_the_wire_empty(serve: Serve) -> None:
    async with serve(recording) as raw:
        got = await write(raw.base_url, TAG, allowed=False)
        await asyncio.sleep(0.05)
        assert (raw.connections, bytes(raw.seen)) == (1, b"")
    assert (classify(got, TAG).outcome, classify(got, TAG).hint) == (NO_EFFECT, Hint.NOT_SENT)


@pytest.mark.asyncio
async def test_a_connection_that_nobody_takes_is_no_effect() -> None:
    seen = classify(await write(f"http://127.0.0.1:{free_port()}", TAG), TAG)
    assert (seen.outcome, seen.hint, seen.detail["ended"]) == (NO_EFFECT, Hint.NOT_SENT, "ConnectError")


@pytest.mark.asyncio
async def test_silence_ends_at_the_deadline_and_is_unknown(serve: Serve) -> None:
    async with serve(recording) as raw:
        seen = classify(await write(raw.base_url, TAG, seconds=1.0), TAG)
    assert (seen.outcome, seen.hint, seen.detail["ended"]) == (UNKNOWN, Hint.LOST, "deadline")


@pytest.mark.asyncio
async def test_a_redirect_is_not_followed(serve: Serve) -> None:
    """Red: let the client of the wire follow redirects: the write arrives twice, with its login, wherever it was sent."""
    async with serve(answering(raw_http(307, b"", "Location: /elsewhere"))) as raw:
        seen = classify(await write(raw.base_url, TAG), TAG)
        assert raw.connections == 1
    assert (seen.outcome, seen.hint) == (UNKNOWN, Hint.UNREADABLE)


@pytest.mark.asyncio
async def test_a_record_is_read_plain_and_to_its_last_byte(serve: Serve) -> None:
    """Compressed forms have tags of their own, and nothing may be cut out of a text that is written back.

    Red: read with the wire that cuts secrets out: the login in the text becomes [secret], and would be written so.
    """
    text = f"note: {SECRET}".encode()
    async with (
        serve(answering(raw_http(200, text, f"ETag: {TAG}"))) as raw,
        Line(credential(raw.base_url), deadline=deadline_in(2.0)) as line,
    ):
        reading = await line.read("a/b.txt")
    assert (reading.complete, reading.version, reading.body) == (True, TAG, text)
    assert b"accept-encoding: identity" in bytes(raw.seen).lower() and b"no-cache" in bytes(raw.seen).lower()


@pytest.mark.asyncio
async def test_the_secret_never_leaves_in_an_answer(serve: Serve) -> None:
    token = base64.b64encode(SECRET.encode()).decode()
    async with serve(answering(raw_http(403, f"{SECRET} {token}".encode(), f"ETag: {token}"))) as raw:
        got = await write(raw.base_url, TAG)
    told = repr(classify(got, TAG)) + repr(got) + repr(credential(raw.base_url))
    assert "sesame" not in told and token not in told


@pytest.mark.asyncio
@pytest.mark.parametrize("secret", ["", "nobody", "a:b\r\nX: y", "a:" + "b" * 600])
async def test_a_login_that_cannot_be_sent_is_broken(secret: str, serve: Serve) -> None:
    async with serve(recording) as raw:
        with pytest.raises(Broken) as caught:
            await write(raw.base_url, TAG, secret=secret)
        assert raw.connections == 0
    assert "sesame" not in str(caught.value)


@pytest.mark.asyncio
@pytest.mark.parametrize(
    "endpoint", ["", "ftp://x", "http://user:pw@host", "http://host/?q=1", "http://host/#f", "http://ho st", "//host"]
)
async def test_an_endpoint_that_is_no_plain_address_is_broken(endpoint: str) -> None:
    with pytest.raises(Broken):
        await write(endpoint, TAG)


@pytest.mark.asyncio
@pytest.mark.parametrize("path", ["", "/a", "../a", "a/../b", "a//b", "a/./b", "a?b", "a#b", "a b", "a%2e", "ä"])
async def test_a_path_leads_nowhere_else(path: str, serve: Serve) -> None:
    """Red: drop the check in `Line._url`."""
    async with serve(recording) as raw:
        async with Line(credential(raw.base_url), deadline=deadline_in(2.0)) as line:
            with pytest.raises(Broken):
                await line.read(path)
        assert raw.connections == 0


def test_a_classified_answer_claims_no_receipt() -> None:
    """Whose effect it is, only the adapter can say."""
    assert classify(answer(201), ABSENT) == Classified(
        APPLIED, detail={"http_status": 201, "sent": True, "bytes_seen": 0}
    )
