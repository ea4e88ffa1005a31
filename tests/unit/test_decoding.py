"""The codec's web application without servers: who is let in, which origin may read, and what stands in its log."""

import base64
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
import structlog
from google.protobuf.json_format import MessageToDict
from temporalio.api.common.v1 import Payload, Payloads

from activities.settings import Settings
from commands import decoding
from commands.codec import decoder_of
from commands.decoding import Decoder, application
from inbox import app as inbox_app
from ledger.errors import Refused
from workflows.codec import EncryptionCodec

ORIGIN, TOKEN, CANARY = "https://temporal.example.com", "t" * 32, "canary-4711@example.com"
CODEC = EncryptionCodec({"key_1": bytes(range(32))})
BEARER = {"Authorization": f"Bearer {TOKEN}"}


def client(token: Callable[[], str] = lambda: TOKEN) -> httpx.AsyncClient:
    """A client of an application with these keys."""
    transport = httpx.ASGITransport(application(Decoder(CODEC, token, ORIGIN)))
    return httpx.AsyncClient(transport=transport, base_url="http://codec")


def basic(login: str) -> dict[str, str]:
    """As a browser signs in."""
    return {"Authorization": "Basic " + base64.b64encode(login.encode()).decode()}


async def asked() -> dict[str, Any]:
    """What the Web UI sends: one payload of ours, one in clear, one of nobody's."""
    (sealed,) = await CODEC.encode([Payload(metadata={"encoding": b"json/plain"}, data=CANARY.encode())])
    plain = Payload(metadata={"encoding": b"json/plain"}, data=b"1")
    foreign = Payload(metadata=sealed.metadata, data=b"x")
    return MessageToDict(Payloads(payloads=[sealed, plain, foreign]))


async def test_what_is_ours_is_decrypted_and_everything_else_comes_back_as_it_was() -> None:
    """The log says how much, from where, and never what. Red: log the payloads."""
    sent = await asked()
    async with client() as codec:
        with structlog.testing.capture_logs() as logged:
            answer = await codec.post("/decode", json=sent, headers=BEARER | {"X-Namespace": CANARY})
    told = answer.json()["payloads"]
    assert base64.b64decode(told[0]["data"]).decode() == CANARY and told[1:] == sent["payloads"][1:]
    assert [(line["event"], line["asked"], line["decrypted"]) for line in logged] == [("payloads decoded", 3, 1)]
    assert CANARY not in str(logged) and TOKEN not in str(logged)


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Authorization": ""},
        {"Authorization": TOKEN},
        {"Authorization": "Bearer"},
        {"Authorization": f"Bearer {TOKEN}x"},
        {"Authorization": f"Bearer {TOKEN[:-1]}"},
        {"Authorization": f"Digest {TOKEN}"},
        {"Authorization": "Bearer \xff".encode("latin-1").decode("latin-1")},
        {"Authorization": "Basic !"},
        {"Authorization": "Basic /w=="},
        basic(TOKEN),
        basic(f"{TOKEN}:wrong"),
    ],
)
async def test_without_the_token_nothing_is_decrypted(headers: dict[str, str]) -> None:
    """And a browser is told how to ask for it. Red: leave out `_admit`, or let an empty token in."""
    given = {name: value.encode("latin-1") for name, value in headers.items()}
    async with client() as codec:
        for answer in (
            await codec.post("/decode", json=await asked(), headers=given),
            await codec.get("/", headers=given),
        ):
            assert (answer.status_code, answer.json()["error"]["rule"]) == (401, "token_wrong")
            assert answer.headers["www-authenticate"].startswith("Basic ")
            assert CANARY not in answer.text


