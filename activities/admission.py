"""What a proposal must prove before anything is recorded: who proposes, and that what is asked can be allowed at all."""

from activities.messages import Proposal, request_digest
from ledger import fingerprint, policy
from ledger.config import Document
from ledger.errors import Refused
from ledger.statement import VerifiedProposal, verify_proposal
from ledger.store import statements
from ledger.store.database import Connection, now
from providers.registry import Registry

LONGEST_TOKEN_SECONDS = 3600
# What depends on another operation is signed with it, and recorded when that one is done. The token is for this content
# under this key alone, and its key can be revoked meanwhile.
LONGEST_WAITING_TOKEN_SECONDS = 30 * 24 * 3600


async def principal(conn: Connection, document: Document, proposal: Proposal) -> VerifiedProposal:
    """The granted key that signed exactly this proposal, and its words: without one nothing is recorded.

    Refused: `signature_missing`, `signature_wrong`, the rules of `verify_proposal`, and those of `check_time`.
    """
    if not proposal.token:
        raise Refused("signature_missing", "sign the proposal with a granted key", field="token")
    signed = verify_proposal(proposal.token, document.grant_keys(), aud=document.ledger.name)
    claims = signed.claims
    said = (proposal.tenant, proposal.business_key, proposal.actor, proposal.requested_by, request_digest(proposal))
    if said != (claims.tenant, claims.sub, claims.actor, claims.requested_by, claims.request_digest):
        raise Refused("signature_wrong", "the token signs another proposal than this one", field="token")
    await check_time(conn, proposal, signed)
    return signed


async def check_time(conn: Connection, proposal: Proposal, signed: VerifiedProposal) -> None:
    """Return only while the token may be used. Asked again when it is recorded: reading the target took its time.

    Refused: `token_…`.
    """
    longest = LONGEST_WAITING_TOKEN_SECONDS if proposal.depends_on else LONGEST_TOKEN_SECONDS
    why = await statements.token_refusal(conn, signed.claims.iat, signed.claims.exp, longest)
    if why:
        clock = f"{await now(conn):%Y-%m-%d %H:%M:%S} UTC"
        told = f"sign the proposal again, for at most {longest} s; by the ledger's clock it is {clock}"
        raise Refused(f"token_{why}", told, field="token")


def check(registry: Registry, document: Document, proposal: Proposal, kid: str) -> None:
    """Everything that can be said no to without asking the provider; refused with field and rule."""
    provider = registry.for_action(proposal.action)
    for name in proposal.distinct_from:
        fingerprint.check_text(name, "distinct_from", 255)
    if proposal.expected_version is not None and not provider.contract.conditional_write:
        # Taken silently it would look like a condition, and there is none.
        raise Refused(
            "version_not_conditional", f"{proposal.action} has no conditional write", field="expected_version"
        )
    provider.check_target(proposal.target)
    provider.check_arguments(proposal.arguments)
    amount_minor, currency = proposal.arguments.get("amount_minor"), proposal.arguments.get("currency")
    policy.check_against_rule(
        document,
        tenant=proposal.tenant,
        provider=provider.provider,
        action=proposal.action,
        amount_minor=amount_minor,
        currency=currency,
        evidence=proposal.evidence,
    )
    policy.may_propose(
        document,
        kid,
        tenant=proposal.tenant,
        actor=proposal.actor,
        action=proposal.action,
        amount_minor=amount_minor,
        currency=currency,
    )
