"""What an audit makes of accounts, secrets and receipts, on a bank whose listing is a value. Against Stripe: tests/workflows."""

from dataclasses import dataclass, field, replace
from datetime import datetime
from uuid import NAMESPACE_OID, uuid4, uuid5

import pytest

import activities.audit
from activities.audit import Audit
from activities.messages import Audited, Auditing
from activities.ports import Ports
from ledger.audit import ListedEffect
from ledger.config import Document
from ledger.errors import Refused
from ledger.model import Standing
from ledger.states import State
from ledger.store import audits, incarnation
from ledger.store.verify import verify_some
from providers.port import Credential, EffectPage
from providers.registry import Registry
from tests.store.bank import ACCOUNT, Bank
from tests.store.conftest import OWNER, Book, Purse, document


@dataclass
class ListingBank(Bank):
    """Lists what it is told, on one page."""

    listed: list[ListedEffect] = field(default_factory=list)

    async def list_effects(self, credential: Credential, since: datetime | None, go_on: str) -> EffectPage:
        """All of it."""
        return EffectPage(True, tuple(self.listed))

    async def read_effect(self, credential: Credential, receipt: str) -> EffectPage:
        """The effects of that receipt; `while_asked` happens after they were read."""
        found = tuple(effect for effect in self.listed if effect.receipt == receipt)
        await self.while_asked()
        return EffectPage(True, found)


class PurseWithAHole(Purse):
    """One secret is missing."""

    def read(self, name: str) -> str:
        """All others are there."""
        if name == "lost":
            raise Refused("secret_missing", "put it back")
        return super().read(name)


@pytest.fixture(autouse=True)
def brisk(monkeypatch: pytest.MonkeyPatch) -> None:
    """No pauses between reads."""
    monkeypatch.setattr(activities.audit, "PACE", 0.0)


async def audit(book: Book, bank: Bank) -> Audited:
    """One audit of this bank."""
    ports = Ports(ledger=book.ledger, registry=Registry([bank]), secrets=PurseWithAHole(), worker="test")
    return await book.run(Audit(ports).audit, Auditing())


async def found(book: Book) -> list[tuple[str, str]]:
    """What does not fit at the bank: kind and name."""
    async with book.ledger.transaction() as conn:
        return [(row["kind"], row["name"]) for row in await audits.open_findings(conn) if row["provider"] == "bank"]


def losing(*tenants: str) -> Document:
    """The secrets of these tenants are missing."""
    made = document()
    bindings = [b.model_copy(update={"secret": "lost"}) if b.tenant in tenants else b for b in made.bindings]
    return made.model_copy(update={"bindings": tuple(bindings)})


async def test_a_missing_secret_leaves_an_account_out_only_if_nobody_else_is_bound_to_it(own_book: Book) -> None:
    """Both tenants share the account. An audit that is never complete lets nobody release a restored ledger.

    Red: tell of every tenant's problem, whether or not another one's credential was good enough.
    """
    await own_book.apply(losing("acme"))
    assert (await audit(own_book, ListingBank())).left_out == []
    await own_book.apply(losing("globex"))
    assert (await audit(own_book, ListingBank())).left_out == []
    await own_book.apply(losing("acme", "globex"))
    assert (await audit(own_book, ListingBank())).left_out == ["refund at bank acct_1 (test mode): put it back"]


async def test_an_effect_of_what_was_never_sent_is_found_before_it_expires(own_book: Book) -> None:
    """As after a restore: what was sent is forgotten, and waits for approval anew. Red: leave out what is not sent."""
    waits, sent = await own_book.asked(), await own_book.at(State.UNKNOWN)
    effects = [
        ListedEffect(f"re_{o.operation_id.hex}", Standing.GOOD, o.operation_id, (o.target,)) for o in (waits, sent)
    ]
    bank = ListingBank(listed=effects)
    await audit(own_book, bank)
    assert await found(own_book) == [("unsent", effects[0].receipt)]
    bank.listed = [replace(effects[0], standing=Standing.VOID), effects[1]]
    await audit(own_book, bank)
    assert await found(own_book) == []


async def test_a_receipt_that_turned_void_while_it_was_read_is_no_finding(own_book: Book) -> None:
    """It is not listed, is read by itself, and the ledger hears of it meanwhile. Red: read the ledger before the bank."""
    operation = await own_book.at(State.SUCCEEDED)
    assert operation.receipt is not None
    gone = ListedEffect(operation.receipt, Standing.VOID, operation.operation_id)

    @dataclass
    class Unlisted(ListingBank):
        async def list_effects(self, credential: Credential, since: datetime | None, go_on: str) -> EffectPage:
            return EffectPage(True)

    async def told() -> None:
        async with own_book.connection("postgres", autocommit=True) as conn:
            await conn.execute("update operations set standing = 'void'")

    await audit(own_book, Unlisted(listed=[gone], while_asked=told))
    assert await found(own_book) == []
    other = await own_book.at(State.SUCCEEDED)
    await audit(own_book, Unlisted(listed=[ListedEffect(str(other.receipt), Standing.VOID, other.operation_id)]))
    assert await found(own_book) == [("void", other.receipt)]


async def test_after_a_restore_an_audit_begins_its_listing_anew(own_book: Book) -> None:
    """One was under way when the backup was made, and a release rests on the next. What was made since stands on the pages
    that it had turned already: Stripe lists the newest first. Red: leave the page in `incarnation.begin`.
    """
    asked: list[str] = []

    @dataclass
    class Paged(ListingBank):
        async def list_effects(self, credential: Credential, since: datetime | None, go_on: str) -> EffectPage:
            asked.append(go_on)
            return EffectPage(True, tuple(self.listed) if not go_on else ())

    place = audits.Place("refund", "bank", ACCOUNT, False)
    async with own_book.ledger.transaction() as conn:
        stands = await audits.take_up(conn, place)
        await audits.go_on(conn, place, stands.began_at, "page 2")
    async with own_book.connection(OWNER) as conn:
        await incarnation.begin(conn, "mira", "a test")
        await conn.commit()
    forgotten = ListedEffect("re_1", Standing.GOOD, uuid5(NAMESPACE_OID, "forgotten"))
    assert (await audit(own_book, Paged(listed=[forgotten]))).left_out == []
    assert (asked, await found(own_book)) == ([""], [("without_record", "re_1")])


async def test_an_operation_whose_row_is_gone_differs_and_stops_no_audit(book: Book) -> None:
    """One that differed before, and was then deleted past the guards. Red: assert that it is there."""
    missing = uuid4()
    async with book.ledger.transaction() as conn:
        ((difference, about),) = await verify_some(conn, [missing])
    assert (difference.what, about) == ("its row is missing", missing)
