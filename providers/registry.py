"""Which adapter carries out which action: the one list of what this application can do to the outside."""

from collections.abc import Iterable, Iterator

from ledger.errors import Broken, Refused
from providers.carddav_contacts import CardDavCreate, CardDavUpdate
from providers.mail import Mail
from providers.port import Provider
from providers.stripe_refunds import StripeRefunds
from providers.tryton_customers import TrytonCustomers
from providers.tryton_delivery import TrytonDelivery
from providers.tryton_invoices import TrytonInvoices
from providers.tryton_rpc import Logins


class Registry:
    """Adapters by action; iterates over them in the order of their actions."""

    def __init__(self, providers: Iterable[Provider]) -> None:
        self._providers: dict[str, Provider] = {}
        for provider in providers:
            if provider.action in self._providers:
                raise Broken(f"two adapters carry out {provider.action}")
            self._providers[provider.action] = provider

    def for_action(self, action: str) -> Provider:
        """The adapter of this action; refuses one that nobody carries out."""
        found = self._providers.get(action)
        if found is None:
            known = ", ".join(sorted(self._providers))
            raise Refused("unknown_action", f"this ledger can carry out: {known}", field="action")
        return found

    def __iter__(self) -> Iterator[Provider]:
        return iter(sorted(self._providers.values(), key=lambda provider: provider.action))

    def __len__(self) -> int:
        return len(self._providers)


def default_registry(stripe_base_url: str | None = None) -> Registry:
    """All adapters of this application. A base URL replaces Stripe's own, for a stand-in or an egress gateway."""
    logins = Logins()
    return Registry(
        [
            StripeRefunds(stripe_base_url),
            TrytonInvoices(logins),
            TrytonDelivery(logins),
            TrytonCustomers(logins),
            CardDavCreate(),
            CardDavUpdate(),
            Mail(archived=True),
            Mail(archived=False),
        ]
    )
