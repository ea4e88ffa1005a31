"""The web application behind `effects codec`: decrypts payloads for Temporal's Web UI and its command line, never encrypts.

1. Nothing is decrypted for whoever does not know the token, compared in constant time before a body is read. A program sends
   it as Bearer; a browser as the password of Basic, since the Web UI has no place for a token of ours.
2. A browser lets pages of one origin read what is answered: the Web UI's.
3. A log line says who asked from where and how much, never what.
"""

import base64
import binascii
import hmac
from collections.abc import Callable
from dataclasses import dataclass

import structlog
from google.protobuf.json_format import MessageToDict, Parse, ParseError
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route
from temporalio.api.common.v1 import Payloads

from inbox.app import body_of
from ledger.errors import Refused
from workflows.codec import EncryptionCodec

MOST_BYTES = 8 * 1024 * 1024  # of one request: a payload has two million bytes at most, a third more as base64
# Of refusals that are not about the payloads.
_CODES = {"token_wrong": 401, "body_too_large": 413, "body_slow": 408, "secret_missing": 503, "secret_malformed": 503}

log = structlog.get_logger()


@dataclass(frozen=True)
class Decoder:
    """What the application is given."""

    codec: EncryptionCodec
    token: Callable[[], str]  # read anew for each request, so that a new one needs no restart
    origin: str  # of the Web UI, like https://temporal.example.com


def application(decoder: Decoder) -> Starlette:
    """The application; a reverse proxy before it brings TLS."""

    async def decode(request: Request) -> JSONResponse:
        peer = request.client.host if request.client else ""
        try:
            _admit(request, decoder.token())
            asked = _payloads_in(await body_of(request, MOST_BYTES))
        except Refused as refused:
            log.warning("decoding refused", rule=refused.rule, peer=peer)
            return _refusal(refused)
        opened = [(payload, decoder.codec.opened(payload)) for payload in asked.payloads]
        told = Payloads(payloads=[payload if inside is None else inside for payload, inside in opened])
        decrypted = sum(inside is not None for _, inside in opened)
        log.info("payloads decoded", asked=len(opened), decrypted=decrypted, peer=peer)
        return JSONResponse(MessageToDict(told))

    async def sign_in(request: Request) -> JSONResponse:
        try:
            _admit(request, decoder.token())
        except Refused as refused:
            return _refusal(refused)
        return JSONResponse({"signed_in": True, "next": "go back to the Web UI and reload it"})

    async def health(request: Request) -> JSONResponse:
        return JSONResponse({"answers": True})

    return Starlette(
        routes=[
            Route("/decode", decode, methods=["POST"]),
            Route("/", sign_in, methods=["GET"]),
            Route("/health", health, methods=["GET"]),
        ],
        middleware=[
            Middleware(
                CORSMiddleware,
                allow_origins=[decoder.origin],
                allow_methods=["POST"],
                allow_headers=["authorization", "content-type", "x-namespace"],
                allow_credentials=True,
            )
        ],
    )


def _admit(request: Request, token: str) -> None:
    """Return only for whoever knows the token."""
    scheme, _, given = request.headers.get("authorization", "").partition(" ")
    if scheme.lower() == "basic":
        try:
            _, _, given = base64.b64decode(given, validate=True).decode().partition(":")
        except (binascii.Error, ValueError):
            given = ""
    if scheme.lower() not in ("basic", "bearer") or not hmac.compare_digest(given.encode(), token.encode()):
        raise Refused("token_wrong", "send the token as Bearer, or as the password of Basic")


def _payloads_in(body: bytes) -> Payloads:
    try:
        return Parse(body, Payloads(), ignore_unknown_fields=True)
    except (ParseError, ValueError, RecursionError):
        raise Refused("payloads_malformed", 'needs {"payloads": […]}, as Temporal\'s Web UI sends them') from None


def _refusal(refused: Refused) -> JSONResponse:
    code = _CODES.get(refused.rule, 400)
    if code == 503:  # what is to be set where is for whoever starts it, and stands in its log
        refused = Refused("token_unreadable", "nobody is let in: the token cannot be read here")
    # Makes a browser ask for name and password when a person opens the address.
    headers = {"WWW-Authenticate": 'Basic realm="effects codec", charset="UTF-8"'} if code == 401 else {}
    return JSONResponse({"error": {"rule": refused.rule, "message": str(refused)}}, status_code=code, headers=headers)
