"""Mails from templates, over SMTP: one mail to one recipient, with or without an archive that it can be found in.

1. A mail is named after its operation: Message-ID and a header carry the operation id. No server uses either to drop a
   second copy, so nothing is ever sent again by a machine.
2. `send_mail` finds a lost mail in the archive. `send_mail_unarchived` has none, and what it lost only people can settle.
3. The request is frozen without the text: template, fields and the text's digest make it again, or nothing is sent.
4. Applied means that our mail server has taken the mail over; whether it reaches a person, SMTP does not say.
5. The texts are in mail_templates.py, what answers and archived mails mean in mail_answers.py, the SMTP dialogue in
   mail_wire.py, the archive in mail_archive.py.
"""

import asyncio
import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from email.charset import QP, Charset
from email.header import Header
from email.message import Message
from email.policy import compat32
from email.utils import format_datetime
from typing import Any

from ledger.contract import Contract, LookupTerms, Source, Timing
from ledger.errors import Broken, Refused
from ledger.fingerprint import canonical_bytes, visible
from ledger.model import Hint, Operation, Outcome, SeenEffect
from providers.mail_answers import classify, read_sightings
from providers.mail_archive import MARKER, Archive, Reading, Wanted
from providers.mail_templates import Rendered, check_fields, render
from providers.mail_wire import Dialogue, Line, Login, Place, Tls, read_login, read_place, tls_context
from providers.port import AfterWrite, Classified, Credential, Look, Preflight, Request, SendGuard

ARCHIVED, UNARCHIVED = "send_mail", "send_mail_unarchived"
PROVIDER = "mail"
API_VERSION = "rfc5321"
ENDPOINT = "SMTP DATA"

_RFC = "https://www.rfc-editor.org/rfc/rfc5321#section-"
_READ_ON = "2026-11-30"


def _assumed(term: str, reason: str, url: str = "") -> Source:
    return Source(term=term, text=reason, url=url, read_on=_READ_ON, assumption=True)


_SOURCES = (
    Source(term="api_version", text="the standard that every mail server speaks", url=f"{_RFC}1", read_on=_READ_ON),
    Source(term="key", text="the same Message-ID twice is two mails; no standard has a server drop the second", read_on=_READ_ON,
           measured_on="mail-devel 0.18.1"),
    _assumed("processing", "RFC 5321, 4.5.3.2.6, has a client wait ten minutes for the answer to the final dot; a server "
             "that works longer must expect that nobody listens any more", f"{_RFC}4.5.3.2.6"),
)  # fmt: skip
_ARCHIVE_SOURCES = (
    Source(term="lookup.marker", text="both headers come back as they were sent, and IMAP searches for them",
           read_on=_READ_ON, measured_on="mail-devel 0.18.1"),
    _assumed("lookup.settling", "mail-devel shows a mail as soon as it has answered; a server that queues the archive's copy "
             "tries again within minutes, a search index lags less, and ten minutes are two such rounds"),
    _assumed("lookup.complete", "the archive gets one copy of each mail that the server took from us, as it was handed in: "
             "whoever sets the server up has to see to it"),
    _assumed("lookup.marker_editable", "whoever may write to the folder can delete a mail from it, and lay in a perfect "
             "forgery, which is then taken for ours: let nobody but the mail server write there"),
)  # fmt: skip
# Spam filters think between the final dot and the answer, some for a minute, and an answer given up on costs a person's
# time. Greetings and recipients are delayed on purpose by many a server, which is why S is longer too.
_TIMING = Timing(send_within=20.0, call_deadline=120.0)

CONTRACT = Contract(
    name=ARCHIVED,
    api_version=API_VERSION,
    lookup=LookupTerms(marker=f"Message-ID and {MARKER}", settling=600, complete=True, marker_editable=True),
    processing=600,
    timing=_TIMING,
    sources=_SOURCES + _ARCHIVE_SOURCES,
)
CONTRACT_UNARCHIVED = Contract(
    name=UNARCHIVED, api_version=API_VERSION, processing=600, timing=_TIMING, sources=_SOURCES
)


