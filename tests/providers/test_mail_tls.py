"""TLS on every way to a mail server: STARTTLS of mail-devel itself, and TLS in front of it where it has none."""

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest

from devstack.mail import MailServer
from ledger.model import Hint, Outcome
from providers.mail import Mail
from providers.port import Credential
from tests.providers.rigs_mail import SINCE, MailRig, a_mail_operation, yes

pytestmark = pytest.mark.asyncio


@pytest.fixture(scope="module")
def tls_server(tmp_path_factory: pytest.TempPathFactory) -> Any:
    with MailServer(tmp_path_factory.mktemp("tls"), tls=True) as server:
        yield server


def over_tls(server: MailServer, scheme: str = "smtp+starttls") -> Credential:
    secret = f"{server.user}:{server.password}"
    endpoint = f"{scheme}://localhost:{server.smtp_port}"
    archive = f"imap://localhost:{server.imap_port}/INBOX"
    return Credential("orders@acme.test", False, secret, endpoint=endpoint, archive=archive)


async def test_starttls_and_login_with_a_private_authority(
    tls_server: MailServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The authority is trusted by SSL_CERT_FILE, as for every other provider."""
    monkeypatch.setenv("SSL_CERT_FILE", str(tls_server.certificate))
    adapter, operation, credential = Mail(archived=True), a_mail_operation(), over_tls(tls_server)
    assert await adapter.whose(credential) == credential
    request = adapter.build_request(operation, {})
    seen = await adapter.send(credential, operation, request, adapter.contract, yes, lambda: None)
    assert seen.outcome is Outcome.APPLIED
    assert len(tls_server.box().with_message_id(f"<{operation.operation_id}@acme.test>")) == 1


async def test_an_untrusted_certificate_gets_neither_password_nor_mail(tls_server: MailServer) -> None:
    """Red: let `tls_context` verify nothing."""
    adapter, operation, credential = Mail(archived=True), a_mail_operation(), over_tls(tls_server)
    assert await adapter.whose(credential) is None
    request = adapter.build_request(operation, {})
    seen = await adapter.send(credential, operation, request, adapter.contract, yes, lambda: None)
    assert (seen.outcome, seen.hint) == (Outcome.NO_EFFECT, Hint.NOT_SENT)
    assert (seen.detail["phase"], seen.detail["ended"]) == ("connect", "SSLCertVerificationError")
    assert tls_server.box().with_message_id(f"<{operation.operation_id}@acme.test>") == []


@asynccontextmanager
async def in_tls(server: MailServer, port: int, *, starttls: bool = False) -> AsyncIterator[int]:
    """A port in front of this one: TLS from the first byte, or IMAP's STARTTLS, which mail-devel does not have."""
    assert server.certificate is not None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(server.certificate, server.certificate.with_name("key.pem"))
    talks: set[asyncio.Task[Any]] = set()

    async def pump(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        while piece := await source.read(65536):
            sink.write(piece)
            await sink.drain()
        sink.close()

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        talks.add(task)
        upstream, to_upstream = await asyncio.open_connection("127.0.0.1", port)
        if starttls:
            await upstream.readline()
            writer.write(b"* OK [CAPABILITY IMAP4rev1 STARTTLS LOGINDISABLED] hello\r\n")
            tag, verb = (await reader.readline()).split()
            if verb.upper() == b"CAPABILITY":
                writer.write(b"* CAPABILITY IMAP4rev1 STARTTLS LOGINDISABLED\r\n" + tag + b" OK done\r\n")
                tag, verb = (await reader.readline()).split()
            assert verb.upper() == b"STARTTLS"
            writer.write(tag + b" OK go on\r\n")
            await writer.start_tls(context)
        try:
            await asyncio.gather(pump(reader, to_upstream), pump(upstream, writer))
        except (ConnectionError, ssl.SSLError):
            pass
        finally:
            writer.close()
            to_upstream.close()

    listening = await asyncio.start_server(talk, "127.0.0.1", 0, ssl=None if starttls else context)
    try:
        yield listening.sockets[0].getsockname()[1]
    finally:
        listening.close()
        for task in talks:
            task.cancel()
        await asyncio.gather(*talks, return_exceptions=True)


@pytest.mark.parametrize("scheme", ["imaps", "imap+starttls"])
async def test_an_archive_is_read_in_tls_and_only_from_whom_we_trust(
    tls_server: MailServer, scheme: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Red: open the archive without a context, or with one that verifies nothing."""
    adapter, operation, sender = Mail(archived=True), a_mail_operation(), over_tls(tls_server)
    async with in_tls(tls_server, tls_server.imap_port, starttls=scheme == "imap+starttls") as port:
        credential = replace(sender, archive=f"{scheme}://localhost:{port}/INBOX")
        distrusted = await adapter.look(credential, operation, SINCE)
        assert (distrusted.complete, distrusted.detail["why"]) == (False, "SSLCertVerificationError")
        monkeypatch.setenv("SSL_CERT_FILE", str(tls_server.certificate))
        request = adapter.build_request(operation, {})
        seen = await adapter.send(credential, operation, request, adapter.contract, yes, lambda: None)
        look = await adapter.look(credential, operation, SINCE)
        wrong_name = replace(credential, archive=f"{scheme}://127.0.0.2:{port}/INBOX")
        assert not (await adapter.look(wrong_name, operation, SINCE)).complete
    assert look.complete and [effect.receipt for effect in look.effects] == [seen.receipt]


async def test_mail_goes_out_in_implicit_tls(
    mail_rig: MailRig, tls_server: MailServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    operation = mail_rig.operation()
    async with in_tls(tls_server, mail_rig.server.smtp_port) as port:
        distrusted = await mail_rig.send(operation, through=f"smtps://localhost:{port}")
        assert (distrusted.outcome, distrusted.hint) == (Outcome.NO_EFFECT, Hint.NOT_SENT)
        assert distrusted.detail["ended"] == "SSLCertVerificationError" and mail_rig.effects(operation) == []
        monkeypatch.setenv("SSL_CERT_FILE", str(tls_server.certificate))
        seen = await mail_rig.send(operation, through=f"smtps://localhost:{port}")
    assert seen.outcome is Outcome.APPLIED and len(mail_rig.effects(operation)) == 1


async def test_a_no_of_the_guard_resets_the_line_in_tls_too(
    mail_rig: MailRig, tls_server: MailServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    operation = mail_rig.operation()
    monkeypatch.setenv("SSL_CERT_FILE", str(tls_server.certificate))
    async with in_tls(tls_server, mail_rig.server.smtp_port) as port:
        seen = await mail_rig.send(operation, through=f"smtps://localhost:{port}", allowed=False)
    assert (seen.outcome, seen.hint, seen.detail["ended"]) == (Outcome.NO_EFFECT, Hint.NOT_SENT, "guard")
    assert mail_rig.effects(operation) == []
