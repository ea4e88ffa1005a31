"""docker-compose.yml without Docker: its processes with its variables, commands, secret files and logins, on real servers.

Only where things listen differs. Nothing of a dev stack is on: no movable clock, no crash points, the contracts' own bounds.
"""

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import psycopg
import pytest
import yaml
from temporalio.client import Client

from activities.messages import Answer, Proposal
from devstack.child import Child
from devstack.people import Access, Household, furnish
from devstack.ports import LOOPBACK, free_port
from devstack.postgres import Postgres, find_programs
from devstack.stack import SECRET_KEY, WEBHOOK_SECRET
from devstack.stripe_standin.launch import StandInProcess
from devstack.stripe_standin.webhooks import deliver
from devstack.temporal_server import TemporalServer
from workflows.client import propose, sign
from workflows.converter import converter_with

ROOT = Path(__file__).parents[2]
SERVICES: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]
QUEUE = "effect-ledger"


@dataclass
class Deployed:
    """What docker-compose.yml says, on this machine."""

    folder: Path
    postgres: Postgres
    temporal: TemporalServer
    stripe: StandInProcess
    household: Household
    inbox_port: int = field(default_factory=free_port)
    codec_port: int = field(default_factory=free_port)
    metrics_port: dict[str, int] = field(default_factory=dict)

    def environment(self, name: str) -> dict[str, str]:
        """The service's variables, each with what stands in this place for what compose or a container would put there."""
        written = SERVICES[name].get("environment", {})
        told = {key: re.sub(r"\$\{\w+:-(.*?)\}", r"\1", value) for key, value in written.items()}
        here = {
            "EFFECTS_SECRETS_DIR": str(self.folder / "secrets" / self._holder(name)),
            "TEMPORAL_ADDRESS": self.temporal.address,
            "EFFECTS_INBOX_HOST": LOOPBACK,
            "EFFECTS_INBOX_PORT": str(self.inbox_port),
            "EFFECTS_INBOX_ACCOUNT": self.household.document.bindings[0].account,
            "EFFECTS_CODEC_HOST": LOOPBACK,
            "EFFECTS_CODEC_PORT": str(self.codec_port),
            "EFFECTS_METRICS_HOST": LOOPBACK,
            "EFFECTS_METRICS_PORT": str(self.metrics_port.setdefault(name, free_port())),
        }
        told |= {key: value for key, value in here.items() if key in told}
        # the receiver is not part of the topology: in production it is Stripe's own address
        stand_in = {"EFFECTS_STRIPE_BASE_URL": self.stripe.base_url} if name.startswith("worker") else {}
        return {"PATH": os.environ["PATH"], "HOME": "/"} | told | stand_in

    def _holder(self, name: str) -> str:
        """Whose folder of secrets this service mounts."""
        found = re.search(r"secrets\}/(\w+):/run/secrets:ro", " ".join(SERVICES[name].get("volumes", [])))
        return found[1] if found else ""

    def command(self, name: str) -> list[str]:
        """What the service runs."""
        words = [word for word in SERVICES[name]["command"] if not word.startswith("${")]
        if words[0] == "python":
            return [sys.executable, *words[1:]]
        words = [str(self.household.folder / "config") if word == "/config" else word for word in words[1:]]
        return [sys.executable, "-m", "starter", *words, *(["mira"] if words[-1] == "--by" else [])]

    def once(self, name: str) -> str:
        """Run a one-shot service to its end, which must be good; what it said."""
        ran = subprocess.run(
            self.command(name), cwd=self.folder, env=self.environment(name), capture_output=True, text=True, timeout=60
        )
        assert ran.returncode == 0, (name, ran.stdout, ran.stderr)
        return ran.stdout

    def start(self, name: str) -> Child:
        """Start a service that stays."""
        log = self.folder / f"{name}.log"
        return Child.spawn(
            self.command(name), name=name, log=log, env=self.environment(name), cwd=self.folder, grace_seconds=30
        )

    def of(self, holder: str) -> dict[str, str]:
        """What README tells somebody to set who works from another machine."""
        folder = str(self.folder / "secrets" / holder)
        return self.environment("register") | {"EFFECTS_SECRETS_DIR": folder, "EFFECTS_PAYLOAD_KEYS": "payload_key"}

    def effects(self, holder: str, *words: str, **more: str) -> subprocess.CompletedProcess[str]:
        """The command line with somebody's secrets."""
        env = self.of(holder) | more
        command = [sys.executable, "-m", "starter", *words]
        return subprocess.run(command, cwd=self.folder, env=env, capture_output=True, text=True, timeout=60)

    def effects_each(self, holder: str, *commands: str) -> dict[str, int]:
        """Several commands in one process, which is quicker; the exit code of each."""
        program = "import sys, starter; print([starter.main(words.split()) for words in sys.argv[1:]], file=sys.stderr)"
        ran = subprocess.run(
            [sys.executable, "-c", program, *commands],
            cwd=self.folder,
            env=self.of(holder),
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert ran.returncode == 0, ran.stderr
        return dict(zip(commands, json.loads(ran.stderr.splitlines()[-1]), strict=True))

    def secret(self, holder: str, name: str = "effects_ledger_dsn") -> str:
        """What stands in somebody's file."""
        return (self.folder / "secrets" / holder / name).read_text().strip()


@pytest.fixture
def deployed(tmp_path: Path) -> Iterator[Deployed]:
    """Postgres with the logins of deploy/ledger-db, a Temporal on a file that knows nothing of us, Stripe's stand-in."""
    with ExitStack() as started:
        postgres = started.enter_context(Postgres(tmp_path / "postgres", durable=False))
        started.callback(postgres.remove)
        temporal = started.enter_context(
            TemporalServer(tmp_path / "temporal", search_attributes={}, db_file=tmp_path / "temporal.db", ui=False)
        )
        stripe = started.enter_context(StandInProcess(tmp_path / "stripe.sqlite"))
        account = stripe.control.wait_ready()
        household = furnish(tmp_path / "household", {"stripe": Access(account, "", SECRET_KEY)})
        secrets = tmp_path / "secrets"
        quiet = {"PATH": os.environ["PATH"], "SECRETS_DIR": str(secrets)}
        address = {"LEDGER_ADDRESS": f"{LOOPBACK}:{postgres.port}"}
        subprocess.run(["sh", ROOT / "deploy" / "secrets.sh"], env=quiet | address, check=True, capture_output=True)
        (secrets / "worker" / "stripe_acme").write_text(SECRET_KEY)
        (secrets / "inbox" / "stripe_webhook").write_text(WEBHOOK_SECRET)
        _make_logins(postgres, secrets, tmp_path / "mounted")
        yield Deployed(tmp_path, postgres, temporal, stripe, household)


def _make_logins(postgres: Postgres, secrets: Path, mounted: Path) -> None:
    """As Postgres' image runs the script: with the files under the names that compose gives them."""
    whole = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["secrets"]
    mounted.mkdir()
    for name, secret in whole.items():
        (mounted / name).write_text((secrets / secret["file"].partition("secrets}/")[2]).read_text())
    parts = psycopg.conninfo.conninfo_to_dict(postgres.dsn())
    login = {"PGHOST": LOOPBACK, "PGPORT": str(postgres.port), "PGPASSWORD": str(parts["password"])}
    program = {"PATH": f"{find_programs()}:{os.environ['PATH']}", "SECRETS": str(mounted)}
    subprocess.run([ROOT / "deploy" / "ledger-db" / "logins.sh"], env=login | program, check=True, capture_output=True)


async def test_the_deployed_topology_refunds_and_survives_a_kill(deployed: Deployed) -> None:
    """One-shots, two workers, inbox, codec; a refund that waits for a person while the worker that has it in mind is killed.

    The judge is the stand-in's journal. Red: grant `effects_worker` nothing in deploy/ledger-db/logins.sh; or take
    `register` out of docker-compose.yml.
    """
    prepared(deployed)
    workers = [deployed.start("worker-1"), deployed.start("worker-2")]
    inbox, codec = deployed.start("inbox"), deployed.start("codec")
    try:
        for worker in workers:
            await until_it_polls(worker)
        converter = converter_with("payload_key", lambda name: deployed.secret("reader", name))
        client = await Client.connect(deployed.temporal.address, namespace="effects", data_converter=converter)
        at_once, waiting = proposal(deployed, 1_500), proposal(deployed, 5_000)
        assert (await settled(client, at_once, "succeeded")).receipt == journal(deployed, at_once)[0].refund
        assert (await settled(client, waiting, "awaiting_approval")).until
        survivor = await kill_the_one_that_has_it(client, waiting, workers)
        approve(deployed, waiting)
        answer = await settled(client, waiting, "succeeded")
        assert [effect.refund for effect in journal(deployed, waiting)] == [answer.receipt]
        await tell_the_inbox(deployed, inbox, waiting)
        await codec_answers(deployed, codec)
        readers_see(deployed, answer)
        for child in (survivor, inbox, codec):
            child.signal(signal.SIGTERM)
        assert [child.wait(30) for child in (survivor, inbox, codec)] == [0] * 3, survivor.log_tail()
    finally:
        for child in (*workers, inbox, codec):
            child.kill()


def prepared(deployed: Deployed) -> None:
    """The one-shots in their order, the last twice as at a second `up`; and what the worker's login may not do of it."""
    forbidden = deployed.effects("worker", "migrate")
    assert forbidden.returncode == 3 and "EFFECTS_OWNER_DSN" in forbidden.stderr
    for name in ("migrate", "register", "configure"):
        deployed.once(name)
    assert "nothing changed" in deployed.once("configure")
    policy = deployed.household.folder / "config" / "policy.toml"
    text = policy.read_text()
    policy.write_text(text.replace("= 2000", "= 1999", 1))
    stolen = ["config", "apply", str(policy.parent), "--by", "mallory", "--yes"]
    refused = deployed.effects("worker", *stolen, EFFECTS_OWNER_DSN=deployed.secret("worker"))
    policy.write_text(text)
    assert refused.returncode == 5 and "permission denied" in refused.stderr, refused
    with psycopg.connect(deployed.postgres.dsn("ledger")) as conn:
        kept = conn.execute("select rolname, rolpassword like 'SCRAM-SHA-256$%' from pg_authid where rolcanlogin")
        assert dict(kept.fetchall()) == dict.fromkeys(
            ("postgres", "effects_owner", "effects_worker_login", "effects_inbox_login", "effects_reader_login"), True
        )
        applied = conn.execute("select body::json ->> 'applied_by' from events where kind = 'config_applied'")
        assert applied.fetchall() == [("mira",)]
        assert conn.execute("select count(*) from clock").fetchone() == (0,)
    with psycopg.connect(deployed.secret("owner", "effects_owner_dsn"), autocommit=True) as conn:
        for tried in (
            "create role mine",
            "create database mine",
            "copy events to program 'true'",
            "alter system reset all",
        ):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                conn.execute(tried)


async def until_it_polls(worker: Child) -> None:
    """Wait for its word; a worker that refused to start has ended."""
    deadline = time.monotonic() + 60
    while '"worker polls"' not in worker.log_tail():
        assert worker.alive and time.monotonic() < deadline, worker.log_tail()
        await asyncio.sleep(0.05)


def proposal(deployed: Deployed, amount: int) -> Proposal:
    """A signed refund; above 20.00 a person must agree."""
    bot = deployed.household.holders["support-bot"]
    asked = Proposal(
        tenant="acme",
        business_key=f"order-{amount}",
        action="refund",
        target=deployed.stripe.control.create_payment(10_000, "eur").payment_intent,
        arguments={"amount_minor": amount, "currency": "eur"},
        actor="support-bot",
        requested_by="mia",
        evidence=[{"kind": "ticket", "reference": "T-1"}],
    )
    return sign(asked, bot.key, kid=bot.kid, iss=bot.name, aud=deployed.household.audience)


async def settled(client: Client, asked: Proposal, state: str) -> Answer:
    """Ask, and ask again, until it stands there."""
    deadline = time.monotonic() + 60
    while (answer := await propose(client, asked, task_queue=QUEUE)).state != state:
        assert time.monotonic() < deadline and not answer.ended, answer
        await asyncio.sleep(0.2)
    return answer


def journal(deployed: Deployed, asked: Proposal) -> list[Any]:
    """The refunds of its payment that exist at the receiver."""
    return list(deployed.stripe.control.journal(payment_intent=asked.target).effects)


async def kill_the_one_that_has_it(client: Client, asked: Proposal, workers: list[Child]) -> Child:
    """SIGKILL of the worker that did the workflow's last task, so that the other must take it over; the other one."""
    history = await client.get_workflow_handle(f"{asked.tenant}/{asked.business_key}").fetch_history()
    assert asked.requested_by not in str(history.events)  # encrypted, as docker-compose.yml says
    done = [e.workflow_task_completed_event_attributes.identity for e in history.events]
    last = [identity for identity in done if identity][-1]
    (killed,) = [worker for worker in workers if last.startswith(f"{worker.pid}@")]
    killed.kill()
    return workers[1 - workers.index(killed)]


def approve(deployed: Deployed, asked: Proposal) -> None:
    """A person on a machine of their own, with the reader's login."""
    keys = deployed.household.folder / "keys"
    mine = {"EFFECTS_KEYS_DIR": str(keys), "EFFECTS_PASSPHRASE_FILE": str(keys / "passphrase")}
    name = f"{asked.tenant}/{asked.business_key}"
    said = deployed.effects("reader", "approve", name, "--as", "alice", "--yes", **mine)
    assert said.returncode == 0, (said.stdout, said.stderr)


async def codec_answers(deployed: Deployed, codec: Child) -> None:
    """To whoever comes from the Web UI's address."""
    origin = SERVICES["codec"]["environment"]["EFFECTS_CODEC_ORIGIN"]
    async with httpx.AsyncClient(trust_env=False, base_url=f"http://{LOOPBACK}:{deployed.codec_port}") as http:
        assert (await http.get("/health")).status_code == 200, codec.log_tail()
        asked = {"Origin": origin, "Access-Control-Request-Method": "POST"}
        allowed = await http.options("/decode", headers=asked)
    assert allowed.headers["access-control-allow-origin"] == origin


async def tell_the_inbox(deployed: Deployed, inbox: Child, asked: Proposal) -> None:
    """What Stripe would deliver is kept under the inbox's own login; what nobody signed is not."""
    url = f"http://{LOOPBACK}:{deployed.inbox_port}"
    async with httpx.AsyncClient(trust_env=False) as http:
        assert (await http.get(f"{url}/health")).json() == {"answers": True}, inbox.log_tail()
    event = deployed.stripe.control.events(asked.target)[-1]
    for secret, code in ((WEBHOOK_SECRET, 200), ("whsec_stolen", 400)):
        assert (await asyncio.to_thread(deliver, f"{url}/stripe", event, secret)).status_code == code
    refused = pytest.raises(psycopg.errors.InsufficientPrivilege)
    with psycopg.connect(deployed.secret("inbox", "effects_inbox_dsn")) as conn, refused:
        conn.execute("select * from inbox_events")


def readers_see(deployed: Deployed, answer: Answer) -> None:
    """Every command that only reads, with the reader's login; and the login writes nothing, by role or by mistake."""
    one, config = answer.operation_id, deployed.household.folder / "config"
    said = deployed.effects_each(
        "reader", f"show {one}", f"trail {one}", "trail", "inbox", "review", f"sheet {one}", "holds", "keys show",
        "verify", "audit --wait 0", "doctor", "migrate --check", f"config diff {config}",
    )  # fmt: skip
    assert set(said.values()) == {0}, said
    with psycopg.connect(deployed.secret("reader"), autocommit=True) as conn:
        with pytest.raises(psycopg.errors.ReadOnlySqlTransaction):
            conn.execute("create temp table mine (x int)")
        conn.execute("set default_transaction_read_only = off")
        for tried in ("create temp table mine (x int)", "update operations set reason = 'x'"):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                conn.execute(tried)
