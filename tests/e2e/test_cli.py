"""The command line against real servers: every verb once, on the ways people go wrong as well."""

import asyncio
import hashlib
import os
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from devstack.ports import free_port
from devstack.stack import clean
from ledger.fingerprint import fingerprint
from ledger.statement import read_sheet
from tests.conftest import Rig
from tests.e2e.spoken import Effects, Spoken, speaking, surroundings

ROOT = Path(__file__).parents[2]
A_DAY_AND_AN_HOUR = 25 * 3600.0


@pytest.fixture
def effects(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> Iterator[Effects]:
    """Run a command in this process, beside the worker's loop; with JSON unless told otherwise."""
    yield from speaking(rig, monkeypatch)


def refund(target: str, amount: str, key: str, *more: str, requested_by: str = "mia") -> list[str]:
    """The words of a proposal."""
    words = ["propose", "refund", target, "--amount", amount, "--currency", "eur", "--key", key, "--tenant", "acme"]
    words += [
        "--actor",
        "support-bot",
        "--requested-by",
        requested_by,
        "--evidence",
        "ticket=T-77",
        "--as",
        "support-bot",
    ]
    return [*words, *more]


def a_key() -> str:
    """A business key nobody used."""
    return f"order-{uuid.uuid4().hex[:12]}"


async def test_a_waived_refund_is_proposed_shown_and_told(rig: Rig, effects: Effects) -> None:
    """The judge of the effect is the stand-in's journal; the same command again is the poll and makes no second one."""
    target, key = rig.payment(), a_key()
    async with rig.worker():
        asked = await effects(*refund(target, "15.00", key, "--wait", "30"))
        assert (asked.code, asked.document["state"]) == (0, "succeeded"), asked
        again = await effects(*refund(target, "15.00", key))
        assert again.document["receipt"] == asked.document["receipt"]
        other = await effects(*refund(target, "14.00", key))
        assert (other.code, other.document["reason"]) == (3, "key_used")
        operation = asked.document["operation_id"]
        shown = await effects("show", operation[:8])
        assert shown.document["receipt"] == rig.effects(target)[0].refund
        assert target in shown.document["link"] and shown.document["who_must_act"] == "nobody: it ended"
        told = await effects("trail", f"acme/{key}", as_json=False)
    assert "none → proposed, edge 1" in told.out and "support-bot" in told.out
    assert len(rig.posts(target)) == 1
    assert (await effects("verify")).document["differences"] == []


async def test_what_the_domain_refuses_has_rule_field_and_exit_code_3(rig: Rig, effects: Effects) -> None:
    """Nothing of it is stored: the key stays free."""
    target, key = rig.payment(), a_key()
    async with rig.worker():
        for amount, rule in (("15.0", "amount_decimals"), ("1e3", "amount_malformed"), ("0", "amount_not_positive")):
            said = await effects(*refund(target, amount, key))
            assert (said.code, said.document["error"]["rule"]) == (3, rule)
        bad_key = await effects(*refund(target, "15.00", "no spaces"))
        assert bad_key.document["error"]["rule"] == "business_key_malformed"
        missing = [word for word in refund(target, "15.00", key) if word not in ("--evidence", "ticket=T-77")]
        said = await effects(*missing)
        assert (said.code, said.document["reason"], said.document["field"]) == (3, "evidence_required", "evidence")
        too_much = await effects(*refund(target, "501.00", key))
        assert (too_much.code, too_much.document["reason"]) == (3, "amount_not_granted")
        unfit = await effects(*refund("pi_nobody", "15.00", key))
        assert (unfit.code, unfit.document["state"], unfit.document["reason"]) == (3, "blocked", "target_unfit")
        plain = await effects(*refund(target, "15.00", key), as_json=False)
    assert plain.code == 3 and "key_used" in plain.out


async def test_a_person_approves_what_is_shown_and_nobody_their_own(rig: Rig, effects: Effects) -> None:
    """The fingerprint that is signed is recomputed from the bytes that are shown."""
    target, key = rig.payment(), a_key()
    async with rig.worker():
        asked = await effects(*refund(target, "50.00", key, requested_by="alice"))
        assert (asked.code, asked.document["state"]) == (0, "awaiting_approval")
        operation = asked.document["operation_id"]
        waiting = (await effects("inbox")).document["waiting"]
        assert [w["operation_id"] for w in waiting] == [operation]
        assert waiting[0]["who_must_act"] == "1 more must sign: bob"
        sheet = (await effects("sheet", operation)).document
        assert sheet["fingerprint"] == (await rig.operation(operation)).fingerprint.hex()
        assert sheet["read_from_provider_by_us"]["captured_minor"] == 10_000
        unasked = await effects("approve", operation, "--as", "bob")
        assert unasked.code == 2 and "--yes" in unasked.document["error"]["message"]
        own = await effects("approve", operation, "--as", "alice", "--yes")
        assert (own.code, own.document["error"]["rule"]) == (3, "own_proposal")
        operator = await effects("approve", operation, "--as", "olga", "--yes")
        assert operator.document["error"]["rule"] == "role_missing"
        approved = await effects("approve", f"acme/{key}", "--as", "bob", "--yes")
        assert (approved.code, approved.document["accepted"]) == (0, True), approved
        await rig.until(operation, "succeeded")
    assert await rig.refusals(operation) == ["own_proposal", "role_missing"]
    assert [e.amount for e in rig.effects(target)] == [5_000]


async def test_decline_and_withdraw_end_what_was_not_sent(rig: Rig, effects: Effects) -> None:
    """A withdrawal is a signal: the trail tells whether it counts."""
    async with rig.worker():
        declined = (await effects(*refund(rig.payment(), "50.00", a_key()))).document["operation_id"]
        said = await effects("decline", declined, "--as", "alice", "--reason", "not ours", "--yes")
        assert (said.code, said.document["reason"]) == (0, "approval_declined"), said
        asked = (await effects(*refund(rig.payment(), "50.00", a_key()))).document["operation_id"]
        refused = await effects("withdraw", asked, "--as", "bob", "--yes")
        assert (refused.code, refused.document["error"]["rule"]) == (3, "role_missing")
        said = await effects("withdraw", asked, "--as", "olga", "--yes")
        assert (said.code, said.document["reason"]) == (0, "withdrawn"), said


async def test_review_shows_the_evidence_and_two_operators_settle_it(rig: Rig, effects: Effects) -> None:
    """A request lost before the provider, 25 hours later: one operator alone cannot certify that nothing happened."""
    target = rig.payment()
    async with rig.worker():
        lost = await effects(*refund(target, "15.00", a_key(), "--fault", "lost-request"))
        assert lost.code == 0, lost
        operation = lost.document["operation_id"]
        rig.stack.stripe.control.fault("lost-request", times=None, payment_intent=target)
        await rig.until(operation, "unknown", "in_flight")
        shown = (await effects("show", operation)).document
        assert shown["schedule"]["provisional"] is False and shown["schedule"]["repeat_until"]
        assert (await effects("clock", "advance", "+25h")).code == 0
        await rig.until(operation, "needs_review", seconds=60)
        listed = (await effects("review")).document["review"]
        assert [one["operation_id"] for one in listed] == [operation]
        page = (await effects("review", operation)).document
        assert "dashboard" in page["resolution"] and any("--did-not-happen" in c for c in page["commands"])
        words = ["resolve", operation, "--did-not-happen", "--evidence", "log of POST /v1/refunds is empty", "--yes"]
        stranger = await effects(*words, "--as", "alice")
        assert (stranger.code, stranger.document["error"]["rule"]) == (3, "not_operator")
        assert "an operator of acme must sign" in stranger.document["error"]["message"]
        first = await effects(*words, "--as", "olga")
        assert (first.code, first.document["still_needed"]) == (0, 1), first
        assert first.document["state"] == "needs_review"
        alone = await effects(*words, "--as", "olga")
        assert alone.document["still_needed"] == 1
        signed = (await effects("review", operation)).document["signed"]
        assert signed == [{"person": "olga", "decision": "did_not_happen", "counts": True}] * 2
        blind = await effects(*words, "--as", "oscar", "--seen", "1")
        assert blind.document["error"]["rule"] == "evidence_unseen"
        second = await effects(*words, "--as", "oscar")
        assert (second.code, second.document["state"]) == (0, "rejected"), second
    last = (await rig.trail(operation))[-1].body
    assert last["settled_by"] == "person" and last["unknown_seconds"] > 25 * 3_600
    assert rig.effects(target) == []
    assert (await effects("verify")).document["differences"] == []


async def test_a_receipt_settles_a_review_alone_when_it_can_be_read(rig: Rig, effects: Effects) -> None:
    """A refund whose marker was edited away: a person names it, and it is read again at the provider."""
    target = rig.payment()
    async with rig.worker():
        # the first request is executed and its answer lost; every repeat is lost on its way
        rig.stack.stripe.control.fault("lost-request", times=None, payment_intent=target, replay=True)
        lost = await effects(*refund(target, "15.00", a_key(), "--fault", "lost-answer"))
        operation = lost.document["operation_id"]
        await rig.until(operation, "unknown")
        (made,) = rig.effects(target)
        rig.stack.stripe.control.set_refund(made.refund, metadata={"operation_id": ""})
        await effects("clock", "advance", "25h")
        await rig.until(operation, "needs_review", seconds=60)
        commands = (await effects("review", operation)).document["commands"]
        assert any(f"--happened {made.refund}" in command for command in commands)
        wrong = await effects(
            "resolve", operation, "--happened", "re_other", "--evidence", "x", "--as", "olga", "--yes"
        )
        assert wrong.document.get("still_needed") == 1 or wrong.code == 3
        said = await effects(
            "resolve", operation, "--happened", made.refund, "--evidence", "page", "--as", "oscar", "--yes"
        )
        assert (said.code, said.document["state"]) == (0, "succeeded"), said


async def test_a_hold_stops_sending_and_two_operators_release_it(rig: Rig, effects: Effects) -> None:
    """One operator holds; a release of one is not enough."""
    async with rig.worker():
        held = await effects("hold", "tenant:acme", "--reason", "odd refunds", "--as", "olga", "--yes")
        assert (held.code, held.document["held"]) == (0, True), held
        assert (await effects("hold", "tenant:acme", "--reason", "x", "--as", "alice", "--yes")).code == 3
        misspelt = await effects("hold", "tenant:ACME", "--reason", "x", "--as", "olga", "--yes")
        assert (misspelt.code, misspelt.document["error"]["field"]) == (3, "sub")
        target = rig.payment()
        asked = await effects(*refund(target, "15.00", a_key(), "--wait", "1"))
        assert (asked.code, asked.document["state"]) == (6, "approved")
        assert "held" in (await effects("show", asked.document["operation_id"])).document["who_must_act"]
        assert [h["scope"] for h in (await effects("holds")).document["holds"]] == ["tenant:acme"]
        one = await effects("release", "tenant:acme", "--reason", "explained", "--as", "olga", "--yes")
        assert (one.code, one.document["held"], one.document["still_needed"]) == (0, True, 1), one
        two = await effects("release", "tenant:acme", "--reason", "explained", "--as", "oscar", "--yes")
        assert (two.document["held"], two.document["still_needed"]) == (False, 0)
        await rig.until(asked.document["operation_id"], "succeeded", seconds=30)
    assert len(rig.effects(target)) == 1


async def test_look_starts_a_workflow_that_is_gone(rig: Rig, effects: Effects) -> None:
    """The ledger is what is true: a run that somebody terminated is made anew under its own id."""
    target, key = rig.payment(), a_key()
    async with rig.worker():
        asked = await effects(*refund(target, "50.00", key))
        handle = rig.client.get_workflow_handle(f"acme/{key}")
        await handle.terminate("somebody clicked")
        before = (await handle.describe()).run_id
        assert (await effects("look", asked.document["operation_id"], "--wait", "2")).code == 0
        assert (await handle.describe()).run_id != before
        approved = await effects("approve", asked.document["operation_id"], "--as", "alice", "--yes")
        assert approved.code == 0, approved
        await rig.until(asked.document["operation_id"], "succeeded")


async def test_sheet_bytes_hash_to_what_is_signed(rig: Rig) -> None:
    """`--raw` writes the exact bytes: their digest is the sheet's, their fingerprint the operation's."""
    async with rig.worker():
        answer = await rig.propose(rig.proposal(rig.payment(), 5_000))
        spoken = await asyncio.to_thread(command, rig, "sheet", answer.operation_id, "--raw")
    raw = spoken.stdout
    (made,) = [e for e in await rig.trail(answer.operation_id) if e.kind == "sheet_made"]
    assert hashlib.sha256(raw).hexdigest() == made.body["digest"]
    operation = await rig.operation(answer.operation_id)
    assert read_sheet(raw)["fingerprint"] == fingerprint(operation.canonical).hex()


async def test_verify_names_the_row_that_somebody_changed(rig: Rig, effects: Effects) -> None:
    """A superuser with the triggers off changes an amount, an event, an outcome and a person: each is named."""
    async with rig.worker():
        paid = await rig.propose(rig.proposal(rig.payment()))
        await rig.until(paid.operation_id, "succeeded")
        asked = await rig.propose(rig.proposal(rig.payment(), 5_000))
        assert (await effects("approve", asked.operation_id, "--as", "alice", "--yes")).code == 0
        await rig.until(asked.operation_id, "succeeded")
    sound = await effects("verify")
    assert (sound.code, sound.document["differences"]) == (0, [])
    assert sound.document["verified"]["operations"] == 2
    for change, row, words in (
        ("update operations set amount_minor = 1 where operation_id = %s", "operation {}", "amount_minor"),
        ("update events set body = '{{}}' where stream = %s and number = 2", "operation {}", "event 2"),
        ("update events set kind = 'sighting' where stream = %s and number = 2", "operation {}", "event 2"),
        ("delete from events where stream = %s and kind = 'attempt_answered'", "operation {}", "is missing"),
        ("update attempts set receipt = 're_other' where operation_id = %s", "operation {}", "attempt 1: receipt"),
        ("delete from operations where operation_id = %s", "operation {}", "its row is missing"),
        ("update operations set token = '' where operation_id = %s", "operation {}", "proposal_malformed"),
        (
            "update operations set proposed_at = proposed_at + interval '1 day' where operation_id = %s",
            "operation {}",
            "not valid when it was recorded",
        ),
        ("update operations set people_needed = 1 where operation_id = %s", "operation {}", "waives the person"),
        (
            "update config_versions set document = document || ' ', digest = sha256(document || ' ') where %s <> ''",
            "configuration 1",
            "the trail tells of another document",
        ),
        ("update operations set state = 'rejected' where operation_id = %s", "operation {}", "stands at rejected"),
    ):
        found = await corrupted(rig, effects, change.replace("{{}}", "{}"), paid.operation_id)
        assert found.code == 5
        told = [(d["row"], d["what"]) for d in found.document["differences"]]
        assert any(r == row.format(paid.operation_id) and words in what for r, what in told), (change, told)
    for change, words in (
        ("update statements set person = 'bob' where operation_id = %s", "columns differ"),
        ("update statements set proof = replace(proof, '..', '..A') where operation_id = %s", "detached JWS"),
        ("update statements set accepted_at = accepted_at + interval '2 days' where operation_id = %s", "its times"),
        ("delete from statements where operation_id = %s", "is missing"),
    ):
        found = await corrupted(rig, effects, change, asked.operation_id)
        told = [(d["row"], d["what"]) for d in found.document["differences"]]
        assert any(r.startswith("statement ") and words in what for r, what in told), (change, told)
    assert (await effects("verify")).code == 0


async def corrupted(rig: Rig, effects: Effects, change: str, operation_id: str) -> Spoken:
    """`verify` while one row is not what it was; everything is as before afterwards."""
    dsn = rig.stack.servers.postgres.dsn(rig.stack.name)
    tables = ("operations", "events", "attempts", "statements", "config_versions")
    with psycopg.connect(dsn, autocommit=True) as conn:
        conn.execute("set session_replication_role = replica")
        for table in tables:
            conn.execute(f"create table kept_{table} as table {table}")
        try:
            assert conn.execute(change, [operation_id]).rowcount > 0
            return await effects("verify")
        finally:
            for table in tables:
                conn.execute(f"delete from {table}")
                conn.execute(f"insert into {table} select * from kept_{table}")
                conn.execute(f"drop table kept_{table}")


async def test_configuration_is_checked_compared_and_applied(rig: Rig, effects: Effects, tmp_path: Path) -> None:
    """The comparison says what a change would do to what waits; a deleted key is refused."""
    folder = tmp_path / "new config"
    folder.mkdir()
    source = rig.stack.household.folder / "config"
    for file in source.iterdir():
        (folder / file.name).write_text(file.read_text())
    async with rig.worker():
        asked = await effects(*refund(rig.payment(), "50.00", a_key()))
    same = await effects("config", "diff", str(folder))
    assert (same.code, same.document["changes"]) == (0, [])
    policy = (folder / "policy.toml").read_text()
    (folder / "policy.toml").write_text(policy.replace("waive_up_to_minor = 2000", "waive_up_to_minor = 1000"))
    changed = await effects("config", "diff", str(folder))
    assert [c["operation_id"] for c in changed.document["consequences"]] == [asked.document["operation_id"]]
    assert changed.document["consequences"][0]["what"] == "blocked: policy_changed"
    assert (await effects("config", "apply", str(folder), "--by", "ops")).code == 2  # it touches what waits: --yes
    applied = await effects("config", "apply", str(folder), "--by", "ops", "--yes")
    assert (applied.code, applied.document["version"]) == (0, 2), applied
    told = await effects("trail", as_json=False)
    assert "configuration 2 applied by ops (login effects_owner)" in told.out
    assert "rule acme refund eur: waive_up_to_minor changes from 2000 to 1000" in told.out
    (folder / "policy.toml").write_text(policy)
    grants = (folder / "grants.toml").read_text()
    (folder / "grants.toml").write_text(grants.replace('"support-bot"', '"other-bot"', 1))
    gone = await effects("config", "apply", str(folder), "--by", "ops", "--yes")
    assert (gone.code, gone.document["error"]["rule"]) == (3, "key_changed")


async def test_keys_sign_a_dummy_for_the_configuration_in_force(rig: Rig, effects: Effects, tmp_path: Path) -> None:
    """A key that the configuration does not name is told so, not tried."""
    good = await effects("keys", "test", "--as", "alice")
    assert (good.code, good.document["owner"]) == (0, "alice")
    made = await effects("keys", "new", "zoe", "--dir", str(tmp_path / "keys"))
    assert made.code == 0 and (tmp_path / "keys" / "zoe.pem").stat().st_mode & 0o777 == 0o600
    unknown = await effects("keys", "test", "--key-file", str(tmp_path / "keys" / "zoe.pem"))
    assert (unknown.code, unknown.document["error"]["rule"]) == (3, "key_unknown")
    nobody = await effects("keys", "test", "--as", "zoe")
    assert (
        "alice" in nobody.document["error"]["message"]
        and "zoe" not in nobody.document["error"]["message"].split("(")[1]
    )
    bot = await effects("hold", "all", "--reason", "x", "--as", "support-bot", "--yes")
    assert "proposes with" in bot.document["error"]["message"]
    listed = (await effects("keys", "show")).document["keys"]
    assert {key["owner"] for key in listed} >= {"alice", "bob", "olga", "oscar", "support-bot"}


async def test_migrate_tells_where_the_schema_stands(rig: Rig, effects: Effects) -> None:
    """A second run has nothing to do."""
    assert (await effects("migrate", "--check")).code == 0
    assert (await effects("migrate")).document["applied"] == []


def command(rig: Rig, *arguments: str, **extra: str) -> subprocess.CompletedProcess[bytes]:
    """One command as a process of its own."""
    return subprocess.run(
        [sys.executable, str(ROOT / "starter.py"), *arguments],
        env={**clean(os.environ), **surroundings(rig), **extra},
        cwd=rig.stack.root,
        capture_output=True,
        timeout=60,
        check=False,
    )


async def test_a_silent_server_is_named_within_ten_seconds(
    rig: Rig, effects: Effects, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Temporal or Postgres down: exit code 4 and the address, never a password."""
    target, nobody = rig.payment(), f"127.0.0.1:{free_port()}"
    dsn = f"postgresql://effects:very-secret@{nobody}/ledger"
    loop = asyncio.get_running_loop()
    for words, variable, value, server in (
        (refund(target, "15.00", a_key()), "TEMPORAL_ADDRESS", nobody, "Temporal"),
        (refund(target, "15.00", a_key()), "EFFECTS_LEDGER_DSN", dsn, "Postgres"),
        (["verify"], "EFFECTS_LEDGER_DSN", dsn, "Postgres"),
        (["migrate"], "EFFECTS_OWNER_DSN", dsn, "Postgres"),
    ):
        with monkeypatch.context() as changed:
            changed.setenv(variable, value)
            for as_json in (True, False):
                began = loop.time()
                spoken = await effects(*words, as_json=as_json)
                assert loop.time() - began < 10
                assert spoken.code == 4, spoken
                assert f"{server} at {nobody} did not answer" in (spoken.out if as_json else spoken.err)
                assert "very-secret" not in spoken.out + spoken.err
                if as_json:
                    assert spoken.document["error"]["address"] == nobody


async def test_no_worker_is_said_and_loses_nothing(rig: Rig, effects: Effects) -> None:
    """Temporal keeps a signal until a worker runs; the command says that nobody took it."""
    async with rig.worker():
        asked = await effects(*refund(rig.payment(), "50.00", a_key()))
    operation = asked.document["operation_id"]
    said = await effects("withdraw", operation, "--as", "olga", "--yes", "--wait", "0.5")
    assert (said.code, said.document["error"]["kind"]) == (6, "not settled")
    async with rig.worker():
        await rig.until(operation, "blocked")


async def test_ten_commands_in_a_row_end_with_zero(rig: Rig) -> None:
    """Temporal's client can abort an interpreter that ends at once: none of these may."""
    async with rig.worker():
        answer = await rig.propose(rig.proposal(rig.payment(), 5_000))
        words = ("look", answer.operation_id, "--wait", "0")
        ended: list[subprocess.CompletedProcess[bytes]] = []
        for _ in range(5):  # two at a time: starting Python is most of what they do
            ended += await asyncio.gather(*(asyncio.to_thread(command, rig, *words) for _ in range(2)))
    assert [(one.returncode, one.stderr) for one in ended] == [(0, b"")] * 10
