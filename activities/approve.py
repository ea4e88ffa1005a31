"""Approve: verify and keep approvals, declines and withdrawals, and record what was refused. Judging follows separately."""

from dataclasses import replace
from datetime import datetime
from uuid import UUID

from temporalio import activity

from activities import acceptance
from activities.errors import translated
from activities.messages import Message, MessageKind, Progress
from activities.ports import Ports
from activities.progress import tell
from ledger import policy
from ledger.errors import Refused
from ledger.model import Operation, Outcome
from ledger.statement import StatementType
from ledger.states import BEFORE_FIRST_SEND, BLOCK_EDGE, BlockReason, State
from ledger.store import attempts, operations, statements
from ledger.store.database import Connection, now

_WANTED = {
    MessageKind.DECIDE: (StatementType.APPROVAL, StatementType.DECLINE),
    MessageKind.WITHDRAW: (StatementType.WITHDRAWAL,),
}


class Approve:
    """The activity that keeps people's sentences."""

    def __init__(self, ports: Ports) -> None:
        self._ports = ports

    @activity.defn(name="record")
    async def record(self, message: Message) -> Progress:
        """Keep the message or the reason why it does not count. A refusal changes nothing else and hurts nobody."""
        async with translated():
            operation_id = UUID(message.operation_id)
            async with self._ports.ledger.transaction() as conn:
                operation = await operations.lock(conn, operation_id, known_events=message.known_events)
                at = await now(conn)
                if message.kind is MessageKind.JUNK:
                    progress = await tell(conn, await acceptance.refuse_junk(conn, operation, message))
                    return progress.model_copy(update={"refused_rule": "junk", "message": message.problem})
                if message.kind is MessageKind.CANCEL:
                    return await self._withdraw(conn, operation, at, {"by": "the workflow was cancelled"})
            try:
                return await self._accept(operation_id, message)
            except Refused as refused:
                return await self._refuse(operation_id, message, refused)

    async def _accept(self, operation_id: UUID, message: Message) -> Progress:
        async with self._ports.ledger.transaction() as conn:
            operation = await operations.lock(conn, operation_id)
            signed = await acceptance.read_signed(conn, message, await acceptance.longest_statement(conn, operation))
            claims = signed.claims
            if claims.typ not in _WANTED[message.kind]:
                raise Refused("type_wrong", f"{message.kind} takes {' or '.join(_WANTED[message.kind])}", field="typ")
            acceptance.check_about(claims, operation)
            if claims.sheet and not await statements.made_sheet(conn, operation_id, bytes.fromhex(claims.sheet)):
                raise Refused("sheet_unknown", "sign on a sheet that this ledger made: `effects sheet`", field="sheet")
            allowed = {StatementType.WITHDRAWAL: policy.may_withdraw, StatementType.DECLINE: policy.may_decline}
            may = allowed.get(claims.typ, policy.may_approve)
            may(signed.document, signed.verified.person, operation, signed.verified.kid)
            at = await now(conn)
            operation, _ = await acceptance.keep(conn, operation, signed, at)
            if claims.typ is StatementType.WITHDRAWAL:
                return await self._withdraw(conn, operation, at, {"by": signed.verified.person})
            if operation.state is State.AWAITING_APPROVAL:
                # Whether it is enough is judged next, under the target lock and with the target read anew.
                now_judge = replace(operation, next_step="judge", next_step_at=at)
                operation = await operations.note(conn, operation, now_judge)
            return await tell(conn, operation)

    async def _withdraw(self, conn: Connection, operation: Operation, at: datetime, body: dict[str, str]) -> Progress:
        """Before the first send this ends the operation; later nothing can be recalled, and settling goes on."""
        every = await attempts.read_attempts(conn, operation.operation_id)
        unsent = all(a.outcome is Outcome.NO_EFFECT for a in every)
        if operation.state not in BEFORE_FIRST_SEND or not unsent:
            return await tell(conn, operation)
        after = replace(operation, state=State.BLOCKED, reason=BlockReason.WITHDRAWN, next_step="", next_step_at=None)
        edge = BLOCK_EDGE[operation.state]
        return await tell(conn, await operations.move(conn, operation, after, edge, at, dict(body)))

    async def _refuse(self, operation_id: UUID, message: Message, refused: Refused) -> Progress:
        async with self._ports.ledger.transaction() as conn:
            operation = await operations.lock(conn, operation_id)
            operation = await acceptance.refuse(conn, operation, message, refused)
            progress = await tell(conn, operation)
            return progress.model_copy(
                update={"refused_rule": refused.rule, "field": refused.field, "message": str(refused)}
            )
