"""Hold: stop sending in a scope at one operator's word; release it at the word of two."""

from uuid import UUID

from temporalio import activity

from activities import acceptance
from activities.errors import translated
from activities.messages import HoldAnswer, HoldRequest, Message, MessageKind
from activities.ports import Ports
from ledger import policy
from ledger.config import EVERYTHING, Document
from ledger.errors import Refused
from ledger.statement import Claims, StatementType
from ledger.store import audits, events, holds, incarnation, operations, statements, views
from ledger.store.database import Connection, now
from ledger.store.statements import Statement
from ledger.trail import EventKind

LONGEST_SECONDS = 3600


class Hold:
    """The activity that holds and releases."""

    def __init__(self, ports: Ports) -> None:
        self._ports = ports

    @activity.defn(name="hold")
    async def hold(self, request: HoldRequest) -> HoldAnswer:
        """Apply a signed hold or release. A refusal is told in the ledger's own trail and changes nothing."""
        async with translated():
            try:
                async with self._ports.ledger.transaction() as conn:
                    return await self._apply(conn, request)
            except Refused as refused:
                async with self._ports.ledger.transaction() as conn:
                    body = {"typ": "hold", "rule": refused.rule, "field": refused.field, "count": 1}
                    await events.append_to_ledger(conn, EventKind.STATEMENT_REFUSED, body)
                return HoldAnswer(accepted=False, rule=refused.rule, message=str(refused))

    async def _apply(self, conn: Connection, request: HoldRequest) -> HoldAnswer:
        message = Message(
            kind=MessageKind.DECIDE, statement=request.statement, scheme=request.scheme, proof=request.proof
        )
        signed = await acceptance.read_signed(conn, message, LONGEST_SECONDS)
        claims, person, kid = signed.claims, signed.verified.person, signed.verified.kid
        if claims.typ not in (StatementType.HOLD, StatementType.RELEASE):
            raise Refused("type_wrong", "give a hold or a release", field="typ")
        tenant = await self._tenant_of(conn, signed.document, claims)
        policy.may_operate(signed.document, person, tenant, kid)
        current = await holds.locked(conn, claims.sub)
        about = await _audited(conn, current, claims) if claims.sub == holds.RESTORED else {}
        at = await now(conn)
        statement = Statement(
            jti=claims.jti,
            operation_id=None,
            scope=claims.sub,
            typ=claims.typ.value,
            decision=claims.decision,
            person=person,
            kid=kid,
            statement=signed.envelope.statement_bytes,
            scheme=signed.envelope.scheme,
            proof=signed.envelope.proof,
            sheet=None,
            trail_head=None,
            config_version=signed.version,
            accepted_at=at,
        )
        new = await statements.accept(conn, statement)
        body = {"scope": claims.sub, "person": person, "jti": claims.jti, "reason": claims.reason}
        if claims.typ is StatementType.HOLD:
            if new:  # also while held: what was said for a release before does not count for this hold
                await holds.put(conn, claims.sub, held=True, since=at, jti=claims.jti, reason=claims.reason)
                await events.append_to_ledger(conn, EventKind.HELD, body)
            return HoldAnswer(accepted=True, held=new or current.held, scope=claims.sub)
        given = [
            s for s in await statements.of_scope(conn, claims.sub, current.since) if s.typ == StatementType.RELEASE
        ]
        people = policy.operators_stand(signed.document, tenant, [policy.Signed(s.person, s.kid) for s in given])
        missing = max(policy.PEOPLE_WITHOUT_PROOF - people, 0)
        if current.held and missing == 0:
            await holds.put(conn, claims.sub, held=False, since=None, jti=claims.jti, reason=claims.reason)
            await events.append_to_ledger(conn, EventKind.RELEASED, body | about)
            current = await holds.locked(conn, claims.sub)
        wake = [] if current.held else await views.open_workflows(conn, claims.sub)
        return HoldAnswer(accepted=True, held=current.held, scope=claims.sub, still_needed=missing, wake=wake)

    async def _tenant_of(self, conn: Connection, document: Document, claims: Claims) -> str:
        """Whose operators speak for a scope; what concerns no single tenant needs an operator of everything."""
        kind, _, name = claims.sub.partition(":")
        if kind == holds.RESTORED and claims.typ is StatementType.HOLD:
            raise Refused("scope_unknown", "that one holds by itself after a restore: hold all instead", field="sub")
        if kind == "tenant":
            if name not in document.tenants:
                raise Refused("scope_unknown", f"no tenant {name} is configured: nothing would be held", field="sub")
            return name
        if kind == "provider" and name not in {binding.provider for binding in document.bindings}:
            raise Refused(
                "scope_unknown", f"no tenant is bound to a provider {name}: nothing would be held", field="sub"
            )
        if kind == "operation":
            # The operation's lock: a claim that runs now ends first, and the next one sees the hold.
            return (await operations.lock(conn, UUID(name))).tenant
        return EVERYTHING


async def _audited(conn: Connection, current: holds.Hold, claims: Claims) -> dict[str, int]:
    """What a release after a restore rests on. Refused: `restore_unsaid`, `release_early`, `audit_missing`."""
    life = await incarnation.current(conn)
    if not life.at_home:
        why = "this is not the database that the ledger knew: say `effects restored` with the owner's DSN first"
        raise Refused("restore_unsaid", why, field="sub")
    if current.since is not None and claims.iat < int(current.since.timestamp()):
        # The ledger may have forgotten that it accepted this one before: it would count a second time.
        why = "it was signed before the restore was said: sign again"
        raise Refused("release_early", why, field="iat")
    audit = await audits.latest(conn)
    if audit is None or not audit.complete or audit.incarnation != life.number:
        why = f"run `effects audit` to its end first: none was completed since incarnation {life.number} began"
        raise Refused("audit_missing", why, field="sub")
    applied = await views.applied_configuration(conn)
    if applied is None or audit.began_at < applied.applied_at:
        # It listed the accounts of the configuration before: one that was forgotten with its binding was not among them.
        why = "run `effects audit` again: the configuration was applied after the last one began"
        raise Refused("audit_missing", why, field="sub")
    return {"incarnation": life.number, "audit": audit.number}
