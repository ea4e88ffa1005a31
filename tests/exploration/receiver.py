"""The receiver of the model: effects, a key table, requests in the air, versions; and what readings and looks show of it.

It keeps what its contract promises and no more: a key is honoured for its lifetime and then gone, a request is worked on
within the time that `quiet_at` assumes, an effect is listed after the settling time, a condition is checked when it applies.
"""

from typing import NamedTuple

from ledger.contract import Contract
from ledger.model import Hint, Outcome, Standing
from tests.exploration.bench import Effect, Seen
from tests.exploration.shapes import DEADLINE, LIFETIME, PROCESSING, ROLLING

# outcome, hint, stored, receipt, standing
Answer = tuple[Outcome, Hint, bool, int | None, Standing | None]
LOST: Answer = (Outcome.UNKNOWN, Hint.LOST, False, None, None)
NOT_SENT: Answer = (Outcome.NO_EFFECT, Hint.NOT_SENT, False, None, None)


class Kept(NamedTuple):
    """What the receiver keeps for a key."""

    first: int  # the tick of its first use
    answer: str  # applied, refused, error
    receipt: int = 0


class Request(NamedTuple):
    """A request that was sent and not yet worked on, or an effect that a stored 5xx may still roll forward."""

    owner: int
    fence: int
    until: int  # the last tick at which it can have its effect
    free: bool = False  # it may take its time
    rolls: bool = False


class World(NamedTuple):
    """Everything at the receiver."""

    effects: tuple[Effect, ...] = ()
    keys: tuple[Kept | None, ...] = (None,)
    air: tuple[Request, ...] = ()
    edited: bool = False  # somebody else changed the record
    slow: bool = False  # what is made from now on is pending at first

    @property
    def moved(self) -> bool:
        """Whether the record is at another version than at first."""
        return self.edited or bool(self.effects)

    def without(self, request: Request) -> "World":
        """The same with this request no longer in the air."""
        air = list(self.air)
        air.remove(request)
        return self._replace(air=tuple(air))


class Receiver:
    """What becomes of requests, by one contract."""

    def __init__(self, contract: Contract) -> None:
        self.contract = contract
        self.settling = 0 if contract.lookup is None else 1

    def arrives(self, world: World, owner: int, fence: int, tick: int) -> World:
        """A request whose bytes leave now."""
        return world._replace(air=(*world.air, Request(owner, fence, tick + DEADLINE + PROCESSING)))

    def outcomes(self, world: World, request: Request, tick: int) -> list[tuple[str, World, Answer | None]]:
        """(fault or nothing, world after, answer or nothing): all that can become of a request now."""
        left, key = world.without(request), world.keys[request.owner]
        if request.rolls:
            return [("", self._applied(left, request, tick)[0], None), ("", left, None)]
        plain, answer = self._execute(left, request, tick)
        found = [("", plain, answer), ("answer lost", plain, LOST), ("request lost", left, None)]
        if tick < request.until and not request.free:
            found.append(("request delayed", left._replace(air=(*left.air, request._replace(free=True))), None))
        if key is None:
            found += self._odd(left, request, tick)
            if self.contract.key is not None and any(r.owner == request.owner and not r.rolls for r in left.air):
                found.append(("", left, (Outcome.UNKNOWN, Hint.BUSY, False, None, None)))
        if self.contract.key is not None:
            found.append(("key misused", left, (Outcome.UNKNOWN, Hint.MISUSED, False, None, None)))
            found.append(("answer mismatched", plain, (Outcome.UNKNOWN, Hint.MISMATCH, False, None, None)))
        return found

    def _odd(self, left: World, request: Request, tick: int) -> list[tuple[str, World, Answer | None]]:
        """Answers other than the effect that a first execution may have."""
        keyed = self.contract.key is not None
        found: list[tuple[str, World, Answer | None]] = [
            ("answered 429", left, (Outcome.NO_EFFECT, Hint.NONE, False, None, None)),
            (
                "refused",
                self._keep(left, request.owner, Kept(tick, "refused")),
                (Outcome.REFUSED, Hint.BUSINESS_RULE, keyed, None, None),
            ),
        ]
        error: Answer = (Outcome.UNKNOWN, Hint.STORED_ERROR if keyed else Hint.LOST, keyed, None, None)
        stored = self._keep(left, request.owner, Kept(tick, "error"))
        found.append(("answered 5xx", stored, error))
        if self.contract.roll_forward:
            rolling = Request(request.owner, 0, tick + ROLLING, True, True)
            found.append(("answered 5xx", stored._replace(air=(*stored.air, rolling)), error))
        return found

    def _execute(self, left: World, request: Request, tick: int) -> tuple[World, Answer]:
        key = left.keys[request.owner]
        if key is None:
            return self._applied(left, request, tick)
        if key.answer == "refused":
            return left, (Outcome.REFUSED, Hint.BUSINESS_RULE, True, None, None)
        if key.answer == "error":
            return left, (Outcome.UNKNOWN, Hint.STORED_ERROR, True, None, None)
        standing = next(e.standing for e in left.effects if e.receipt == key.receipt)
        return left, (Outcome.APPLIED, Hint.NONE, False, key.receipt, standing)

    def _applied(self, left: World, request: Request, tick: int) -> tuple[World, Answer]:
        if self.contract.conditional_write and left.moved:
            return left, (Outcome.REFUSED, Hint.VERSION_STALE, False, None, None)
        receipt = len(left.effects) + 1
        standing = Standing.PENDING if left.slow else Standing.GOOD
        made = left._replace(effects=(*left.effects, Effect(request.owner, receipt, tick, standing, True)))
        made = self._keep(made, request.owner, Kept(tick, "applied", receipt))
        return made, (Outcome.APPLIED, Hint.NONE, False, receipt, standing)

    def _keep(self, world: World, owner: int, kept: Kept) -> World:
        if self.contract.key is None:
            return world
        before = world.keys[owner]
        if before is not None and kept.answer == "applied":
            kept = kept._replace(first=before.first)  # rolled forward: the key is as old as its first use
        return world._replace(keys=tuple(kept if k == owner else old for k, old in enumerate(world.keys)))

    def turned(self, world: World, receipt: int, standing: Standing) -> World:
        """With another standing of one effect."""
        turned = tuple(e._replace(standing=standing) if e.receipt == receipt else e for e in world.effects)
        return world._replace(effects=turned)

    def pruned(self, world: World, tick: int) -> World:
        """Without the keys that are old enough."""
        keys = tuple(None if k is not None and tick >= k.first + LIFETIME else k for k in world.keys)
        return world if keys == world.keys else world._replace(keys=keys)

    def views(self, world: World, tick: int) -> list[tuple[str, Seen]]:
        """(fault or nothing, what is shown): now; as of one settling time ago; or a list that ends too early."""
        fresh = Seen(True, world.effects, world.moved, tick)
        listed = tuple(e for e in world.effects if e.tick + self.settling <= tick)
        views = [("", fresh)]
        if listed != world.effects:
            views.append(("lookup lags", fresh._replace(effects=listed, moved=world.edited or bool(listed))))
        views.append(("list incomplete", Seen(False, (), False, tick)))
        return views
