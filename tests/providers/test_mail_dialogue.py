"""The SMTP dialogue against a scripted server: every phase, the guard, deadlines, one write. Its records are the judge."""

import asyncio
import base64
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from devstack.ports import free_port
from ledger.errors import Broken, Unavailable
from ledger.model import Hint, Operation, Outcome
from providers.mail import Mail, build_request, message_bytes
from providers.port import Classified, Credential
from tests.providers.rigs_mail import a_mail_operation, yes

pytestmark = pytest.mark.asyncio
SECRET = "gustav:sesame-12345"  # noqa: S105
HANG = b"hang"
NOT_SENT = (Outcome.NO_EFFECT, Hint.NOT_SENT)
LOST = (Outcome.UNKNOWN, Hint.LOST)
UNREADABLE = (Outcome.UNKNOWN, Hint.UNREADABLE)
USUAL = {
    "greeting": b"220 mail.example.org ESMTP\r\n",
    "EHLO": b"250-mail.example.org\r\n250-SIZE 1000000\r\n250 AUTH PLAIN LOGIN\r\n",
    "AUTH": b"235 2.7.0 welcome\r\n",
    "MAIL": b"250 2.1.0 ok\r\n",
    "RCPT": b"250 2.1.5 ok\r\n",
    "DATA": b"354 go on\r\n",
    "message": b"250 2.0.0 queued\r\n",
    "RSET": b"250 ok\r\n",
    "QUIT": b"221 bye\r\n",
}


@dataclass
class Scripted:
    """An SMTP server that says what it is told to say, and keeps what it heard."""

    script: dict[str, bytes] = field(default_factory=dict)
    port: int = 0
    connections: int = 0
    commands: list[str] = field(default_factory=list)
    messages: list[bytes] = field(default_factory=list)  # with their final dots
    pieces: bytearray = field(default_factory=bytearray)  # of a message that may have no end
    resets: int = 0
    seen: Callable[[str], Awaitable[None]] | None = None

    async def talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            await self._say(writer, "greeting")
            while line := await reader.readline():
                command = line.decode("ascii").strip()
                self.commands.append(command)
                verb = command.split(" ")[0].upper()
                if self.seen is not None:
                    await self.seen(verb)
                await self._say(writer, verb)
                if verb == "DATA":
                    await self._take(reader)
                    await self._say(writer, "message")
        except (ConnectionError, asyncio.IncompleteReadError):
            self.resets += 1
        finally:
            writer.close()

    async def _take(self, reader: asyncio.StreamReader) -> None:
        while not self.pieces.endswith(b"\r\n.\r\n"):
            piece = await reader.read(65536)
            if not piece:
                raise ConnectionError
            self.pieces += piece
        self.messages.append(bytes(self.pieces))
        self.pieces.clear()

    async def _say(self, writer: asyncio.StreamWriter, at: str) -> None:
        said = self.script.get(at, USUAL.get(at, b"500 what?\r\n"))
        if said == HANG:
            await asyncio.sleep(60)
        if said == b"":
            raise ConnectionError
        writer.write(said)
        await writer.drain()

    @property
    def verbs(self) -> list[str]:
        return [command.split(" ")[0] for command in self.commands]


@asynccontextmanager
async def scripted(**script: bytes) -> AsyncIterator[Scripted]:
    server = Scripted(script)
    tasks: set[asyncio.Task[None]] = set()

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        await server.talk(reader, writer)

    listening = await asyncio.start_server(talk, "127.0.0.1", 0)
    server.port = listening.sockets[0].getsockname()[1]
    try:
        yield server
    finally:
        listening.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def credential_for(port: int, secret: str = SECRET) -> Credential:
    return Credential("orders@acme.test", False, secret, endpoint=f"smtp://127.0.0.1:{port}")


async def send(
    port: int,
    operation: Operation,
    *,
    guard: Any = yes,
    after_write: Callable[[], None] = lambda: None,
    seconds: float = 5.0,
    secret: str = SECRET,
) -> Classified:
    adapter = Mail(archived=False)
    timing = adapter.contract.timing.model_copy(update={"call_deadline": seconds})
    contract = adapter.contract.model_copy(update={"timing": timing})
    request = adapter.build_request(operation, {})
    return await adapter.send(credential_for(port, secret), operation, request, contract, guard, after_write)