def _resolution(where: str, more: str) -> str:
    return f"""\
happened: the Message-ID as receipt, <OPERATION-ID@DOMAIN> with the domain of the account, and where it was seen: {where} A \
reply of the recipient counts.
did_not_happen: later than quiet_at: the log of the mail server for the minutes after each attempt shows no mail of this \
Message-ID accepted from us{more}. Its absence from a folder alone proves nothing: mails can be deleted.
undetermined: nobody can find out, and why: which logs no longer exist, and what the server's operator answered. The \
recipient may have got the mail, so ask before the same is sent under another operation."""


_LOG = 'the mail server\'s log ("250" or "queued" for this Message-ID)'
RESOLUTION = _resolution(
    f"in the archive, in {_LOG}, or at the recipient.", ", and nobody has deleted such a mail from the archive"
)
RESOLUTION_UNARCHIVED = _resolution(f"in {_LOG}, or at the recipient.", "")

_TARGET = re.compile(r"[A-Za-z0-9._/-]{1,80}")
_LOCAL = r"[A-Za-z0-9_+'&~=/-]+(\.[A-Za-z0-9_+'&~=/-]+)*"
_LABEL = r"[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
_ADDRESS = re.compile(rf"(?=.{{1,254}}\Z)(?=[^@]{{1,64}}@){_LOCAL}@{_LABEL}(\.{_LABEL})+")
_ARGUMENTS = ("to", "template", "fields")


def check_target(target: str) -> None:
    """Refuses everything but the caller's own code of the recipient, which says nothing about a person."""
    if not _TARGET.fullmatch(target):
        raise Refused(
            "target_malformed", "name the recipient by your own code: 1 to 80 of A-Z a-z 0-9 . _ / -", field="target"
        )


def pure_target(target: str) -> str | None:
    """The code itself: it has one spelling."""
    check_target(target)
    return target


def check_arguments(arguments: dict[str, Any]) -> None:
    """Refuses everything but {to, template, fields}: a plain address, a known template, and exactly its fields."""
    for name in arguments:
        if name not in _ARGUMENTS:
            where = visible(str(name)[:40])
            raise Refused("argument_unknown", f"a mail takes {', '.join(_ARGUMENTS)}, and nothing else", field=where)
    for name in _ARGUMENTS:
        if name not in arguments:
            raise Refused("argument_missing", f"a mail always names {', '.join(_ARGUMENTS)}", field=name)
    check_address(arguments["to"], "to")
    check_fields(arguments["template"], arguments["fields"])


def check_address(address: object, field: str) -> None:
    """Refuses everything but one plain ASCII address: no name, no comment, no quotes, no route."""
    if not isinstance(address, str) or not _ADDRESS.fullmatch(address):
        message = (
            "give one plain address like ada@example.org: no name, quotes, route or line break, at most 254 characters"
        )
        raise Refused("address_malformed", message, field=field)


def equivalence_key(target: str, arguments: Mapping[str, Any]) -> str:
    """Two mails with the same text for the same recipient are the same thing until a person says otherwise.

    The same for both actions. The address is in it as digest only, and in one case of letters.
    """
    content = canonical_bytes({"fields": arguments["fields"], "to": arguments["to"].lower()})
    return f"{ARCHIVED}:{target}:{arguments['template']}:{hashlib.sha256(content).hexdigest()}"


def build_request(operation: Operation, basis: Mapping[str, Any]) -> Request:
    """The one mail of this operation; it rests on nothing that was read."""
    wanted, arguments = wanted_by(operation), operation.arguments
    parameters = {
        "from": wanted.sender,
        "to": wanted.recipient,
        "message_id": wanted.message_id,
        "date": format_datetime(operation.proposed_at.astimezone(UTC)),
        "subject": wanted.subject,
        "template": arguments["template"],
        "fields": dict(arguments["fields"]),
        "body_sha256": wanted.body_sha256,
        MARKER: wanted.marker,
    }
    return Request(ENDPOINT, parameters, operation.idempotency_key, operation.account, API_VERSION)


def wanted_by(operation: Operation) -> Wanted:
    """What the archive's copy of this operation's mail must be. `Broken` where its template is gone."""
    marker = str(operation.operation_id)
    return _wanted(operation.account, operation.arguments, marker)


def _wanted(account: str, arguments: Mapping[str, Any], marker: str) -> Wanted:
    text = _rendered(arguments)
    message_id = f"<{marker}@{account.rpartition('@')[2]}>"
    return Wanted(account, arguments["to"], text.subject, text.body_sha256, message_id, marker)


