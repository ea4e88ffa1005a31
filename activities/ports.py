"""What every activity is given: the ledger, the adapters, the secrets, and this worker's own bounds."""

import os
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from activities.metrics import Meters
from ledger.config import Document
from ledger.contract import Contract, Timing
from ledger.errors import Refused
from ledger.model import Operation
from ledger.store.database import Ledger
from providers.port import Credential
from providers.registry import Registry


def no_seam(name: str) -> None:
    """Outside of crash tests nothing happens between two steps of a dispatch."""


async def wakes_nobody(workflow_id: str) -> None:
    """For tests and tools without a Temporal client."""


async def looks_at_none(operation: Operation) -> None:
    """For tests and tools without a Temporal client."""


class Runs(Protocol):
    """What Temporal says about the workflows of operations."""

    async def running(self) -> set[str]:
        """The ids of those that run, and are old enough to have recorded something. The listing may be behind."""

    async def runs(self, workflow_id: str) -> bool:
        """Whether this one runs, asked of the workflow itself."""


class NoRuns:
    """For tests and tools without a Temporal client."""

    async def running(self) -> set[str]:
        """None."""
        return set()

    async def runs(self, workflow_id: str) -> bool:
        """Never."""
        return False


def contract_of(operation: Operation, registry: Registry, timing: Timing | None) -> Contract:
    """The frozen contract after the first claim; before it the adapter's, with other bounds on a dispatch if given."""
    if operation.frozen_contract is not None:
        return Contract.from_frozen(operation.frozen_contract)
    contract = registry.for_action(operation.action).contract
    return contract if timing is None else contract.model_copy(update={"timing": timing})


@dataclass(frozen=True)
class Ports:
    """The outside of the activities. `seam` is called at named points of a dispatch so that tests can kill there."""

    ledger: Ledger
    registry: Registry
    secrets: "Secrets"
    worker: str
    timing: Timing | None = None  # replaces the contract's own bounds on a dispatch, at the first claim
    seam: Callable[[str], None] = no_seam
    wake: Callable[[str], Awaitable[None]] = wakes_nobody
    look_now: Callable[[Operation], Awaitable[None]] = looks_at_none  # starts the workflow where none runs
    runs: Runs = NoRuns()
    meters: Meters = field(default_factory=Meters)  # what the trail does not tell is counted here

    def contract_of(self, operation: Operation) -> Contract:
        """The contract that binds this operation."""
        return contract_of(operation, self.registry, self.timing)


class Secrets:
    """Secrets by name, from files in a folder or from the environment (EFFECTS_SECRET_NAME). Never printed."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder

    def credential(self, document: Document, operation: Operation) -> Credential:
        """The credential of the operation's account, leading to where it was sent, if it was.

        Refused: `secret_missing` says where it was looked for; `endpoint_changed`, as another server of the same name knows
        nothing of this effect.
        """
        found = self.credential_of(document, operation.tenant, operation.provider)
        if leads_elsewhere(operation, found.endpoint, found.archive):
            why = (
                "it was sent to another endpoint or archive than the binding names now: bind it back until it has ended"
            )
            raise Refused("endpoint_changed", why, field="endpoint")
        return found

    def credential_of(self, document: Document, tenant: str, provider: str) -> Credential:
        """The credential of a tenant at a provider, as the configuration binds it."""
        binding = document.binding(tenant, provider)
        return Credential(
            account=binding.account,
            livemode=binding.livemode,
            secret=self.read(binding.secret),
            connected=binding.connected,
            endpoint=binding.endpoint,
            archive=binding.archive,
        )

    def read(self, name: str) -> str:
        """The secret of this name. Refused: `secret_missing`, `secret_malformed`."""
        try:
            if self._folder is not None and (self._folder / name).is_file():
                return _usable(name, (self._folder / name).read_text().strip())
        except OSError as error:  # copied in with the rights of another account, as happens with containers
            told = f"the file of the secret {name} cannot be read by who runs this: {error.strerror}"
            raise Refused("secret_malformed", told) from None
        variable = f"EFFECTS_SECRET_{name.upper()}"
        if value := os.environ.get(variable):
            return _usable(name, value)
        raise Refused("secret_missing", f"put the secret {name} into a file of the secrets folder or into {variable}")


def leads_elsewhere(operation: Operation, endpoint: str, archive: str) -> bool:
    """Whether this is not where the operation's request was frozen for."""
    frozen = operation.frozen_request or {}
    return (frozen.get("endpoint", endpoint), frozen.get("archive", archive)) != (endpoint, archive)


def _usable(name: str, value: str) -> str:
    """A file that is being rewritten is empty for a moment: a reason to wait, never one to stop an operation."""
    if not value or not value.isascii() or not value.isprintable() or " " in value:
        raise Refused("secret_malformed", f"the secret {name} is empty or no header can carry it")
    return value


def boottime() -> float:
    """Seconds that go on while this process is stopped and while the machine sleeps; for the send guard only."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)