async def test_one_mail_is_one_dialogue() -> None:
    operation = a_mail_operation("send_mail_unarchived")
    async with scripted() as server:
        seen = await send(server.port, operation)
        await asyncio.sleep(0.05)
    to = operation.arguments["to"]
    plain = base64.b64encode(b"\0gustav\0sesame-12345").decode()
    assert server.commands == [
        "EHLO [127.0.0.1]",
        f"AUTH PLAIN {plain}",
        "MAIL FROM:<orders@acme.test>",
        f"RCPT TO:<{to}>",
        "DATA",
        "QUIT",
    ]
    assert server.messages == [message_bytes(build_request(operation, {}))]
    assert (seen.outcome, seen.receipt) == (Outcome.APPLIED, f"<{operation.operation_id}@acme.test>")
    assert seen.detail == {"phase": "message", "sent": True, "code": 250, "said": "2.0.0 queued"}


@pytest.mark.parametrize(
    ("at", "said", "wanted", "told"),
    [
        ("greeting", b"", NOT_SENT, 0),
        ("greeting", b"554 no service\r\n", NOT_SENT, 0),
        ("greeting", b"421 full\r\n", NOT_SENT, 0),
        ("greeting", b"HTTP/1.1 200 OK\r\n\r\n", NOT_SENT, 0),
        ("greeting", b"220 " + b"x" * 100_000, NOT_SENT, 0),
        ("EHLO", b"", NOT_SENT, 0),
        ("EHLO", b"500 what?\r\n", NOT_SENT, 0),
        ("EHLO", b"250 mail.example.org\r\n", NOT_SENT, 0),
        ("EHLO", b"250-mail.example.org\r\n250 AUTH CRAM-MD5 XOAUTH2\r\n", NOT_SENT, 0),
        ("EHLO", b"\xff\xfe\r\n", NOT_SENT, 0),
        ("AUTH", b"535 5.7.8 wrong\r\n", NOT_SENT, 0),
        ("AUTH", b"454 later\r\n", NOT_SENT, 0),
        ("AUTH", b"334 \r\n", NOT_SENT, 0),
        ("AUTH", b"", NOT_SENT, 0),
        ("MAIL", b"", NOT_SENT, 0),
        ("MAIL", b"451 later\r\n", NOT_SENT, 0),
        ("MAIL", b"530 5.7.0 log in\r\n", NOT_SENT, 0),
        ("MAIL", b"550 5.7.1 not as this\r\n", (Outcome.REFUSED, Hint.NOT_PERMITTED), 0),
        ("RCPT", b"", NOT_SENT, 0),
        ("RCPT", b"450 greylisted\r\n", NOT_SENT, 0),
        ("RCPT", b"252 perhaps\r\n", NOT_SENT, 0),
        ("RCPT", b"550 5.1.1 unknown\r\n", (Outcome.REFUSED, Hint.BUSINESS_RULE), 0),
        ("RCPT", b"554 5.7.1 no relay\r\n", (Outcome.REFUSED, Hint.NOT_PERMITTED), 0),
        ("RCPT", b"garbage\r\n", NOT_SENT, 0),
        ("DATA", b"", NOT_SENT, 0),
        ("DATA", b"451 later\r\n", NOT_SENT, 0),
        ("DATA", b"250 ok\r\n", NOT_SENT, 0),
        ("DATA", b"554 no recipients\r\n", (Outcome.REFUSED, Hint.BUSINESS_RULE), 0),
        ("message", b"", LOST, 1),
        ("message", b"250", LOST, 1),
        ("message", b"250-queued\r\n", LOST, 1),
        ("message", b"250-a\r\n250 b\r\n", (Outcome.APPLIED, Hint.NONE), 1),
        ("message", b"250\r\n", (Outcome.APPLIED, Hint.NONE), 1),
        ("message", b"421 shutting down\r\n", LOST, 1),
        ("message", b"451 later\r\n", (Outcome.NO_EFFECT, Hint.NONE), 1),
        ("message", b"550-5.7.1 spam\r\n550 5.7.1 go away\r\n", (Outcome.REFUSED, Hint.NOT_PERMITTED), 1),
        ("message", b"552 too big\r\n", (Outcome.REFUSED, Hint.BUSINESS_RULE), 1),
        ("message", b"220 hello\r\n", UNREADABLE, 1),
        ("message", b"<html>\r\n", UNREADABLE, 1),
        ("message", b"\r\n", UNREADABLE, 1),
        ("message", b"\x00\x01\r\n", UNREADABLE, 1),
        ("message", b"25\r\n", UNREADABLE, 1),
        ("message", b"250" + b"x" * 100_000 + b"\r\n", UNREADABLE, 1),
    ],
)  # fmt: skip
async def test_what_a_server_may_say_at_every_step(
    at: str, said: bytes, wanted: tuple[Outcome, Hint], told: int
) -> None:
    """The answer, and how many messages had come by then. After a no nothing more is said but goodbye."""
    written: list[int] = []
    async with scripted(**{at: said}) as server:
        seen = await send(server.port, a_mail_operation("x"), after_write=lambda: written.append(1), seconds=1.0)
        assert server.connections == 1
    assert (seen.outcome, seen.hint) == wanted
    assert (len(server.messages), len(written)) == (told, told)
    assert seen.detail["sent"] is bool(told) and "sesame" not in str(seen)
    if at in ("MAIL", "RCPT"):
        assert "DATA" not in server.verbs