def _rendered(arguments: Mapping[str, Any]) -> Rendered:
    try:
        return render(arguments["template"], arguments["fields"])
    except (KeyError, TypeError) as error:
        raise Broken(f"this code has no template {arguments.get('template')} with these fields") from error


def message_bytes(request: Request) -> bytes:
    """The message as it is sent: equal requests give equal bytes. `Broken` where the text is not the frozen one."""
    frozen = request.parameters
    text = _rendered(frozen)
    if text.body_sha256 != frozen["body_sha256"] or text.subject != frozen["subject"]:
        raise Broken(f"the text of {frozen['template']} changed since it was frozen: nothing is sent")
    charset = Charset("utf-8")
    charset.body_encoding = QP
    mail: Message[str | Header, str | Header] = Message(compat32.clone(linesep="\r\n", mangle_from_=False))
    mail["From"] = frozen["from"]
    mail["To"] = frozen["to"]
    # EmailMessage would lose a space between two encoded words when it folds.
    mail["Subject"] = Header(text.subject, "us-ascii" if text.subject.isascii() else "utf-8", header_name="Subject")
    mail["Date"] = frozen["date"]
    mail["Message-ID"] = frozen["message_id"]
    mail[MARKER] = frozen[MARKER]
    mail["Auto-Submitted"] = "auto-generated"  # RFC 3834: no machine shall answer it
    mail.set_payload(text.body, charset)
    return re.sub(rb"(?m)^\.", b"..", mail.as_bytes()) + b".\r\n"  # a rendered text ends with a line end


@dataclass(frozen=True)
class Way:
    """Where a credential leads: all that is needed for talking to its servers."""

    place: Place
    login: Login
    archive: Archive | None


def way_of(credential: Credential, *, archived: bool) -> Way:
    """Refused, with the field of the binding that is wrong and a sentence: what cannot be used. Touches no network."""
    check_address(credential.account, "account")
    place, login = read_place(credential.endpoint, "smtp", "endpoint"), read_login(credential.secret)
    folder = read_place(credential.archive, "imap", "archive") if archived else None
    if folder is not None and not login.user:
        raise Refused(
            "login_missing", f"an archive is read with a login: give one, or use {UNARCHIVED}", field="secret"
        )
    if any(found is not None and found.tls is not Tls.NONE for found in (place, folder)):
        tls_context()
    return Way(place, login, None if folder is None else Archive(folder, login))


