"""Notices: tell people by a signed POST what waits for them. A background task of every worker, beside Temporal.

1. At least once: a notice is marked after its answer. A receiver tells a repeat by `webhook-id`.
2. Nothing to act on: ids, what happened, and a link to where people may look. Whoever forged one would cause a look.
3. Signed as https://www.standardwebhooks.com says, so that receivers find a library. No receiver can hold up a move.
"""

import asyncio
import base64
import binascii
import hashlib
import hmac
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime, timedelta
from urllib.parse import quote, urlsplit

import httpx
import structlog

from activities.ports import Secrets
from activities.settings import Settings
from ledger.errors import LedgerError, Refused
from ledger.store import notices
from ledger.store.database import Ledger
from ledger.store.notices import Notice

AT_ONCE = 20
PAUSE_SECONDS = 2.0  # between two looks for what is due
POST_SECONDS = 10.0
LEASE = timedelta(seconds=60)  # longer than a batch takes, shorter than anybody waits
FIRST_DELAY, LONGEST_DELAY = timedelta(seconds=5), timedelta(hours=1)

log = structlog.get_logger()


@asynccontextmanager
async def posting(settings: Settings, ledger: Ledger) -> AsyncIterator[None]:
    """Post what is due while the context is open. Refused: `notices_…`, naming the setting to mend."""
    poster = Poster(settings, ledger)
    async with httpx.AsyncClient(timeout=POST_SECONDS, follow_redirects=False) as http:
        task = asyncio.create_task(poster.run(http))
        try:
            yield
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task


class Poster:
    """Takes what is due and posts it. Several of them share one outbox."""

    def __init__(self, settings: Settings, ledger: Ledger) -> None:
        self._url = _checked(settings)
        self._link = settings.notices_link
        self._secrets = Secrets(settings.secrets_dir)
        self._secret = settings.notices_secret
        self._ledger = ledger
        signing_key(self._secrets.read(self._secret))

    async def run(self, http: httpx.AsyncClient) -> None:
        """For ever. Whatever goes wrong is tried again: nobody would hear that nobody is told."""
        while True:
            told = 0
            try:
                told = await self.round(http)
            except LedgerError as error:
                log.warning("notices wait", error=type(error).__name__)
            except Exception as error:
                log.error("notices wait: a bug", error=type(error).__name__, exc_info=True)
            if told < AT_ONCE:
                await asyncio.sleep(PAUSE_SECONDS)

    async def round(self, http: httpx.AsyncClient) -> int:
        """Post one batch; how many were due."""
        async with self._ledger.transaction() as conn:
            due = await notices.take_due(conn, AT_ONCE, LEASE)
        problems = await asyncio.gather(*(self._post(http, notice) for notice in due))
        for notice, problem in zip(due, problems, strict=True):  # by one connection at a time: moves need the others
            await self._record(notice, problem)
        return len(due)

    async def _record(self, notice: Notice, problem: str) -> None:
        async with self._ledger.transaction() as conn:
            if not problem:
                await notices.end(conn, notice, "over" if notice.over else "posted")
                return
            await notices.later(conn, notice, problem, delay_after(notice.tries))
        log.warning("notice not acknowledged", operation_id=str(notice.operation_id), kind=notice.kind, problem=problem)

    async def _post(self, http: httpx.AsyncClient, notice: Notice) -> str:
        """Empty when the receiver acknowledged it, or nobody needs to hear of it; else a code."""
        if notice.over:
            return ""
        body = content_of(notice, self._link)
        try:
            headers = headers_for(notice.name, int(time.time()), body, self._secrets.read(self._secret))
            async with asyncio.timeout(POST_SECONDS):  # httpx bounds each read only: a slow answer must end as well
                answer = await http.post(self._url, content=body, headers=headers)
        except (httpx.HTTPError, OSError) as error:
            return type(error).__name__
        except Refused as refused:
            return refused.rule
        return "" if 200 <= answer.status_code < 300 else f"http_{answer.status_code}"


def content_of(notice: Notice, link: str) -> bytes:
    """The body: equal for every try, but for where the operation stands by then."""
    workflow_id = f"{notice.tenant}/{notice.business_key}"
    told_about = {
        "operation_id": str(notice.operation_id),
        "workflow_id": workflow_id,
        "action": notice.action,
        "state": notice.state.value,
        "event_number": notice.event_number,
        "link": link.replace("{workflow_id}", quote(workflow_id, safe="")) if link else "",
    }
    if notice.kind in (notices.NoticeKind.WAITING, notices.NoticeKind.HALF_LIFE):
        told_about["until"] = notice.approval_expires_at.astimezone(UTC).isoformat(timespec="seconds")
    told = {
        "type": f"operation.{notice.kind}",
        "timestamp": datetime.now(UTC).isoformat(timespec="seconds"),
        "data": told_about,
    }
    return json.dumps(told, separators=(",", ":")).encode()


def headers_for(name: str, at: int, body: bytes, secret: str) -> dict[str, str]:
    """The headers of one try, signed over id, time and body."""
    signed = f"{name}.{at}.".encode() + body
    signature = base64.b64encode(hmac.digest(signing_key(secret), signed, hashlib.sha256)).decode()
    return {
        "content-type": "application/json",
        "webhook-id": name,
        "webhook-timestamp": str(at),
        "webhook-signature": f"v1,{signature}",
    }


def signing_key(secret: str) -> bytes:
    """The key in a secret of the form whsec_BASE64, at least 24 bytes. Refused: `notices_secret_malformed`."""
    try:
        key = base64.b64decode(secret.removeprefix("whsec_"), validate=True)
    except binascii.Error:
        key = b""
    if not secret.startswith("whsec_") or len(key) < 24:
        why = "the notices' secret is whsec_ and base64 of 24 random bytes or more"
        raise Refused("notices_secret_malformed", f"{why}: `echo whsec_$(openssl rand -base64 32)` makes one")
    return key


def delay_after(tries: int) -> timedelta:
    """5 s after the first try, twice as long each time, an hour at most."""
    return min(timedelta(seconds=FIRST_DELAY.total_seconds() * 2 ** min(tries - 1, 20)), LONGEST_DELAY)


def _checked(settings: Settings) -> str:
    parts = urlsplit(settings.notices_url)
    loopback = parts.hostname in ("127.0.0.1", "::1", "localhost")
    if parts.scheme != "https" and not (parts.scheme == "http" and loopback) or not parts.hostname:
        raise Refused("notices_url_malformed", "EFFECTS_NOTICES_URL is an https:// address (http:// on loopback only)")
    return settings.notices_url
