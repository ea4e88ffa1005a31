"""What people and agents of a dev stack sign: proposals, approvals, resolutions, holds, and the forgeries of the demo.

Times are the ledger's, which demo and tests move by days; a signature made by this machine's clock would be refused.
"""

import json
import uuid
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from activities.messages import Proposal
from devstack.people import Holder, Household
from ledger.fingerprint import from_base64url, to_base64url
from ledger.model import Operation
from ledger.statement import (
    ON_A_SCOPE,
    ON_A_SHEET,
    ON_A_TRAIL,
    Claims,
    StatementType,
    key_id,
    new_private_key,
    public_x,
    sheet_digest,
    sign,
)
from workflows.client import sign as sign_proposal

VALID_SECONDS = 600
AGENT = "support-bot"


@dataclass(frozen=True)
class Signer:
    """Signs for everybody of a household at a given moment of the ledger's time."""

    household: Household
    now: datetime

    @property
    def _seconds(self) -> int:
        return int(self.now.timestamp())

    def proposal(self, proposal: Proposal) -> Proposal:
        """The proposal with the token of the agent's service."""
        agent = self.household.holders[AGENT]
        return sign_proposal(
            proposal, agent.key, kid=agent.kid, iss=agent.name, aud=self.household.audience, at=self._seconds
        )

    def about(
        self, operation: Operation, who: str | Holder, typ: StatementType, sheet: bytes = b"", **claims: Any
    ) -> dict[str, str]:
        """A statement about an operation, on its sheet or on the trail as it stands, as it crosses Temporal."""
        fields: dict[str, Any] = {"sub": str(operation.operation_id), "fingerprint": operation.fingerprint.hex()}
        if typ in ON_A_SHEET:
            fields["sheet"] = sheet_digest(sheet).hex()
        if typ in ON_A_TRAIL:
            fields["trail_head"] = operation.head_hash.hex()
        return self._signed(who, typ, sheet if typ in ON_A_SHEET else b"", fields | claims)

    def on_scope(self, scope: str, who: str, typ: StatementType, reason: str) -> dict[str, str]:
        """A hold or a release."""
        assert typ in ON_A_SCOPE
        return self._signed(who, typ, b"", {"sub": scope, "reason": reason})

    def expired(self, operation: Operation, who: str, sheet: bytes) -> dict[str, str]:
        """An approval that was good for half an hour, two hours ago."""
        then = self._seconds - 7200
        return self.about(operation, who, StatementType.APPROVAL, sheet, iat=then, exp=then + 1800)

    def with_new_dates(self, envelope: dict[str, str]) -> dict[str, str]:
        """A forgery: somebody else's expired statement with its dates altered, under its old proof."""
        statement = json.loads(from_base64url(envelope["statement"], 32 * 1024) or b"{}")
        forged = Claims.model_validate_json(
            json.dumps({**statement, "iat": self._seconds, "exp": self._seconds + VALID_SECONDS})
        )
        return {**envelope, "statement": to_base64url(forged.to_bytes())}

    def by_stranger(self, operation: Operation, name: str, sheet: bytes) -> dict[str, str]:
        """A forgery: an approval in somebody's name under a key that nobody has registered."""
        key = new_private_key()
        stranger = Holder(name, key_id(name, public_x(key)), key)
        return self.about(operation, stranger, StatementType.APPROVAL, sheet)

    def _signed(self, who: str | Holder, typ: StatementType, sheet: bytes, fields: dict[str, Any]) -> dict[str, str]:
        holder = self.household.holders[who] if isinstance(who, str) else who
        claims = Claims.make(
            **{
                "typ": typ,
                "iss": holder.name,
                "aud": self.household.audience,
                "iat": self._seconds,
                "exp": self._seconds + VALID_SECONDS,
                "jti": uuid.uuid4().hex,
                **fields,
            }
        )
        envelope: dict[str, str] = sign(claims, holder.key, holder.kid, sheet).model_dump()
        return envelope