async def test_the_token_is_taken_as_bearer_or_as_a_password_and_read_anew_each_time() -> None:
    """Whatever the name; a rotation needs no restart, and while the token cannot be read nobody gets in."""
    tokens = [TOKEN]
    async with client(lambda: tokens[0]) as codec:
        for headers in (BEARER, basic(f"operator:{TOKEN}"), basic(f":{TOKEN}"), {"Authorization": f"bearer {TOKEN}"}):
            assert (await codec.post("/decode", json=await asked(), headers=headers)).status_code == 200
        assert (await codec.get("/", headers=basic(f"operator:{TOKEN}"))).json()["signed_in"]
        tokens[0] = "n" * 32
        assert (await codec.get("/", headers=BEARER)).status_code == 401

    def nowhere() -> str:
        raise Refused("secret_missing", f"put it into {CANARY}")

    async with client(nowhere) as codec:
        answer = await codec.post("/decode", json=await asked(), headers=BEARER)
        assert (answer.status_code, answer.json()["error"]["rule"]) == (503, "token_unreadable")
        assert CANARY not in answer.text


@pytest.mark.parametrize(
    "origin", [ORIGIN, f"{ORIGIN}.evil.test", ORIGIN.replace("https", "http"), "null", f"{ORIGIN}:8080"]
)
async def test_only_the_web_uis_own_origin_may_read(origin: str) -> None:
    """Asked before, and with the answer, refusals included. Red: allow origins by "*" or by a beginning."""
    asks = {"Origin": origin, "Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "x-namespace"}
    async with client() as codec:
        before = await codec.options("/decode", headers=asks)
        answer = await codec.post("/decode", json=await asked(), headers=BEARER | {"Origin": origin})
        refused = await codec.post("/decode", json={}, headers={"Origin": origin})
    allowed = origin if origin == ORIGIN else None
    assert [r.headers.get("access-control-allow-origin") for r in (before, answer, refused)] == [allowed] * 3
    assert before.is_success is (origin == ORIGIN)


async def test_it_never_encrypts() -> None:
    """With its keys nobody makes a payload that looks like ours."""
    async with client() as codec:
        assert (await codec.post("/encode", json=await asked(), headers=BEARER)).status_code == 404


@pytest.mark.parametrize(
    "body", [b"", b"{", b'{"payloads": 1}', b"[" * 100_000, b"\xff", b'{"payloads": [{"data": 1}]}']
)
async def test_what_is_no_payload_is_refused(body: bytes) -> None:
    """In words, and not with a trace."""
    async with client() as codec:
        answer = await codec.post("/decode", content=body, headers=BEARER)
    assert (answer.status_code, answer.json()["error"]["rule"]) == (400, "payloads_malformed")


async def test_a_body_has_a_cap(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever its header says."""
    monkeypatch.setattr(decoding, "MOST_BYTES", 10)
    assert inbox_app.BODY_SECONDS <= 10
    async with client() as codec:
        answer = await codec.post("/decode", content=json.dumps(await asked()), headers=BEARER)
    assert (answer.status_code, answer.json()["error"]["rule"]) == (413, "body_too_large")


@pytest.mark.parametrize(
    ("changed", "rule"),
    [
        ({"codec_port": 0}, "codec_port_missing"),
        ({"codec_origin": ""}, "codec_origin_malformed"),
        ({"codec_origin": "*"}, "codec_origin_malformed"),
        ({"codec_origin": f"{ORIGIN}/"}, "codec_origin_malformed"),
        ({"payload_keys": ""}, "payload_keys_missing"),
        ({"payload_keys": "key_9"}, "secret_missing"),
        ({"codec_token": "nobodys"}, "secret_missing"),
        ({"codec_token": "short"}, "secret_malformed"),
    ],
)
def test_what_it_cannot_run_with_is_refused_at_its_start(tmp_path: Path, changed: dict[str, Any], rule: str) -> None:
    """Before a port is taken; each names what to set."""
    (tmp_path / "key_1").write_text(base64.b64encode(bytes(range(32))).decode())
    (tmp_path / "codec_token").write_text(TOKEN)
    (tmp_path / "short").write_text("t" * 19)
    good = {"codec_port": 1, "codec_origin": ORIGIN, "payload_keys": "plain,key_1", "secrets_dir": tmp_path}
    assert decoder_of(Settings(**good)).token() == TOKEN
    with pytest.raises(Refused) as refused:
        decoder_of(Settings(**(good | changed)))
    assert refused.value.rule == rule