@pytest.mark.parametrize("at", ["greeting", "EHLO", "AUTH", "MAIL", "RCPT", "DATA", "message"])
async def test_the_deadline_is_total(at: str) -> None:
    async with scripted(**{at: HANG}) as server:
        began = asyncio.get_running_loop().time()
        seen = await send(server.port, a_mail_operation("x"), seconds=0.3)
        assert asyncio.get_running_loop().time() - began < 2
    assert (seen.outcome, seen.hint) == (LOST if at == "message" else NOT_SENT)
    assert seen.detail["ended"] == "deadline"


async def test_a_guard_that_says_no_leaves_the_transaction_empty() -> None:
    """Nothing follows 354, not even a dot or QUIT, and the end is a reset. Red: drop the answer of `_ask_guard`."""
    written: list[int] = []

    async def no() -> bool:
        return False

    async with scripted() as server:
        seen = await send(server.port, a_mail_operation("x"), guard=no, after_write=lambda: written.append(1))
        await asyncio.sleep(0.05)
        assert (server.verbs[-1], server.messages, bytes(server.pieces), server.resets) == ("DATA", [], b"", 1)
    assert (seen.outcome, seen.hint, seen.detail["ended"], written) == (*NOT_SENT, "guard", [])


async def test_a_guard_that_cannot_answer_is_a_no() -> None:
    """Red: let errors pass as yes."""
    for error in (Unavailable("no database"), TimeoutError(), RuntimeError("x")):

        async def away(raised: Exception = error) -> bool:
            raise raised

        async with scripted() as server:
            seen = await send(server.port, a_mail_operation("x"), guard=away)
            await asyncio.sleep(0.02)
            assert server.messages == [] and bytes(server.pieces) == b""
        assert seen.hint is Hint.NOT_SENT and seen.detail["ended"] == f"guard raised {type(error).__name__}"


async def test_a_broken_guard_stops_everything() -> None:
    async def broken() -> bool:
        raise Broken("impossible row")

    async with scripted() as server:
        with pytest.raises(Broken):
            await send(server.port, a_mail_operation("x"), guard=broken)
        await asyncio.sleep(0.02)
        assert server.messages == [] and bytes(server.pieces) == b""


async def test_a_deadline_within_the_guard_is_not_sent() -> None:
    async def slow() -> bool:
        await asyncio.sleep(60)
        return True

    async with scripted() as server:
        seen = await send(server.port, a_mail_operation("x"), guard=slow, seconds=0.3)
        await asyncio.sleep(0.02)
        assert server.messages == [] and bytes(server.pieces) == b""
    assert (seen.outcome, seen.hint) == NOT_SENT


async def test_the_guard_is_asked_once_after_354_and_the_write_is_told_once() -> None:
    """Red: ask the guard before DATA, or tell the write before it."""
    order: list[str] = []

    async def seen_by_server(verb: str) -> None:
        order.append(verb)

    async def guard() -> bool:
        order.append("guard")
        return True

    async with scripted() as server:
        server.seen = seen_by_server
        seen = await send(server.port, a_mail_operation("x"), guard=guard, after_write=lambda: order.append("written"))
        await asyncio.sleep(0.02)
    assert seen.outcome is Outcome.APPLIED
    assert order == ["EHLO", "AUTH", "MAIL", "RCPT", "DATA", "guard", "written", "QUIT"]


async def test_the_loop_does_not_turn_between_guard_and_first_byte_and_the_mail_is_one_write() -> None:
    """Work that became ready during the guard runs after the write. Red: put an await behind `_ask_guard`."""
    order: list[str] = []
    writes: list[bytes] = []
    operation = a_mail_operation("x")
    message = message_bytes(build_request(operation, {}))

    async def guard() -> bool:
        asyncio.get_running_loop().call_soon(order.append, "other work")
        return True

    transport = asyncio.selector_events._SelectorSocketTransport  # type: ignore[attr-defined]
    original = transport.write

    def write(self: Any, content: bytes) -> None:
        if bytes(content[:6]) == b"From: ":
            order.append("first byte")
            writes.append(bytes(content))
        original(self, content)

    async with scripted() as server:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(transport, "write", write)
            await send(server.port, operation, guard=guard, after_write=lambda: order.append("written"))
        assert server.messages == [message]
    assert order == ["first byte", "written", "other work"]
    assert writes == [message]


