"""Errors of the ledger, a tree of four leaves; provider answers are values and never appear here.

LedgerError
├── Refused      the domain says no, finally; carries the field and the rule that was broken
├── Superseded   somebody else moved first: reload and settle on what is there
├── Unavailable  our own Postgres did not answer: try again; says nothing about whether something was sent
└── Broken       a bug or an impossible row: stop and page, never send
"""


class LedgerError(Exception):
    """Base of all errors that the ledger raises."""


class Refused(LedgerError):
    """The domain says no. `rule` is a stable word for machines, `field` the input it is about, the message says what to do."""

    def __init__(self, rule: str, message: str, *, field: str = "") -> None:
        super().__init__(message)
        self.rule = rule
        self.field = field


class Superseded(LedgerError):
    """A compare-and-set found another state, fence or event count than expected: reload and decide again."""


class Unavailable(LedgerError):
    """The ledger's Postgres did not answer. Whether something was sent is not said by this error."""


class Broken(LedgerError):
    """A row that must not exist, or code that must not run: nothing may be sent, a person must look."""
