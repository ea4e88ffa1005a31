"""The wiring of `effects evidence` and `effects checkpoint`: what is carried out of the ledger, to be believed elsewhere."""

from pathlib import Path
from typing import Annotated

from commands import options
from commands.voice import run


def evidence(
    operation: options.OperationName,
    out: Annotated[Path | None, options.opt("A new file; evidence-ID.json if left out.", "--out")] = None,
    as_json: options.Json = False,
) -> int:
    """Write everything about one operation into one file that is verified without this ledger."""
    from commands.evidence import write

    return run(as_json, lambda voice: write(voice, operation, out))


def checkpoint(
    out: Annotated[Path | None, options.opt("A new file; checkpoint-TIME.jsonl if left out.", "--out")] = None,
    who: options.As = "",
    key_file: options.KeyFile = None,
    as_json: options.Json = False,
) -> int:
    """Write the head of every trail into one signed file, to be kept elsewhere; `verify` compares with it."""
    from commands.checkpoint import write

    return run(as_json, lambda voice: write(voice, out, who, key_file))
