"""Exit codes, and the errors that end a command before it has a page to show."""

from enum import IntEnum


class Exit(IntEnum):
    """What a script may conclude from the exit code."""

    ASKED = 0
    MISUSED = 2
    REFUSED = 3
    SILENT = 4
    BROKEN = 5
    UNSETTLED = 6


# The same table in `effects --help`, in README and in tests.
MEANING: dict[Exit, str] = {
    Exit.ASKED: "as asked",
    Exit.MISUSED: "wrong usage: nothing was done",
    Exit.REFUSED: "the domain says no (refused, blocked, rejected): rule, field and what to do are printed",
    Exit.SILENT: "a server did not answer: its address is printed",
    Exit.BROKEN: "broken: verification found a difference, or a row that must not exist",
    Exit.UNSETTLED: "not settled yet: ask again",
}


class Misuse(Exception):
    """The command was called in a way that means nothing: exit code 2."""


class Silent(Exception):
    """A server did not answer: exit code 4. `address` is host:port, never a login."""

    def __init__(self, server: str, address: str, why: str, what_to_do: str = "") -> None:
        super().__init__(f"{server} at {address} did not answer ({why}){': ' + what_to_do if what_to_do else ''}")
        self.server = server
        self.address = address


class Unsettled(Exception):
    """What was asked for has not happened yet: exit code 6."""


def table() -> str:
    """The exit codes as lines of text."""
    return "\n".join(f"{code.value}  {words}" for code, words in MEANING.items())
