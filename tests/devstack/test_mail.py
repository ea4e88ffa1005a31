"""mail-devel as it is: login, STARTTLS, what it stores, how it is searched, and the traps of IMAP."""

import imaplib
import smtplib
import ssl
import uuid
from collections.abc import Iterator
from email.message import EmailMessage
from email.policy import SMTP
from pathlib import Path

import pytest

from devstack.mail import MailBox, MailServer
from devstack.ports import LOOPBACK
from devstack.receiver import ReceiverError

SENDER = "effects@acme.test"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MailServer]:
    """One server for all tests that leave it running: each knows its mail by ids of its own."""
    with MailServer(tmp_path_factory.mktemp("mail")) as running:
        yield running


@pytest.fixture
def box(server: MailServer) -> MailBox:
    """The second reader."""
    return server.box()


@pytest.fixture
def smtp(server: MailServer) -> Iterator[smtplib.SMTP]:
    """Logged in."""
    with smtplib.SMTP(LOOPBACK, server.smtp_port) as client:
        client.login(server.user, server.password)
        yield client


@pytest.fixture
def imap(server: MailServer) -> Iterator[imaplib.IMAP4]:
    """Another reader, with the inbox open."""
    with imaplib.IMAP4(LOOPBACK, server.imap_port) as client:
        client.login(server.user, server.password)
        client.select("INBOX")
        yield client


def test_mail_arrives_with_its_headers_its_text_and_its_envelope(smtp: smtplib.SMTP, box: MailBox) -> None:
    sent = _message(text="Grüße\n.\n.dot\nfrom Žofie\n")
    _send(smtp, sent, "ada@example.com", "blind@example.com")
    (mail,) = box.with_message_id(_id(sent))
    assert (mail.message_id, mail.header("X-Effect-Operation")) == (_id(sent), sent["X-Effect-Operation"])
    assert (mail.header("Subject"), mail.text) == ("Für Žofie", "Grüße\n.\n.dot\nfrom Žofie\n")
    assert (mail.sender, mail.recipients) == (SENDER, ("ada@example.com", "blind@example.com"))
    assert mail in box.to("blind@example.com") and mail in box.all()


def test_the_same_message_twice_is_two_mails(smtp: smtplib.SMTP, box: MailBox) -> None:
    sent = _message()
    _send(smtp, sent)
    _send(smtp, sent)
    assert len(box.with_message_id(_id(sent))) == 2


def test_it_is_found_by_message_id_and_by_our_header_as_soon_as_it_was_accepted(
    smtp: smtplib.SMTP, imap: imaplib.IMAP4
) -> None:
    for _ in range(10):
        sent = _message()
        _send(smtp, sent)
        imap.noop()
        assert _hits(imap, "Message-ID", _id(sent)) == _hits(imap, "X-Effect-Operation", sent["X-Effect-Operation"])
        assert len(_hits(imap, "Message-ID", _id(sent))) == 1


def test_an_open_session_does_not_see_new_mail_until_it_asks_for_news(smtp: smtplib.SMTP, imap: imaplib.IMAP4) -> None:
    """An adapter that searches in a session it already had would take an accepted mail for one that never was."""
    sent = _message()
    _send(smtp, sent)
    assert _hits(imap, "Message-ID", _id(sent)) == []
    imap.noop()
    assert len(_hits(imap, "Message-ID", _id(sent))) == 1


def test_a_search_finds_more_than_was_asked_for(smtp: smtplib.SMTP, imap: imaplib.IMAP4, box: MailBox) -> None:
    operation = uuid.uuid4().hex
    _send(smtp, _message(operation=f"{operation}0"))
    imap.noop()
    assert len(_hits(imap, "x-effect-operation", operation.upper())) == 1
    assert box.with_header("X-Effect-Operation", operation) == []
    assert len(box.with_header("X-Effect-Operation", f"{operation}0")) == 1


def test_a_forgery_is_found_like_the_real_one_but_has_no_envelope(smtp: smtplib.SMTP, box: MailBox) -> None:
    sent = _message()
    _send(smtp, sent)
    (real,) = box.with_message_id(_id(sent))
    box.append(sent)
    forged = next(mail for mail in box.with_message_id(_id(sent)) if mail.uid != real.uid)
    assert (forged.sender, forged.recipients, forged.text) == (None, (), real.text)
    box.delete(real)
    assert box.with_message_id(_id(sent)) == [forged]


def test_a_copy_in_another_folder_is_not_in_the_inbox(server: MailServer, box: MailBox) -> None:
    sent, copy = server.box("Sent"), _message()
    assert sent.all() == []
    sent.append(copy)
    assert len(sent.with_message_id(_id(copy))) == 1 and box.with_message_id(_id(copy)) == []


