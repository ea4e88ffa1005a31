"""mail-devel, an SMTP and IMAP server nobody here wrote, and the second reader of the mailbox that all mail lands in.

Whatever is sent to whomever arrives in the INBOX of the one user, as in an archive that gets a copy of everything. It lives in
memory: a server that is killed, stopped or restarted has forgotten all mail. Tests that share one tell their mail apart by
Message-ID or recipient.
"""

import datetime
import imaplib
import ipaddress
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from email import message_from_bytes
from email.message import EmailMessage
from email.policy import default
from functools import cached_property
from pathlib import Path
from typing import ClassVar

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

from devstack.ports import LOOPBACK
from devstack.receiver import Receiver, ReceiverError

INBOX = "INBOX"
_SECONDS = 30.0
_VALID = datetime.timedelta(days=3650)


class MailServer(Receiver):
    """SMTP with login, and IMAP. The same user and password for both, and for every reader."""

    name: ClassVar[str] = "mail-devel"
    ready_words: ClassVar[str] = "IMAP service ["
    user = "effects"
    password = "effects-on-loopback-9"  # noqa: S105 - a server on loopback for tests has no secrets

    def __init__(self, root: Path, *, tls: bool = False) -> None:
        """With `tls`, SMTP demands STARTTLS before anything else; whom to trust is in `certificate`. IMAP has no TLS."""
        super().__init__(root, ports=3)
        self.certificate = self.root / "certificate.pem" if tls else None

    @property
    def smtp_port(self) -> int:
        """Where it takes mail."""
        return self.ports[0]

    @property
    def imap_port(self) -> int:
        """Where it shows mail."""
        return self.ports[1]

    def box(self, folder: str = INBOX) -> "MailBox":
        """A reader of its own."""
        return MailBox(self, folder)

    def command(self) -> list[str]:
        """Writes the certificate as well."""
        smtp, imap, smtps = (str(port) for port in self.ports)
        wanted = ["-m", "mail_devel", "--host", LOOPBACK, "--user", self.user, "--password", self.password]
        wanted += ["--smtp-port", smtp, "--imap-port", imap, "--no-http", "--auth-required"]
        if self.certificate is None:
            return wanted
        key = self.root / "key.pem"
        if not key.exists():
            _make_certificate(self.certificate, key)
        wanted += ["--cert", str(self.certificate), "--key", str(key), "--starttls-required", "--auth-require-tls"]
        # With a certificate it listens here as well; nobody should use it, since it offers no login there.
        return [*wanted, "--smtps-port", smtps]


@dataclass(frozen=True)
class Mail:
    """One message as the mailbox has it. `raw` is not byte for byte what was sent: the server writes it anew."""

    uid: int
    raw: bytes

    @cached_property
    def message(self) -> EmailMessage:
        """The message, parsed."""
        parsed = message_from_bytes(self.raw, policy=default)
        assert isinstance(parsed, EmailMessage)
        return parsed

    def header(self, name: str) -> str | None:
        """The first header of this name, decoded, or None."""
        found = self.message[name]
        return None if found is None else str(found).strip()

    @property
    def message_id(self) -> str | None:
        """With its angle brackets."""
        return self.header("Message-ID")

    @property
    def text(self) -> str:
        """The plain text, decoded, with single line ends."""
        body = self.message.get_body(("plain",))
        return "" if body is None else str(body.get_content()).replace("\r\n", "\n")

    @property
    def sender(self) -> str | None:
        """Of the envelope; None if it did not come by SMTP, or somebody took care to make it look so."""
        return self.header("X-MailFrom")

    @property
    def recipients(self) -> tuple[str, ...]:
        """Of the envelope: who really got it, blind copies too."""
        return tuple(part.strip() for part in (self.header("X-RcptTo") or "").split(",") if part.strip())


class MailBox:
    """One folder. Every call is a connection of its own: it sees what stands there now, and outlives restarts."""

    def __init__(self, server: MailServer, folder: str) -> None:
        """Nothing is opened yet."""
        self.folder = folder
        self._server = server

    def all(self) -> list[Mail]:
        """Everything, in the order of arrival."""
        with self._open() as imap:
            return _fetch(imap, "1:*")

    def with_header(self, name: str, value: str) -> list[Mail]:
        """Where a header of this name has exactly this value: IMAP's own search would find `op-10` for `op-1`."""
        return [mail for mail in self.all() if value in map(str.strip, mail.message.get_all(name, []))]

    def with_message_id(self, message_id: str) -> list[Mail]:
        """With this id, brackets included; two of them are two mails that people got."""
        return self.with_header("Message-ID", message_id)

    def to(self, recipient: str) -> list[Mail]:
        """What went to this address by the envelope."""
        # Bytes first: a box of hundreds of mails is asked often, and parsing one takes a millisecond.
        return [mail for mail in self.all() if recipient.encode() in mail.raw and recipient in mail.recipients]

    def append(self, message: EmailMessage) -> None:
        """Lay a message into the folder by hand, as a copy or a forgery; nobody was sent it, and it has no envelope."""
        with self._open() as imap:
            _expect_ok(imap.append(self.folder, "", "", message.as_bytes(policy=default.clone(linesep="\r\n"))))

    def delete(self, mail: Mail) -> None:
        """Remove it for good."""
        with self._open() as imap:
            _expect_ok(imap.uid("STORE", str(mail.uid), "+FLAGS", "(\\Deleted)"))
            _expect_ok(imap.expunge())

    @contextmanager
    def _open(self) -> Iterator[imaplib.IMAP4]:
        with imaplib.IMAP4(LOOPBACK, self._server.imap_port, timeout=_SECONDS) as imap:
            imap.login(self._server.user, self._server.password)
            _expect_ok(imap.select(self.folder))
            yield imap


def _fetch(imap: imaplib.IMAP4, uids: str) -> list[Mail]:
    _, parts = imap.uid("FETCH", uids, "(UID BODY.PEEK[])")
    found = []
    for part in parts:
        # Between the messages stand closing brackets, and whatever else the server felt like telling.
        if isinstance(part, tuple):
            words = part[0].split()
            found.append(Mail(int(words[words.index(b"(UID") + 1]), part[1]))
    return found


def _expect_ok(answer: tuple[str, object]) -> None:
    if answer[0] != "OK":
        raise ReceiverError(f"mail-devel answered {answer}")


def _make_certificate(certificate: Path, key: Path) -> None:
    """For `localhost` and the loopback address, signed by itself."""
    private = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    names = x509.SubjectAlternativeName([x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address(LOOPBACK))])
    now = datetime.datetime.now(datetime.UTC)
    built = (
        x509.CertificateBuilder(name, name, private.public_key(), x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + _VALID)
        .add_extension(names, critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(private, SHA256())
    )
    key.touch(mode=0o600)
    key.write_bytes(private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    certificate.write_bytes(built.public_bytes(Encoding.PEM))
