"""The wiring of what only the owner of the database says: that it was restored, and that personal fields shall go."""

from typing import Annotated

import typer

from commands import options
from commands.voice import run

By = Annotated[str, typer.Option("--by", help="Who says so; told in the trail.", show_default=False)]


def restored(
    by: By,
    reason: Annotated[str, options.opt("From what, to when and why; told in the trail.")],
    as_json: options.Json = False,
) -> int:
    """Say that the ledger was restored from a backup: all sending is held until an audit and two releases (owner's DSN)."""
    from commands.restoring import restored

    return run(as_json, lambda voice: restored(voice, by, reason))


def erase(
    by: By,
    reason: Annotated[str, options.opt("Why, without a name; told in the trail, and never erased.")],
    operations: Annotated[list[str] | None, options.arg("Ended operations, named as in `effects show`.")] = None,
    ended_before: Annotated[str, options.opt("All that ended before this day, like 2026-05-01.")] = "",
    yes: Annotated[bool, options.opt("Without a further question.", "--yes")] = False,
    as_json: options.Json = False,
) -> int:
    """Erase the personal fields of operations that ended; digests, moves and amounts stay (owner's DSN)."""
    from commands.erasing import erase

    return run(as_json, lambda voice: erase(voice, operations or [], ended_before, by, reason, yes=yes))
