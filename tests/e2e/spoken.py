"""The command line as tests speak it: in this process, on a rig of their own."""

import asyncio
import contextlib
import io
import json
import sys
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import structlog

import starter
from tests.conftest import Rig


@dataclass(frozen=True)
class Spoken:
    """What one command said."""

    code: int
    out: str
    err: str

    @property
    def document(self) -> dict[str, Any]:
        """Its one JSON document."""
        found: dict[str, Any] = json.loads(self.out)
        return found


Effects = Callable[..., Awaitable[Spoken]]


def surroundings(rig: Rig) -> dict[str, str]:
    """What the command line needs to find this rig."""
    keys = rig.stack.household.folder / "keys"
    return {
        **rig.stack.environment(),
        "EFFECTS_OWNER_DSN": rig.stack.owner_dsn,
        "EFFECTS_KEYS_DIR": str(keys),
        "EFFECTS_PASSPHRASE_FILE": str(keys / "passphrase"),
    }


def speaking(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> Iterator[Effects]:
    """The body of a fixture: runs a command in this process, beside the worker's loop; with JSON unless told otherwise."""
    # stdout is the command's alone: the worker's log lines, made meanwhile in another thread, go elsewhere
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.__stderr__))
    for name, value in surroundings(rig).items():
        monkeypatch.setenv(name, value)

    def speak(arguments: list[str]) -> Spoken:
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = starter.main(arguments)
        return Spoken(code, out.getvalue(), err.getvalue())

    async def run(*arguments: str, as_json: bool = True) -> Spoken:
        return await asyncio.to_thread(speak, [*arguments, *(["--json"] if as_json else [])])

    yield run
    structlog.reset_defaults()
