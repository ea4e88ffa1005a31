"""Runs the body of a command: shows its page, asks its questions, and turns every error into its exit code."""

import asyncio
import os
import sys
import traceback
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from commands.exits import Exit, Misuse, Silent, Unsettled
from commands.page import Page
from ledger.errors import Broken, LedgerError, Refused, Superseded, Unavailable
from ledger.fingerprint import visible


@dataclass(frozen=True)
class Voice:
    """How a command speaks while it works. With `as_json` only the last page reaches stdout."""

    as_json: bool = False

    def show(self, page: Page) -> None:
        """A page in between: what a person must read before a question."""
        if not self.as_json:
            page.print()

    def note(self, text: str) -> None:
        """What is going on, on stderr."""
        print(visible(text), file=sys.stderr, flush=True)

    def agreed(self, question: str, *, yes: bool) -> bool:
        """Whether a person says yes. Without a terminal nobody can be asked: `Misuse` says what to add."""
        if yes:
            return True
        if self.as_json or not sys.stdin.isatty():
            raise Misuse(f"{question} Nobody can be asked here: read what is shown, then add --yes")
        print(f"{visible(question)} [y/N] ", end="", file=sys.stderr, flush=True)
        return sys.stdin.readline().strip().lower() in ("y", "yes")


Body = Callable[[Voice], Awaitable[Page]]


def run(as_json: bool, body: Body) -> int:
    """Run a command to its exit code. Errors are told like pages: one JSON document on stdout, or a line on stderr."""
    try:
        page = asyncio.run(_finish(Voice(as_json), body))
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    except (Misuse, Silent, Unsettled, LedgerError) as error:
        return tell_error(error, as_json)
    except Exception as error:
        traceback.print_exc()  # a bug of ours: where it is belongs into a report
        return tell_error(error, as_json)
    try:
        if as_json:
            page.print_json()
        else:
            page.print()
    except BrokenPipeError:
        # whoever read us has enough (`| head`); Python would complain once more when it flushes at its end
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return int(page.exit)


async def _finish(voice: Voice, body: Body) -> Page:
    try:
        return await body(voice)
    finally:
        # Temporal's client can abort the interpreter when its loop closes at once (sdk-python#300).
        await asyncio.sleep(0.05)


def tell_error(error: Exception, as_json: bool) -> int:
    """Say what is wrong and what to do; the exit code."""
    code, kind = _KINDS.get(type(error), (Exit.BROKEN, "broken"))
    told: dict[str, object] = {"exit": code.value, "kind": kind, "message": visible(str(error))}
    if isinstance(error, Refused):
        told |= {"rule": error.rule, "field": error.field}
    if isinstance(error, Silent):
        told |= {"server": error.server, "address": error.address}
    if as_json:
        Page(document={"error": told}).print_json()
        return int(code)
    about = ""
    if isinstance(error, Refused):
        about = f" {error.rule}" + (f" ({visible(error.field)})" if error.field else "")
    print(f"{kind}{about}: {visible(str(error))}", file=sys.stderr, flush=True)
    return int(code)


_KINDS: dict[type[Exception], tuple[Exit, str]] = {
    Misuse: (Exit.MISUSED, "wrong usage"),
    Refused: (Exit.REFUSED, "refused"),
    Silent: (Exit.SILENT, "no answer"),
    Unavailable: (Exit.SILENT, "no answer"),
    Broken: (Exit.BROKEN, "broken"),
    Unsettled: (Exit.UNSETTLED, "not settled"),
    Superseded: (Exit.UNSETTLED, "not settled"),
}
