"""The outside systems of the other jobs, each with a fault proxy before it: an ERP, an address book, a mail server.

Real programs that nobody here wrote, spoken to through `proxies` only; `worlds` are second readers and writers that go
past the proxies: what they read is what happened.
"""

from collections.abc import Callable
from contextlib import ExitStack
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import Self

import psycopg

from devstack import radicale
from devstack.fault_proxy import FaultProxy
from devstack.mail import INBOX, MailBox, MailServer
from devstack.people import Access
from devstack.ports import LOOPBACK
from devstack.postgres import Postgres
from devstack.radicale import AddressBook, RadicaleServer
from devstack.tryton import names
from devstack.tryton.server import TrytonServer
from devstack.tryton.snapshot import ready_server
from devstack.tryton.world import TrytonWorld

SENDER = "orders@acme.test"


class Receivers:
    """Tryton, Radicale and mail-devel under one folder; Tryton's database lives in a Postgres that runs."""

    tryton: TrytonServer
    radicale: RadicaleServer
    mail: MailServer
    erp: TrytonWorld
    book: AddressBook
    box: MailBox

    def __init__(self, root: Path, postgres: Postgres, *, say: Callable[[str], None] = print) -> None:
        self._root = root
        self._postgres = postgres
        self._say = say
        self._exits = ExitStack()
        self.proxies: dict[str, FaultProxy] = {}

    def __enter__(self) -> Self:
        with ExitStack() as started:
            self.tryton = started.enter_context(ready_server(self._root / "tryton", self._postgres, say=self._say))
            self._say("Radicale and mail-devel …")
            self.radicale = started.enter_context(RadicaleServer(self._root / "radicale"))
            self.mail = started.enter_context(MailServer(self._root / "mail"))
            self.erp = started.enter_context(TrytonWorld(self.tryton))
            self.book = started.enter_context(self.radicale.book())
            self.box = self.mail.box()
            ports = {
                "tryton": int(self.tryton.base_url.rpartition(":")[2]),
                "carddav": self.radicale.port,
                "smtp": self.mail.smtp_port,
                "imap": self.mail.imap_port,
            }
            for name, port in ports.items():
                self.proxies[name] = started.enter_context(FaultProxy(port))
            self._exits = started.pop_all()
        self._postgres_since = _since(self._postgres)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._exits.close()

    def refresh(self) -> None:
        """Start the ERP anew if its Postgres was: its pool finds the new one after minutes, or never."""
        if self._postgres_since != (since := _since(self._postgres)):
            self.tryton.restart()
            self._postgres_since = since

    def access(self) -> dict[str, Access]:
        """What the configuration must say of each provider, and its secret."""
        company = self.erp.companies[names.ACME]
        at = {name: f"{LOOPBACK}:{proxy.port}" for name, proxy in self.proxies.items()}
        service, mail = names.SERVICE, self.mail
        return {
            "tryton": Access(f"erp/{company}", f"http://{at['tryton']}", f"{service.name}:{service.password}"),
            "carddav": Access(
                f"crm/{radicale.BOOK}",
                f"http://{at['carddav']}",
                f"{radicale.SERVICE.user}:{radicale.SERVICE.password}",
            ),
            "mail": Access(
                SENDER, f"smtp://{at['smtp']}", f"{mail.user}:{mail.password}", f"imap://{at['imap']}/{INBOX}"
            ),
        }


def _since(postgres: Postgres) -> datetime:
    """When the Postgres that runs now was started."""
    with psycopg.connect(postgres.dsn()) as connection:
        (told,) = connection.execute("select pg_postmaster_start_time()").fetchone() or ()
    return told  # type: ignore[no-any-return]
