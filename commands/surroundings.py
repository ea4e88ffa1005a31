"""What the command line is told by its environment, and the one file that a running dev stack leaves for it."""

import os
import sys
from pathlib import Path

from activities.settings import Settings
from commands.exits import Misuse
from ledger.errors import Refused

STACK_FILE = Path(".cache/stack/environment")
_PREFIXES = ("EFFECTS_", "TEMPORAL_")


def settings() -> Settings:
    """The settings; without a ledger or a secrets folder those of the dev stack of this folder, which is said on stderr."""
    told = os.environ.get("EFFECTS_LEDGER_DSN") or os.environ.get("EFFECTS_SECRETS_DIR")
    if not told and STACK_FILE.is_file():
        _load(STACK_FILE)
    try:
        return Settings.load()
    except Refused as refused:
        raise Misuse(str(refused)) from None


def ledger_dsn(given: Settings) -> str:
    """The DSN to read with. Refused: `dsn_missing`."""
    if not given.ledger_dsn:
        raise Refused("dsn_missing", "set EFFECTS_LEDGER_DSN to the ledger's Postgres, or start `effects up` here")
    return given.ledger_dsn


def owner_dsn(given: Settings) -> str:
    """The owner's DSN, for what workers must not do. Refused: `owner_dsn_missing`."""
    if not given.owner_dsn:
        raise Refused("owner_dsn_missing", "set EFFECTS_OWNER_DSN to the DSN of the ledger's owner")
    return given.owner_dsn


def only_dev(given: Settings, what: str) -> None:
    """Return only in a dev stack. Refused: `not_dev`."""
    if not given.dev:
        raise Refused("not_dev", f"{what} exists in a dev stack only (EFFECTS_DEV=true)")


def keys_folder() -> Path:
    """Where private keys lie: EFFECTS_KEYS_DIR, or a folder of this user."""
    told = os.environ.get("EFFECTS_KEYS_DIR")
    return Path(told) if told else Path.home() / ".config" / "effects" / "keys"


def _load(file: Path) -> None:
    """Take over NAME=value lines, ours and Temporal's only; what is set already stays."""
    taken = 0
    for line in file.read_text().splitlines():
        name, equals, value = line.strip().partition("=")
        if equals and name.startswith(_PREFIXES):
            os.environ.setdefault(name, value)
            taken += 1
    print(f"using the dev stack of this folder: {taken} settings from {file}", file=sys.stderr)
