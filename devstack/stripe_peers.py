"""Peers: stand-ins for Stripe that nobody here wrote, so that our own stand-in and our adapter cannot be wrong together.

Each knows a part of Stripe. localstripe has payment intents and no idempotency keys; stripe-stateful-mock has keys that replay,
and charges only. By themselves both would listen to the whole network, so that a few lines here start them. Neither is changed
on disk, or imported by anything of ours.
"""

import shutil
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar

import httpx

from devstack.ports import LOOPBACK
from devstack.receiver import ROOT, Receiver, ReceiverError

SECRET = "sk_test_ofthepeers0000"  # noqa: S105 (known on loopback only)

_VENV = ROOT / ".venv-peers"
_MOCK = _VENV / "npm" / "node_modules" / "stripe-stateful-mock"
_SECONDS = 30.0
_EVERYTHING = 100_000
# It keeps its records in memory, and would also write all of them into one file in /tmp, whoever runs it.
_LOCALSTRIPE = """\
import sys
from aiohttp import web
from localstripe import resources, server
resources.Store.dump_to_disk = lambda store: None
web.run_app(server.app, host=sys.argv[1], port=int(sys.argv[2]), shutdown_timeout=1)
"""
_STATEFUL_MOCK = """\
const [mock, host, port] = process.argv.slice(1);
require(mock).createExpressApp().listen(Number(port), host, () => console.log("listening"));
"""


class Peer(Receiver):
    """One of the two. Its payments and refunds are gone when it ends. Tests use the methods; an adapter has its own client."""

    def __init__(self, root: Path) -> None:
        """`root` is the folder for its log."""
        super().__init__(root, ports=1)
        self._http = httpx.Client(auth=(SECRET, ""), timeout=_SECONDS, trust_env=False)

    @property
    def port(self) -> int:
        """Where it listens."""
        return self.ports[0]

    @property
    def base_url(self) -> str:
        """What stands before `/v1`."""
        return f"http://{LOOPBACK}:{self.port}"

    def pay(self, amount: int, currency: str = "eur") -> str:
        """A new payment; the id of what a refund of it names."""
        raise NotImplementedError

    def refund(self, payment: str, amount: int, **parameters: str) -> str:
        """Somebody else's refund of it; its id. There may be no room for it: ReceiverError, here as in all methods."""
        kind = "payment_intent" if payment.startswith("pi_") else "charge"
        return str(self.ask("POST", "refunds", {kind: payment, "amount": str(amount), **parameters})["id"])

    def refunds(self) -> list[dict[str, Any]]:
        """Every refund that it holds, by whomever, of whatever."""
        found = self.ask("GET", f"refunds?limit={_EVERYTHING}")
        if found["has_more"]:
            raise ReceiverError(f"{self.name} holds more refunds than it shows")
        return list(found["data"])

    def ask(self, verb: str, path: str, parameters: dict[str, str] | None = None) -> dict[str, Any]:
        """One call of its API, with nothing of the adapter in between."""
        answer = self._http.request(verb, f"{self.base_url}/v1/{path}", data=parameters)
        if answer.status_code != 200:
            raise ReceiverError(f"{self.name} answered {answer.status_code} to {verb} {path}: {answer.text[:200]}")
        told: dict[str, Any] = answer.json()
        return told

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._http.close()
        super().__exit__(kind, error, tb)


class LocalStripe(Peer):
    """localstripe: payment intents, and a refund for every request, whatever its key."""

    name: ClassVar[str] = "localstripe"
    ready_words: ClassVar[str] = "Running on"

    def program(self) -> Path:
        """The Python of `.venv-peers`; ReceiverError says how to build it."""
        python = _VENV / "bin" / "python"
        if not python.exists():
            raise ReceiverError(f"{python} is not there: `make .venv-peers/.installed` builds it")
        return python

    def command(self) -> list[str]:
        """On loopback."""
        return ["-u", "-c", _LOCALSTRIPE, LOOPBACK, str(self.port)]

    def pay(self, amount: int, currency: str = "eur") -> str:
        """A payment intent, confirmed with a test card."""
        card = {"payment_method": "pm_card_visa", "confirm": "true"}
        return str(self.ask("POST", "payment_intents", {"amount": str(amount), "currency": currency, **card})["id"])


class StatefulMock(Peer):
    """stripe-stateful-mock: charges, and keys under which the first answer is kept and replayed."""

    name: ClassVar[str] = "stripe-stateful-mock"
    ready_words: ClassVar[str] = "listening"

    @staticmethod
    def missing() -> str:
        """Why it cannot run here; empty when it can."""
        if shutil.which("node") is None:
            return "stripe-stateful-mock needs node and npm, and there is no node on the path"
        if not (_MOCK / "package.json").exists():
            return "stripe-stateful-mock is not installed: `make .venv-peers/npm/.installed` does that, and needs npm"
        return ""

    def program(self) -> Path:
        """Node; ReceiverError says what is missing."""
        if missing := self.missing():
            raise ReceiverError(missing)
        return Path(str(shutil.which("node")))

    def command(self) -> list[str]:
        """On loopback."""
        return ["-e", _STATEFUL_MOCK, str(_MOCK), LOOPBACK, str(self.port)]

    def pay(self, amount: int, currency: str = "eur", *, token: str = "tok_visa") -> str:  # noqa: S107 (a test card)
        """A charge without a payment intent. Tokens of its own make special ones, as `tok_createDispute` does."""
        return str(self.ask("POST", "charges", {"amount": str(amount), "currency": currency, "source": token})["id"])
