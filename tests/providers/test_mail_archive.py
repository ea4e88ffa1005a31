"""An archive that answers as no server should: whatever it says, a reading is complete only if everything was read."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest

from providers.mail import Mail, build_request, message_bytes
from providers.port import Credential, Look
from tests.providers.rigs_mail import SINCE, a_mail_operation

pytestmark = pytest.mark.asyncio
OPERATION = a_mail_operation()
MAIL = message_bytes(build_request(OPERATION, {})).removesuffix(b".\r\n")
HEAD = MAIL[: MAIL.index(b"\r\n\r\n") + 4]
ARRIVED = b'INTERNALDATE "30-Nov-2026 09:15:28 +0000"'


def told(uid: int, items: bytes, literal: bytes) -> bytes:
    return b"* 1 FETCH (UID %d %b {%d}\r\n%b)\r\n" % (uid, items, len(literal), literal)


USUAL = {
    "greeting": b"* OK hello\r\n",
    "CAPABILITY": b"* CAPABILITY IMAP4rev1 AUTH=PLAIN\r\n{tag} OK done\r\n",
    "AUTHENTICATE": b"{tag} OK done\r\n",
    "LOGIN": b"{tag} OK done\r\n",
    "EXAMINE": b"* 1 EXISTS\r\n* OK [UIDVALIDITY 3] valid\r\n{tag} OK [READ-ONLY] done\r\n",
    "SEARCH": b"* SEARCH 7\r\n{tag} OK done\r\n",
    "headers": told(7, ARRIVED + b" RFC822.SIZE 900 BODY[HEADER.FIELDS (TO)]", HEAD) + b"{tag} OK done\r\n",
    "whole": told(7, b"BODY[]", MAIL) + b"{tag} OK done\r\n",
    "LOGOUT": b"* BYE\r\n{tag} OK bye\r\n",
}


@dataclass
class Archived:
    """An IMAP server that says what it is told to say."""

    script: dict[str, bytes]
    port: int = 0
    commands: list[str] = field(default_factory=list)

    async def talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await self._say(writer, "greeting", b"")
            while line := await reader.readline():
                tag, _, command = line.strip().partition(b" ")
                self.commands.append(command.decode())
                verb = command.split(b" ")[0].decode().upper()
                if verb == "AUTHENTICATE":
                    writer.write(b"+ \r\n")
                    await reader.readline()
                if verb == "UID":
                    kind = command.split(b" ")[1].decode().upper()
                    verb = kind if kind == "SEARCH" else "whole" if b"BODY.PEEK[])" in command else "headers"
                await self._say(writer, verb, tag)
        except ConnectionError:
            pass
        finally:
            writer.close()

    async def _say(self, writer: asyncio.StreamWriter, at: str, tag: bytes) -> None:
        said = self.script.get(at, USUAL[at])
        if not said:
            raise ConnectionError
        writer.write(said.replace(b"{tag}", tag))
        await writer.drain()


@asynccontextmanager
async def archived(**script: bytes) -> AsyncIterator[Archived]:
    server = Archived(script)
    listening = await asyncio.start_server(server.talk, "127.0.0.1", 0)
    server.port = listening.sockets[0].getsockname()[1]
    try:
        yield server
    finally:
        listening.close()


async def look(port: int, seconds: float = 5.0) -> Look:
    credential = Credential(
        "orders@acme.test",
        False,
        "gustav:sesame-12345",
        endpoint="smtp://127.0.0.1:1",
        archive=f"imap://127.0.0.1:{port}/INBOX",
    )
    return await Mail(archived=True, read_deadline_seconds=seconds).look(credential, OPERATION, SINCE)


async def test_the_usual_answers_are_a_complete_reading() -> None:
    """Three searches in a session of its own that cannot write: EXAMINE, and PEEK."""
    async with archived() as server:
        seen = await look(server.port)
    to, mark = OPERATION.arguments["to"], str(OPERATION.operation_id)
    assert seen.complete and [(e.receipt, e.ours) for e in seen.effects] == [(f"<{mark}@acme.test>", True)]
    assert server.commands == [
        "CAPABILITY",
        "AUTHENTICATE PLAIN",
        'EXAMINE "INBOX"',
        f'UID SEARCH HEADER Message-ID "<{mark}@acme.test>"',
        f'UID SEARCH HEADER X-Effect-Operation "{mark}"',
        f'UID SEARCH FROM "orders@acme.test" TO "{to}"',
        "UID FETCH 7 (UID INTERNALDATE RFC822.SIZE BODY.PEEK[HEADER.FIELDS "
        "(MESSAGE-ID X-EFFECT-OPERATION FROM TO CC SUBJECT)])",
        "UID FETCH 7 (UID BODY.PEEK[])",
        "LOGOUT",
    ]


@pytest.mark.parametrize(
    ("at", "said"),
    [
        ("greeting", b""),
        ("greeting", b"* BYE full\r\n"),
        ("greeting", b"220 mail.example.org ESMTP\r\n"),
        ("greeting", b"\xff\xfe\r\n"),
        ("CAPABILITY", b"* CAPABILITY NOTHING\r\n{tag} OK done\r\n"),
        ("CAPABILITY", b"{tag} BAD what?\r\n"),
        ("AUTHENTICATE", b"{tag} NO [AUTHENTICATIONFAILED] sesame-12345\r\n"),
        ("AUTHENTICATE", b""),
        ("EXAMINE", b"{tag} NO no such folder\r\n"),
        ("EXAMINE", b"{tag} BAD what?\r\n"),
        ("EXAMINE", b""),
        ("SEARCH", b"{tag} NO later\r\n"),
        ("SEARCH", b"{tag} BAD what?\r\n"),
        ("SEARCH", b"{tag} OK done\r\n"),
        ("SEARCH", b"* SEARCH x y\r\n{tag} OK done\r\n"),
        ("SEARCH", b"* BYE\r\n"),
        ("SEARCH", b""),
        ("SEARCH", b"* SEARCH 7 8\r\n{tag} OK done\r\n"),
        ("headers", b"{tag} OK done\r\n"),
        ("headers", b"{tag} NO later\r\n"),
        ("headers", told(8, b"BODY[]", HEAD) + b"{tag} OK done\r\n"),
        ("headers", b"* 1 FETCH (UID 7 FLAGS ())\r\n{tag} OK done\r\n"),
        ("headers", b"* 1 FETCH (UID 7 BODY[] {9000}\r\nshort)\r\n"),
        ("headers", b""),
        ("whole", b"{tag} OK done\r\n"),
        ("whole", b"{tag} NO expunged\r\n"),
        ("whole", told(8, b"BODY[]", MAIL) + b"{tag} OK done\r\n"),
        ("whole", b""),
    ],
)  # fmt: skip
async def test_what_was_not_read_to_its_end_is_not_complete(at: str, said: bytes) -> None:
    """A hit that could not be fetched may be our mail. Red: skip it; or take a search without an answer for an empty one."""
    async with archived(**{at: said}) as server:
        seen = await look(server.port, seconds=0.7)
    assert not seen.complete and seen.effects == () and seen.detail["why"]
    assert "sesame" not in str(seen)


async def test_no_hits_are_a_complete_absence() -> None:
    async with archived(SEARCH=b"* SEARCH\r\n{tag} OK done\r\n") as server:
        seen = await look(server.port)
    assert seen.complete and seen.effects == () and not any("FETCH" in command for command in server.commands)


async def test_hits_on_several_lines_are_all_hits() -> None:
    """Red: read the first line of a search only."""
    many = told(7, ARRIVED + b" RFC822.SIZE 900 BODY[]", HEAD) + told(9, ARRIVED + b" RFC822.SIZE 900 BODY[]", HEAD)
    both = b"* SEARCH 7\r\n* SEARCH 9\r\n{tag} OK done\r\n"
    async with archived(SEARCH=both, headers=many + b"{tag} OK done\r\n") as server:
        seen = await look(server.port)
    assert not seen.complete  # the mail of uid 9 was then not there
    assert "UID FETCH 7,9" in " ".join(server.commands)


async def test_a_mail_with_our_marker_that_is_far_too_large_is_not_ours() -> None:
    """It is not even fetched."""
    large = told(7, ARRIVED + b" RFC822.SIZE 900000000 BODY[]", HEAD) + b"{tag} OK done\r\n"
    async with archived(headers=large) as server:
        seen = await look(server.port)
    assert seen.complete and [(e.marked, e.matching) for e in seen.effects] == [(True, False)]
    assert not any("BODY.PEEK[])" in command for command in server.commands)


async def test_a_server_without_auth_plain_is_asked_to_log_in() -> None:
    async with archived(CAPABILITY=b"* CAPABILITY IMAP4rev1\r\n{tag} OK done\r\n") as server:
        seen = await look(server.port)
    assert seen.complete and 'LOGIN gustav "sesame-12345"' in server.commands


async def test_a_goodbye_that_goes_wrong_takes_nothing_back() -> None:
    """What was read stands. Red: let the error of LOGOUT end the reading."""
    async with archived(LOGOUT=b"* BYE\r\nrubbish\r\n") as server:
        seen = await look(server.port)
    assert seen.complete and len(seen.effects) == 1