async def test_a_server_that_spoke_out_of_turn_gets_no_message() -> None:
    """A "250" that came with the 354 would pass for the answer to the message. Red: drop the look into the buffer."""
    async with scripted(DATA=b"354 go on\r\n250 queued\r\n") as server:
        seen = await send(server.port, a_mail_operation("x"))
        await asyncio.sleep(0.02)
        assert server.messages == [] and bytes(server.pieces) == b""
    assert (seen.outcome, seen.hint, seen.detail["ended"]) == (*NOT_SENT, "the server spoke out of turn")


async def test_what_a_server_says_while_the_guard_is_asked_is_no_answer_to_the_message() -> None:
    """The message is refused in the end, and a "250" from before it is not its answer."""
    writers: list[asyncio.StreamWriter] = []

    async def reply(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        await scripted_server.talk(reader, writer)

    async def guard() -> bool:
        writers[0].write(b"250 queued\r\n")
        await writers[0].drain()
        await asyncio.sleep(0.05)
        return True

    scripted_server = Scripted({"message": b"554 refused\r\n"})
    listening = await asyncio.start_server(reply, "127.0.0.1", 0)
    async with listening:
        seen = await send(listening.sockets[0].getsockname()[1], a_mail_operation("x"), guard=guard)
    assert seen.outcome is Outcome.REFUSED


async def test_a_server_that_hung_up_while_the_guard_was_asked_got_nothing() -> None:
    """Red: write to a connection that is known to be gone, and call it unknown."""
    writers: list[asyncio.StreamWriter] = []

    async def reply(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        await scripted_server.talk(reader, writer)

    async def guard() -> bool:
        writers[0].close()
        await asyncio.sleep(0.05)
        return True

    scripted_server = Scripted()
    listening = await asyncio.start_server(reply, "127.0.0.1", 0)
    async with listening:
        seen = await send(listening.sockets[0].getsockname()[1], a_mail_operation("x"), guard=guard)
    assert (seen.outcome, seen.hint, seen.detail["ended"]) == (*NOT_SENT, "the server hung up")


async def test_a_write_that_breaks_is_told_and_unknown() -> None:
    """Nobody knows what left. Red: move `after_write` out of the finally, or `_sent` behind the write."""
    written: list[int] = []
    transport = asyncio.selector_events._SelectorSocketTransport  # type: ignore[attr-defined]
    original = transport.write

    def write(self: Any, content: bytes) -> None:
        if bytes(content[:6]) == b"From: ":
            raise RuntimeError("broken")
        original(self, content)

    async with scripted() as server:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(transport, "write", write)
            seen = await send(server.port, a_mail_operation("x"), after_write=lambda: written.append(1))
    assert (seen.outcome, seen.hint, written) == (*LOST, [1])


async def test_the_caller_s_cancellation_passes_through_and_resets_the_line() -> None:
    """What the kernel has not sent yet is thrown away. Red: close in good order, and the rest is still delivered."""
    arrived = asyncio.Event()

    async def seen_by_server(verb: str) -> None:
        if verb == "DATA":
            arrived.set()

    async def held() -> bool:
        await asyncio.sleep(60)
        return True

    async with scripted() as server:
        server.seen = seen_by_server
        task = asyncio.create_task(send(server.port, a_mail_operation("x"), guard=held))
        await arrived.wait()
        await asyncio.sleep(0.02)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.sleep(0.05)
        assert server.messages == [] and bytes(server.pieces) == b"" and server.resets == 1


async def test_a_message_that_the_network_does_not_take_is_thrown_away_with_the_deadline() -> None:
    """A server that stops reading: what waits in our buffers must not arrive later. Red: `close` instead of `abort`."""
    go_on = asyncio.Event()
    received = bytearray()
    ended: list[str] = []

    async def reply(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(USUAL["greeting"])
        for verb in ("EHLO", "AUTH", "MAIL", "RCPT", "DATA"):
            await reader.readline()
            writer.write(USUAL[verb])
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        await go_on.wait()
        writer.transport.resume_reading()  # type: ignore[attr-defined]
        try:
            while piece := await reader.read(65536):
                received.extend(piece)
            ended.append("orderly")
        except ConnectionError:
            ended.append("reset")

    operation = a_mail_operation("x")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("providers.mail.message_bytes", lambda _: b"From: x\r\n" + b"x" * 30_000_000 + b"\r\n.\r\n")
        listening = await asyncio.start_server(reply, "127.0.0.1", 0)
        async with listening:
            seen = await send(listening.sockets[0].getsockname()[1], operation, seconds=0.5)
            go_on.set()
            while not ended:
                await asyncio.sleep(0.01)
    assert (seen.outcome, seen.hint) == LOST
    assert ended == ["reset"] and not received.endswith(b".\r\n")


async def test_login_by_two_steps_where_nothing_else_is_offered() -> None:
    """AUTH LOGIN: the server asks for both parts."""
    async with scripted(EHLO=b"250-x\r\n250 AUTH LOGIN\r\n", AUTH=b"334 VXNlcm5hbWU6\r\n") as server:
        server.script[base64.b64encode(b"gustav").decode().upper()] = b"334 UGFzc3dvcmQ6\r\n"
        server.script[base64.b64encode(b"sesame-12345").decode().upper()] = b"235 ok\r\n"
        seen = await send(server.port, a_mail_operation("x"))
    assert seen.outcome is Outcome.APPLIED


async def test_one_login_is_tried_once() -> None:
    """Wrong passwords lock accounts: the library's own `login` would try every method. Red: use it."""
    async with scripted(AUTH=b"535 wrong\r\n", EHLO=b"250-x\r\n250 AUTH PLAIN LOGIN CRAM-MD5\r\n") as server:
        await send(server.port, a_mail_operation("x"))
    assert server.verbs.count("AUTH") == 1


async def test_a_server_without_login_is_spoken_to_without_one() -> None:
    """Whose it is cannot be proved then; that it takes this sender is all there is."""
    async with scripted(EHLO=b"250 mail.example.org\r\n") as server:
        seen = await send(server.port, a_mail_operation("x"), secret=":")
        credential = credential_for(server.port, ":")
        assert await Mail(archived=False).whose(credential) == credential
        server.script["MAIL"] = b"553 not you\r\n"
        assert await Mail(archived=False).whose(credential) is None
    assert seen.outcome is Outcome.APPLIED and "AUTH" not in server.verbs


async def test_asking_whose_it_is_has_no_effect() -> None:
    async with scripted() as server:
        credential = credential_for(server.port)
        assert await Mail(archived=False).whose(credential) == credential
        await asyncio.sleep(0.02)
    assert server.verbs == ["EHLO", "AUTH", "MAIL", "RSET", "QUIT"] and server.messages == []


async def test_an_answer_repeats_neither_secret_nor_recipient() -> None:
    """Evidence is kept for ever. Red: keep the server's words as they are."""
    operation = a_mail_operation("x")
    to = operation.arguments["to"]
    plain = base64.b64encode(b"\0gustav\0sesame-12345").decode()
    said = f"550 5.1.1 <{to.upper()}> sesame-12345 {plain}\x1b[31m\r\n".encode()
    async with scripted(RCPT=said) as server:
        seen = await send(server.port, operation)
    assert seen.detail["said"] == "5.1.1 <[cut]> [cut] [cut] [31m"


async def test_nothing_listens() -> None:
    seen = await send(free_port(), a_mail_operation("x"))
    assert (seen.outcome, seen.hint, seen.detail["ended"]) == (*NOT_SENT, "ConnectionRefusedError")


async def test_what_lies_in_the_clear_before_tls_is_forgotten() -> None:
    """Somebody in the middle puts an answer behind the 220 of STARTTLS: the handshake ends there, and no login was sent."""
    async with scripted(EHLO=b"250-x\r\n250 STARTTLS\r\n", STARTTLS=b"220 go on\r\n250 AUTH PLAIN\r\n") as server:
        adapter, operation = Mail(archived=False), a_mail_operation("x")
        credential = replace(credential_for(server.port), endpoint=f"smtp+starttls://127.0.0.1:{server.port}")
        request = adapter.build_request(operation, {})
        timing = adapter.contract.timing.model_copy(update={"call_deadline": 0.5})
        brief = adapter.contract.model_copy(update={"timing": timing})
        seen = await adapter.send(credential, operation, request, brief, yes, lambda: None)
        assert not any("AUTH" in command for command in server.commands)
    assert (seen.outcome, seen.hint) == NOT_SENT
