"""What the answers of a mail server mean, and which mails of an archive are ours. Pure and total: nothing here does I/O."""

import re
from datetime import datetime
from typing import Any

from ledger.model import Hint, Outcome, SeenEffect, Standing
from providers.mail_archive import ArchivedMail, Wanted
from providers.mail_wire import Dialogue, Phase
from providers.port import Classified
from providers.wire import words

_LOGIN_CODES = {530, 534, 535, 538}


def classify(said: Dialogue, message_id: str) -> Classified:
    """What one dialogue means for the attempt. Pure and total."""
    detail = {"phase": said.phase.value, "sent": said.sent, "code": said.code, "said": said.text, "ended": said.ended}
    detail = {name: value for name, value in detail.items() if value is not None and value != ""}
    code = said.code
    if not said.sent:
        asked = said.phase in (Phase.SENDER, Phase.RECIPIENT, Phase.DATA)
        if asked and code is not None and 500 <= code <= 599 and code not in _LOGIN_CODES:
            return Classified(Outcome.REFUSED, _kind_of_no(said), detail=detail)
        return Classified(Outcome.NO_EFFECT, Hint.NOT_SENT, detail=detail)
    if code is None or code == 421:  # a server that shuts down says 421 at any time: it need not be about our mail
        return Classified(Outcome.UNKNOWN, Hint.LOST, detail=detail)
    if code == 250:
        return Classified(Outcome.APPLIED, receipt=message_id, standing=Standing.GOOD, detail=detail)
    # RFC 5321, 4.2.5: after either the server must not try to deliver; ours stays the responsibility.
    if 400 <= code <= 499:
        return Classified(Outcome.NO_EFFECT, detail=detail)
    if 500 <= code <= 599:
        return Classified(Outcome.REFUSED, _kind_of_no(said), detail=detail)
    return Classified(Outcome.UNKNOWN, Hint.UNREADABLE, detail=detail)


def _kind_of_no(said: Dialogue) -> Hint:
    if said.code in range(500, 505) or said.code == 555:
        return Hint.MALFORMED
    if said.phase is Phase.SENDER or said.code in _LOGIN_CODES or re.match(r"5\.7\.\d", said.text):
        return Hint.NOT_PERMITTED
    return Hint.BUSINESS_RULE


def read_sightings(
    mails: tuple[ArchivedMail, ...], wanted: Wanted, since: datetime | None = None
) -> tuple[tuple[SeenEffect, str], ...]:
    """Each mail that bears our marker, or is what we would have sent without it (and no older), and its marker.

    The first true copy has the Message-ID as receipt, as the server's answer has it. Every further one is an effect of its
    own: somebody got the mail twice, or somebody can write to the archive.
    """
    used: set[str] = set()
    seen = []
    for mail in sorted(mails, key=lambda mail: (not mail.marked_for(wanted), mail.uid)):
        marked = mail.marked_for(wanted)
        same = mail.addressed_as(wanted) and mail.body_sha256 == wanted.body_sha256
        if not marked and (not same or (since is not None and (mail.received is None or mail.received < since))):
            continue
        # A mail with the marker of another operation is not ours, whatever else it says.
        matching = same and (not marked or set(mail.markers) <= {wanted.marker})
        receipt = _receipt(mail, wanted, used) if matching else _numbered(mail, wanted.message_id if marked else "")
        used.add(receipt)
        told = words(mail.markers[0]) if mail.markers else None
        summary: dict[str, Any] = {
            "message_id": words(mail.message_ids[0]) if mail.message_ids else None,
            "uid": f"{mail.uidvalidity}.{mail.uid}",
            "received": mail.received.isoformat() if mail.received is not None else None,
            "marker": told,
            "same_text": mail.body_sha256 == wanted.body_sha256,
            "same_addresses_and_subject": mail.addressed_as(wanted),
        }
        kept = {name: value for name, value in summary.items() if value is not None}
        seen.append((SeenEffect(receipt, Standing.GOOD, marked, matching, kept), told or ""))
    return tuple(seen)


def _receipt(mail: ArchivedMail, wanted: Wanted, used: set[str]) -> str:
    own = mail.message_ids[0] if len(mail.message_ids) == 1 else ""
    if mail.marked_for(wanted):
        own = wanted.message_id  # some servers write a Message-ID anew; the marker is beside it
    plain = own if re.fullmatch(r"<[!-~]{3,150}>", own) else ""
    return plain if plain and plain not in used else _numbered(mail, plain)


def _numbered(mail: ArchivedMail, message_id: str) -> str:
    return f"{message_id}#{mail.uidvalidity}.{mail.uid}"