class Mail:
    """The adapter of either action. Holds no connection and no secret between calls; safe under concurrency."""

    provider = PROVIDER

    def __init__(self, *, archived: bool, read_deadline_seconds: float = 20.0) -> None:
        """`archived` where the binding names an archive."""
        self.archived = archived
        self.action = ARCHIVED if archived else UNARCHIVED
        self.contract = CONTRACT if archived else CONTRACT_UNARCHIVED
        self.resolution = RESOLUTION if archived else RESOLUTION_UNARCHIVED
        self._read_deadline = read_deadline_seconds

    # The pure part of the adapter stands above, as functions; here they get their place in the port.
    check_arguments = staticmethod(check_arguments)
    check_target = staticmethod(check_target)
    pure_target = staticmethod(pure_target)
    equivalence_key = staticmethod(equivalence_key)
    build_request = staticmethod(build_request)

    def marker_of(self, operation: Operation) -> str:
        """The operation id as text: what the mail carries in a header of its own, and within its Message-ID."""
        return str(operation.operation_id)

    def link(self, operation: Operation) -> str:
        """No page: a mail has none."""
        return ""

    async def preflight(self, credential: Credential, target: str, arguments: dict[str, Any], marker: str) -> Preflight:
        """Look for this mail, and for one like it, in the archive; the facts are the mail as the recipient will read it."""
        text, wanted = _rendered(arguments), _wanted(credential.account, arguments, marker)
        facts: dict[str, Any] = {
            "from": wanted.sender,
            "to": wanted.recipient,
            "subject": text.subject,
            "text": text.body.splitlines(),
        }
        try:
            way = way_of(credential, archived=self.archived)
        except Refused as problem:
            facts["unfit"] = str(problem)
            return Preflight(True, target, unfit=problem.rule, unfit_field=problem.field, facts=facts)
        if way.archive is None:
            said = await self._knock(way, credential)
            facts["archive"] = "none: whether a mail like it was sent before cannot be looked up"
            return Preflight(said.accepted, target, facts=facts, detail=classify(said, "").detail)
        reading = await way.archive.find(wanted, self._read_deadline)
        seen = read_sightings(reading.mails, wanted)
        facts["archive"] = f"{len(seen)} mails in it are this one or like it"
        return Preflight(
            complete=reading.complete,
            target=target,
            effects=tuple(effect for effect, _ in seen),
            markers={effect.receipt: told for effect, told in seen if told},
            facts=facts,
            detail=_reading_detail(reading),
        )

    async def send(
        self,
        credential: Credential,
        operation: Operation,
        request: Request,
        contract: Contract,
        guard: SendGuard,
        after_write: AfterWrite,
    ) -> Classified:
        """Send the frozen mail once. Raises only `Broken`, before the first byte, and the caller's cancellation."""
        _check_frozen(credential, operation, request)
        message = message_bytes(request)
        deadline = asyncio.get_running_loop().time() + contract.timing.call_deadline
        try:
            way = way_of(credential, archived=self.archived)
        except Refused as problem:
            detail = {"sent": False, "ended": problem.rule, "said": str(problem)}
            return Classified(Outcome.NO_EFFECT, Hint.NOT_SENT, detail=detail)
        sender, recipient = request.parameters["from"], request.parameters["to"]
        line = Line(way.place, way.login, cut=(recipient,))
        said = await line.submit(sender, recipient, message, deadline, guard, after_write)
        return classify(said, request.parameters["message_id"])

    async def look(self, credential: Credential, operation: Operation, since: datetime) -> Look:
        """Search the archive anew for our mail, and for what could be ours with its marker taken away."""
        return await self._look(credential, operation, since)

    async def read_receipt(self, credential: Credential, operation: Operation, receipt: str) -> SeenEffect | None:
        """The mail of this receipt, if a look can see it; None when it cannot be read, for whatever reason."""
        seen = await self._look(credential, operation, None)
        return next((effect for effect in seen.effects if effect.receipt == receipt), None)

    async def whose(self, credential: Credential) -> Credential | None:
        """The account itself, if its servers let this secret in and accept the account as sender; None otherwise.

        SMTP names no owner of a login: that the sender is accepted is the most there is. A binding that no server can be
        asked about is given back as it is: preflight says what is wrong with it, and nothing is sent.
        """
        try:
            way = way_of(credential, archived=self.archived)
        except Refused:
            return credential
        opens = self._knock(way, credential)
        if way.archive is None:
            return credential if (await opens).accepted else None
        said, readable = await asyncio.gather(opens, way.archive.opens(self._read_deadline))
        return credential if said.accepted and readable else None

    async def _knock(self, way: Way, credential: Credential) -> Dialogue:
        deadline = asyncio.get_running_loop().time() + self._read_deadline
        return await Line(way.place, way.login).knock(credential.account, deadline)

    async def _look(self, credential: Credential, operation: Operation, since: datetime | None) -> Look:
        wanted = wanted_by(operation)
        try:
            way = way_of(credential, archived=self.archived)
        except Refused as problem:
            return Look(False, detail={"why": str(problem)})
        if way.archive is None:
            return Look(False, detail={"why": "there is no archive to look into"})
        reading = await way.archive.find(wanted, self._read_deadline)
        seen = read_sightings(reading.mails, wanted, since)
        return Look(reading.complete, tuple(effect for effect, _ in seen), detail=_reading_detail(reading))


def _reading_detail(reading: Reading) -> dict[str, Any]:
    told = {"complete": reading.complete, "hits": reading.hits, "why": reading.why, "said": reading.text}
    return {name: value for name, value in told.items() if value != ""}


def _check_frozen(credential: Credential, operation: Operation, request: Request) -> None:
    """Raise `Broken` unless the frozen request is the operation's own and the credential is for its account and mode."""
    owner = (operation.account, operation.livemode)
    built = replace(build_request(operation, {}), endpoint=request.endpoint, archive=request.archive)
    if request != built or (credential.account, credential.livemode) != owner:
        raise Broken("the frozen request or the credential is not the one of this operation: nothing is sent")
    try:
        check_address(request.parameters["from"], "account")
        check_address(request.parameters["to"], "to")
    except Refused as problem:
        raise Broken(f"the frozen request names no address: {problem}") from problem
