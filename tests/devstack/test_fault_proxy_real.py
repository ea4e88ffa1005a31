"""Faults in front of the real servers: what SMTP and CardDAV clients see, and what has been done meanwhile."""

import smtplib
import uuid
from collections.abc import Iterator
from email.message import EmailMessage
from email.policy import SMTP

import httpx
import pytest

from devstack.fault_proxy import FaultProxy
from devstack.faults import CutReply, CutRequest, HoldRequest, ReplaceReply
from devstack.mail import MailServer
from devstack.ports import LOOPBACK
from devstack.radicale import SERVICE, RadicaleServer

PATIENCE = 30.0


@pytest.fixture(scope="module")
def mail(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MailServer]:
    """The real one."""
    with MailServer(tmp_path_factory.mktemp("mail")) as server:
        yield server


@pytest.fixture(scope="module")
def radicale(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RadicaleServer]:
    """The real one."""
    with RadicaleServer(tmp_path_factory.mktemp("radicale")) as server:
        yield server


def test_a_mail_whose_acceptance_was_lost_has_arrived(mail: MailServer) -> None:
    """The fault after the final dot: 250 was said, and the sender saw a dead connection."""
    with FaultProxy(mail.smtp_port) as proxy:
        lost = proxy.arm(CutReply(after=b"\r\n.\r\n"))
        sent = _message()
        with pytest.raises(smtplib.SMTPServerDisconnected):
            _send(proxy.port, mail, sent)
        lost.wait_fired()
        assert len(mail.box().with_message_id(str(sent["Message-ID"]))) == 1
        assert proxy.conversations[0].answered.endswith(b"250 OK\r\n")
        _send(proxy.port, mail, sent)
        assert len(mail.box().with_message_id(str(sent["Message-ID"]))) == 2, "nobody dedupes mail"


def test_a_mail_cut_before_the_final_dot_has_not_and_a_held_one_comes_late(mail: MailServer) -> None:
    with FaultProxy(mail.smtp_port) as proxy:
        sent, box = _message(), mail.box()
        proxy.arm(CutRequest(after=b"Subject:", passing=4))
        with pytest.raises(smtplib.SMTPServerDisconnected):
            _send(proxy.port, mail, sent)
        late = proxy.arm(HoldRequest(after=b"data\r\n"))
        with pytest.raises(smtplib.SMTPServerDisconnected, match="timed out"):
            _send(proxy.port, mail, sent, timeout=0.5)
        assert box.with_message_id(str(sent["Message-ID"])) == []
        late.release()
        assert len(box.with_message_id(str(sent["Message-ID"]))) == 1


@pytest.mark.parametrize("command", [b"mail FROM:", b"rcpt TO:", b"data\r\n", b"\r\n.\r\n"])
def test_any_refusal_can_be_put_into_a_mail_servers_mouth(mail: MailServer, command: bytes) -> None:
    with FaultProxy(mail.smtp_port) as proxy:
        # To a server that was given DATA, everything that follows is a message: it must not hear it.
        deliver = command != b"data\r\n"
        proxy.arm(ReplaceReply(after=command, answer=b"451 4.3.0 Try again later\r\n", deliver=deliver))
        sent = _message()
        with pytest.raises((smtplib.SMTPResponseException, smtplib.SMTPRecipientsRefused), match="Try again later"):
            _send(proxy.port, mail, sent)
        arrived = mail.box().with_message_id(str(sent["Message-ID"]))
        assert len(arrived) == (1 if command == b"\r\n.\r\n" else 0)


def test_a_card_whose_answer_was_lost_is_written_once(radicale: RadicaleServer) -> None:
    with FaultProxy(radicale.port) as proxy, radicale.book() as book, _http(proxy) as service:
        card = book.add("Ada")
        lost = proxy.arm(CutReply(after=f"PUT {card.href}".encode()))
        changed = card.content.replace(b"FN:Ada", b"FN:Grace")
        assert service.get(card.href).status_code == 200
        with pytest.raises(httpx.ReadError):
            service.put(card.href, content=changed, headers={"If-Match": card.etag})
        lost.wait_fired()
        assert [change.who for change in book.written(card.href)] == ["clerk", "service"]
        assert service.put(card.href, content=changed, headers={"If-Match": card.etag}).status_code == 412


def test_a_card_that_was_cut_short_is_not_written_and_a_late_one_is(radicale: RadicaleServer) -> None:
    with FaultProxy(radicale.port) as proxy, radicale.book() as book, _http(proxy) as service:
        card = book.add("Ada")
        changed = card.content.replace(b"FN:Ada", b"FN:Grace")
        cut = proxy.arm(CutRequest(after=b"BEGIN:VCARD", reset=False))
        with pytest.raises(httpx.RemoteProtocolError):
            service.put(card.href, content=changed)
        cut.wait_fired()
        assert book.read(card.href) == card
        late = proxy.arm(HoldRequest(after=b"BEGIN:VCARD"))
        with pytest.raises(httpx.ReadTimeout):
            service.put(card.href, content=changed, timeout=0.3)
        assert book.read(card.href) == card, "not there, says the lookup"
        late.release()
        assert [change.who for change in book.written(card.href)] == ["clerk", "service"]


def test_a_gateway_answers_for_a_server_that_has_written_or_has_not(radicale: RadicaleServer) -> None:
    bad = b"HTTP/1.1 502 Bad Gateway\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"
    with FaultProxy(radicale.port) as proxy, radicale.book() as book, _http(proxy) as service:
        for deliver, writes in ((True, 1), (False, 0)):
            card = book.add("Ada")
            answered = proxy.arm(ReplaceReply(after=b"PUT ", answer=bad, deliver=deliver))
            assert service.put(card.href, content=card.content).status_code == 502
            answered.wait_fired()
            assert len(book.written(card.href)) == 1 + writes


def _http(proxy: FaultProxy) -> httpx.Client:
    auth = (SERVICE.user, SERVICE.password)
    return httpx.Client(base_url=f"http://{LOOPBACK}:{proxy.port}", auth=auth, timeout=PATIENCE, trust_env=False)


def _message() -> EmailMessage:
    message = EmailMessage()
    message["From"], message["To"], message["Subject"] = "effects@acme.test", "ada@example.com", "Hello"
    message["Message-ID"] = f"<{uuid.uuid4().hex}@acme.test>"
    message.set_content("Hello\n")
    return message


def _send(port: int, mail: MailServer, message: EmailMessage, *, timeout: float = PATIENCE) -> None:
    with smtplib.SMTP(LOOPBACK, port, timeout=timeout) as smtp:
        smtp.login(mail.user, mail.password)
        smtp.sendmail("effects@acme.test", ["ada@example.com"], message.as_bytes(policy=SMTP))
