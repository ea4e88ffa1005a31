"""Idempotency keys: which answer a key has already, which request may run under it, and the answer it keeps.

1. A key belongs to an account and mode, whatever the path; only POST has keys.
2. Pruned keys are new keys: by age on the movable clock, or by a rule before their time.
3. While the first request runs, a second one is refused; that mark dies with the process, like the run itself.
4. The same key with another endpoint or other parameters is refused, and the stored answer stays.
5. The answer is stored in the transaction of its effect.
"""

from __future__ import annotations

from typing import Any

from devstack.stripe_standin.call import Answer, Call, json_answer
from devstack.stripe_standin.errors import key_in_use, key_misused_endpoint, key_misused_params
from devstack.stripe_standin.records import KeyScope, Records, StoredAnswer
from devstack.stripe_standin.world import World


class Idempotency:
    def __init__(self, world: World, records: Records) -> None:
        self.world = world
        self.records = records
        self._running: set[KeyScope] = set()

    def find(self, scope: KeyScope) -> StoredAnswer | None:
        """The stored answer, unless the key is old enough to be forgotten."""
        stored = self.records.find_answer(scope)
        if stored is None or self.world.now() - stored.created < self.world.settings().key_lifetime_seconds:
            return stored
        self.records.forget_answer(scope)
        return None

    def replay(self, call: Call, scope: KeyScope) -> Answer | None:
        """The answer of the first request, None for a new key; raises for a key that is running or misused."""
        if scope in self._running:
            raise key_in_use(scope.idempotency_key)
        stored = self.find(scope)
        if stored is None:
            return None
        if stored.endpoint != call.path:
            raise key_misused_endpoint(scope.idempotency_key, call.path, stored.endpoint)
        if stored.params_sha256 != call.params_sha256:
            raise key_misused_params(scope.idempotency_key)
        answer = json_answer(stored.status, stored.body, headers_of(scope, stored.request_id))
        answer.headers["Idempotent-Replayed"] = "true"
        answer.replayed = True
        return answer

    def begin(self, scope: KeyScope) -> None:
        self._running.add(scope)

    def over(self, scope: KeyScope) -> None:
        self._running.discard(scope)

    def keep(self, call: Call, scope: KeyScope, status: int, body: dict[str, Any]) -> None:
        self.records.store_answer(
            scope, StoredAnswer(call.path, call.params_sha256, status, body, call.request_id, self.world.now())
        )


def headers_of(scope: KeyScope, first_request_id: str) -> dict[str, str]:
    return {
        "Idempotency-Key": scope.idempotency_key,
        "Original-Request": first_request_id,
        "Stripe-Should-Retry": "false",
    }