def test_without_login_nothing_is_taken(server: MailServer, box: MailBox) -> None:
    sent = _message()
    with smtplib.SMTP(LOOPBACK, server.smtp_port) as smtp:
        with pytest.raises(smtplib.SMTPSenderRefused, match="5.7.0 Authentication required"):
            _send(smtp, sent)
        for user, password in ((server.user, "wrong"), ("nobody", server.password)):
            with pytest.raises(smtplib.SMTPAuthenticationError, match="535"):
                smtp.login(user, password)
    with (
        imaplib.IMAP4(LOOPBACK, server.imap_port) as imap,
        pytest.raises(imaplib.IMAP4.error, match="AUTHENTICATIONFAILED"),
    ):
        imap.login(server.user, "wrong")
    assert box.with_message_id(_id(sent)) == []


def test_a_connection_that_ends_before_the_final_dot_leaves_nothing(server: MailServer, box: MailBox) -> None:
    sent = _message()
    with smtplib.SMTP(LOOPBACK, server.smtp_port) as smtp:
        smtp.login(server.user, server.password)
        smtp.mail(SENDER)
        smtp.rcpt("ada@example.com")
        assert smtp.docmd("DATA")[0] == 354
        smtp.send(sent.as_bytes(policy=SMTP))
        smtp.close()
    assert box.with_message_id(_id(sent)) == []


def test_too_long_a_line_is_refused_after_the_final_dot(smtp: smtplib.SMTP, box: MailBox) -> None:
    sent = _message()
    raw = sent.as_bytes(policy=SMTP) + b"x" * 1200 + b"\r\n"
    with pytest.raises(smtplib.SMTPDataError, match="500"):
        smtp.sendmail(SENDER, ["ada@example.com"], raw)
    assert box.with_message_id(_id(sent)) == []


def test_tls_comes_before_login_and_login_before_mail(tmp_path: Path) -> None:
    with MailServer(tmp_path, tls=True) as server:
        trusting = ssl.create_default_context(cafile=server.certificate)
        with smtplib.SMTP(LOOPBACK, server.smtp_port) as smtp:
            smtp.ehlo()
            assert smtp.has_extn("starttls") and not smtp.has_extn("auth")
            assert smtp.mail(SENDER) == (530, b"Must issue a STARTTLS command first")
            smtp.starttls(context=trusting)
            smtp.ehlo()
            assert smtp.mail(SENDER) == (530, b"5.7.0 Authentication required")
            smtp.login(server.user, server.password)
            sent = _message()
            _send(smtp, sent)
        assert len(server.box().with_message_id(_id(sent))) == 1
        with smtplib.SMTP(LOOPBACK, server.smtp_port) as smtp, pytest.raises(ssl.SSLCertVerificationError):
            smtp.starttls(context=ssl.create_default_context())


def test_without_a_certificate_it_offers_no_tls(smtp: smtplib.SMTP) -> None:
    with pytest.raises(smtplib.SMTPNotSupportedError):
        smtp.starttls(context=ssl.create_default_context())


def test_a_restart_on_the_same_ports_has_forgotten_all_mail(tmp_path: Path) -> None:
    server = MailServer(tmp_path)
    with pytest.raises(ReceiverError, match="has not been started"):
        server.restart()
    with server:
        ports, box = list(server.ports), server.box()
        with smtplib.SMTP(LOOPBACK, server.smtp_port) as smtp:
            smtp.login(server.user, server.password)
            _send(smtp, _message())
        assert len(box.all()) == 1
        server.kill()
        with pytest.raises(ConnectionRefusedError):
            box.all()
        server.restart()
        assert (server.ports, box.all()) == (ports, [])


def _message(*, text: str = "Hello\n", operation: str | None = None) -> EmailMessage:
    message = EmailMessage()
    message["From"] = SENDER
    message["To"] = "ada@example.com"
    message["Subject"] = "Für Žofie"
    message["Message-ID"] = f"<{uuid.uuid4().hex}@acme.test>"
    message["X-Effect-Operation"] = operation or uuid.uuid4().hex
    message.set_content(text)
    return message


def _id(message: EmailMessage) -> str:
    return str(message["Message-ID"])


def _send(smtp: smtplib.SMTP, message: EmailMessage, *recipients: str) -> None:
    smtp.sendmail(SENDER, recipients or ("ada@example.com",), message.as_bytes(policy=SMTP))


def _hits(imap: imaplib.IMAP4, header: str, value: str) -> list[bytes]:
    _, (found, *_) = imap.uid("SEARCH", "HEADER", header, f'"{value}"')
    return found.split() if isinstance(found, bytes) else []
