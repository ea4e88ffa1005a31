"""The deployment as written: docker-compose.yml and deploy/ say what code and README say. Nothing is started."""

import base64
import os
import re
import shutil
import subprocess
import tomllib
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml
from temporalio.envconfig import ClientConfig

from activities.settings import Settings
from providers.registry import default_registry
from tests.unit.test_docs import command_of
from worker import drain_seconds

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
TEXT = (ROOT / "docker-compose.yml").read_text()
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
ONCE = {"migrate", "configure", "register", "temporal-schema"}
WORKERS = {"worker-1", "worker-2"}
OURS = {"migrate", "configure", "register", "inbox", "codec", *WORKERS}
ANSWERS = {"CONFIG_DIR": "./config", "APPLIED_BY": "mira", "INBOX_ACCOUNT": "acct_1Abc"}
# Made by others at this moment, and mounted here: take a name out of this set when its file is there.
AWAITED = {"deploy/alerts.yml", "deploy/dashboard.json", "EFFECTS_METRICS_HOST", "EFFECTS_METRICS_PORT"}


@cache
def composed() -> dict[str, Any]:
    """The file as YAML reads it, with anchors resolved."""
    found: dict[str, Any] = yaml.safe_load(TEXT)
    return found


def services() -> dict[str, dict[str, Any]]:
    """Every service by name."""
    found: dict[str, dict[str, Any]] = composed()["services"]
    return found


def mounts(service: dict[str, Any]) -> dict[str, str]:
    """Where what is mounted lies on the host, by its place in the container. Variables stand as they are written."""
    pairs = (re.fullmatch(r"(\$\{.*?\}[^:]*|[^:]+):(/[^:]+)(:ro)?", text) for text in service.get("volumes", []))
    return {pair[2]: pair[1] for pair in pairs if pair}


def seconds(text: str) -> float:
    """A duration like 75s."""
    found = re.fullmatch(r"(\d+)s", text)
    assert found, text
    return float(found[1])


def test_every_image_is_one_that_the_page_names() -> None:
    """By an exact tag and a digest; ours is of this version, and never fetched. Red: write `latest` for a tag."""
    for name, service in services().items():
        image = service["image"]
        if name in OURS:
            assert image == f"effect-ledger:{PROJECT['version']}" and service["pull_policy"] == "build"
            assert service["build"] == "."
        else:
            assert re.fullmatch(r"[a-z/-]+:v?\d+\.\d+[\w.-]*@sha256:[0-9a-f]{64}", image), image
        assert f"`{image.partition('@')[0]}`" in README, image


def test_every_variable_that_is_asked_for_is_explained() -> None:
    """In .env.example and in README; without a default it says what to do. Red: ask for one more."""
    asked = dict(re.findall(r"\$\{(\w+)(:[?-][^}]*)?\}", TEXT))
    example = (ROOT / ".env.example").read_text()
    assert set(asked) == set(re.findall(r"^#?([A-Z_]+)=", example, re.MULTILINE))
    assert set(asked) == set(re.findall(r"^\| `([A-Z_]+)` \|", README, re.MULTILINE)) - settings_variables()
    assert {name for name, more in asked.items() if not more.startswith(":?set ")} == {
        "SECRETS_DIR",
        "PAYLOAD_KEYS",
        "NOTICES_URL",
    }
    assert not re.search(r"(?<!\$)\$(?![{$])", TEXT)


def settings_variables() -> set[str]:
    """Every variable that the code reads as a setting."""
    return {f"EFFECTS_{name.upper()}" for name in Settings.model_fields}


def test_every_setting_exists_in_code() -> None:
    """Ours in `Settings`, Temporal's in its envconfig. Red: misspell one."""
    for name in OURS:
        told = services()[name].get("environment", {})
        ours = {key for key in told if not key.startswith("TEMPORAL_")}
        assert ours - AWAITED <= settings_variables(), name
        config = ClientConfig.load_client_connect_config(
            override_env_vars={k: v for k, v in told.items() if k not in ours}, config_file=os.devnull
        )
        if len(ours) < len(told):
            assert (config["target_host"], config["namespace"]) == ("temporal:7233", "effects"), name


def test_the_web_ui_offers_no_button_that_has_no_place_here() -> None:
    """The names are those of the UI server's own configuration (temporalio/ui, server/config/docker.yaml).

    And it asks the codec that asks for exactly its origin.
    """
    told = services()["temporal-ui"]["environment"]
    codec = services()["codec"]
    assert codec["environment"]["EFFECTS_CODEC_ORIGIN"] == f"http://{services()['temporal-ui']['ports'][0][:14]}"
    assert told["TEMPORAL_CODEC_ENDPOINT"] == f"http://{codec['ports'][0][:14]}"
    off = {f"TEMPORAL_{what}_DISABLED" for what in ("WORKFLOW_RESET", "START_WORKFLOW", "BATCH_ACTIONS")}
    assert {name for name, value in told.items() if value == "true" and name.endswith("DISABLED")} == {
        *off,
        "TEMPORAL_ACTIVITY_COMMANDS_DISABLED",
    }


def test_every_port_is_on_the_loopback_address_and_on_the_page() -> None:
    """Red: leave out the address, and Docker opens the port to everybody."""
    ports = [port for service in services().values() for port in service.get("ports", [])]
    opened = {re.fullmatch(r"(127\.0\.0\.1:\d+):\d+", port)[1] for port in ports}  # type: ignore[index]
    assert opened == set(re.findall(r"^\| `(127\.0\.0\.1:\d+)` \|", README, re.MULTILINE))
    assert len(opened) == len(ports)


def test_every_network_is_our_own() -> None:
    """And nothing reaches around it: no host network, no privilege, no way into Docker itself."""
    assert composed()["networks"] == dict.fromkeys(("ledger", "temporal", "codec", "observe"), {})
    for name, service in services().items():
        assert set(service["networks"]) <= set(composed()["networks"]), name
        assert not {"network_mode", "privileged", "pid", "ipc", "cap_add", "devices"} & service.keys(), name
        assert "docker.sock" not in str(service), name
    for name in OURS:
        service = services()[name]
        assert service["cap_drop"] == ["ALL"] and service["read_only"] and service["init"], name


def test_a_worker_is_given_the_time_that_it_takes_to_drain() -> None:
    """As long as the longest lease of today's contracts, and some seconds for the interpreter. Red: 120s."""
    drain = drain_seconds(SimpleNamespace(timing=None, registry=default_registry()))  # type: ignore[arg-type]
    assert f"({drain:.0f} s with the contracts of today)" in README
    for name in WORKERS:
        assert seconds(services()[name]["stop_grace_period"]) >= drain + 10, name
    assert seconds(services()["inbox"]["stop_grace_period"]) >= 20


def test_no_password_is_written_down() -> None:
    """Whatever has the name of a secret is a path to one, and no address holds a login."""
    for name, service in services().items():
        for key, value in service.get("environment", {}).items():
            if re.search(r"PASSWORD|PWD|TOKEN|_KEY$|DSN|SECRET", key):
                assert str(value).startswith("/run/secrets"), f"{name}: {key}"
    assert not re.search(r"://[^\s/]*@", TEXT + (ROOT / "Dockerfile").read_text())
    assert not re.search(r"trust|scram|md5", TEXT)  # nobody tells Postgres to ask for less than it does by itself


def test_each_service_sees_its_own_secrets_only() -> None:
    """Ours by one folder, the others by single files. Red: mount the folder of all."""
    holders = {
        "migrate": "owner",
        "configure": "owner",
        "inbox": "inbox",
        "codec": "codec",
        **dict.fromkeys(WORKERS, "worker"),
    }
    for name, service in services().items():
        folders = [place for place in mounts(service).values() if "SECRETS_DIR" in place]
        assert folders == ([f"${{SECRETS_DIR:-./deploy/secrets}}/{holders[name]}"] if name in holders else []), name
        assert not (name in OURS and "secrets" in service), name
    single = {name: service["secrets"] for name, service in services().items() if "secrets" in service}
    assert {name for name, files in single.items() if any("dsn" in file for file in files)} == {"ledger-db"}
    assert set(composed()["secrets"]) == {file for files in single.values() for file in files}


def test_what_runs_for_long_tells_its_health_and_what_runs_once_is_waited_for() -> None:
    """No worker starts on a ledger that was not migrated and configured, or a namespace that lacks its attributes."""
    assert set(services()) > ONCE
    for name, service in services().items():
        assert (name in ONCE) != ("healthcheck" in service), name
        for needed, condition in service.get("depends_on", {}).items():
            wanted = "service_completed_successfully" if needed in ONCE else "service_healthy"
            assert condition == {"condition": wanted}, f"{name}: {needed}"
    for name in WORKERS:
        assert set(services()[name]["depends_on"]) == {"migrate", "configure", "register"}
    port = services()["worker-1"]["environment"]["EFFECTS_METRICS_PORT"]
    assert f":{port}/metrics" in str(services()["worker-1"]["healthcheck"])
    scraped = yaml.safe_load((ROOT / "deploy" / "prometheus.yml").read_text())["scrape_configs"][0]
    assert set(scraped["static_configs"][0]["targets"]) == {f"{name}:{port}" for name in WORKERS}


def test_every_command_can_be_typed() -> None:
    """Command, arguments and options exist. Red: rename `effects register`."""
    for name in OURS:
        words = services()[name]["command"]
        if name in WORKERS:
            assert words == ["python", "-m", "worker"] and (ROOT / "worker.py").exists()
            continue
        assert words[0] == "effects"
        command, arguments = command_of(words[1:])
        command.make_context(" ".join(words), list(arguments))


def test_everything_that_is_mounted_is_there() -> None:
    """Docker makes an empty folder of a file that is missing, and says nothing."""
    for name, service in services().items():
        for place in mounts(service).values():
            if place.startswith("./") and place.removeprefix("./") not in AWAITED:
                assert (ROOT / place).exists(), f"{name}: {place}"
    for script in ("ledger-db/logins.sh", "temporal/schema.sh", "temporal/server.sh", "secrets.sh"):
        # Postgres' image would run one without the bit inside its own shell
        assert os.access(ROOT / "deploy" / script, os.X_OK), script
        subprocess.run(["sh", "-n", ROOT / "deploy" / script], check=True)


def test_a_compose_parser_accepts_it(tmp_path: Path) -> None:
    """Debian's docker-compose, with every profile; and what is not said is asked for in words."""
    program = shutil.which("docker-compose")
    if program is None:
        assert os.environ.get("CI") != "true", "in CI docker-compose must be there: .ci/run installs it"
        pytest.skip("there is no docker-compose here (Debian: apt install docker-compose)")
    plain = {"PATH": os.environ["PATH"], "HOME": str(ROOT)}
    (tmp_path / "env").touch()  # not the .env of whoever runs the tests
    command = [program, "--env-file", str(tmp_path / "env"), "--profile", "observe", "config"]
    accepted = subprocess.run(command, cwd=ROOT, env=plain | ANSWERS, capture_output=True, text=True)
    assert accepted.returncode == 0, accepted.stderr
    found = yaml.safe_load(accepted.stdout)
    assert set(found["services"]) == set(services()) and accepted.stderr == ""
    for name in ANSWERS:
        answers = {k: v for k, v in ANSWERS.items() if k != name}
        refused = subprocess.run(command, cwd=ROOT, env=plain | answers, capture_output=True, text=True)
        assert refused.returncode != 0 and f"set {name} to" in refused.stderr, refused


def test_secrets_are_made_once_and_differ(tmp_path: Path) -> None:
    """Each DSN under the name that its setting has, with a password of its own; run again, nothing is lost.

    Red: write a file that is there.
    """
    folder = tmp_path / "secrets"
    first: dict[str, str] = {}
    for _ in range(2):
        subprocess.run(
            ["sh", ROOT / "deploy" / "secrets.sh"],
            env={"PATH": os.environ["PATH"], "SECRETS_DIR": str(folder)},
            check=True,
            capture_output=True,
        )
        made = {path.relative_to(folder).as_posix(): path.read_text() for path in folder.rglob("*") if path.is_file()}
        first = first or {name: text for name, text in made.items() if "payload_key" not in name}
    shared = {made.pop(f"{holder}/payload_key") for holder in ("worker", "reader", "codec")}
    assert made == first and len(set(made.values())) == len(made) == 8
    assert [len(base64.b64decode(key)) for key in shared] == [32] and len(made.pop("codec/codec_token")) > 40
    assert folder.stat().st_mode & 0o777 == 0o700
    dsns = {name: urlsplit(text.strip()) for name, text in made.items() if name.endswith("_dsn")}
    assert {name: (parts.username, parts.hostname, parts.port) for name, parts in dsns.items()} == {
        "owner/effects_owner_dsn": ("effects_owner", "ledger-db", 5432),
        "worker/effects_ledger_dsn": ("effects_worker_login", "ledger-db", 5432),
        "inbox/effects_inbox_dsn": ("effects_inbox_login", "ledger-db", 5432),
        "reader/effects_ledger_dsn": ("effects_reader_login", "ledger-db", 5432),
    }
    assert {f"EFFECTS_{name.split('/effects_')[1].upper()}" for name in dsns} <= settings_variables()
    for parts in dsns.values():
        assert len(parts.password or "") == 48
    wanted = {secret["file"] for secret in composed()["secrets"].values()}
    assert wanted == {f"${{SECRETS_DIR:-./deploy/secrets}}/{name}" for name in made}


def test_temporals_schema_is_made_and_brought_forward(tmp_path: Path) -> None:
    """Both databases, in this order, with the password out of its file; the tool itself is a stand-in here."""
    (tmp_path / "temporal_db_password").write_text("of-temporal\n")
    tool = tmp_path / "temporal-sql-tool"
    tool.write_text(f'#!/bin/sh\necho "$SQL_PASSWORD $*" >> {tmp_path}/calls\n')
    tool.chmod(0o755)
    subprocess.run(
        ["sh", ROOT / "deploy" / "temporal" / "schema.sh"],
        env={"PATH": f"{tmp_path}:{os.environ['PATH']}", "SECRETS": str(tmp_path)},
        check=True,
    )
    schema = "/etc/temporal/schema/postgresql/v12"
    assert (tmp_path / "calls").read_text().splitlines() == [
        f"of-temporal --db {db} {what}"
        for db, name in (("temporal", "temporal"), ("temporal_visibility", "visibility"))
        for what in ("create", "setup-schema -v 0.0", f"update-schema -d {schema}/{name}/versioned")
    ]
    server = services()["temporal"]["environment"]
    assert (server["DBNAME"], server["VISIBILITY_DBNAME"]) == ("temporal", "temporal_visibility")
    assert server["DB"] == services()["temporal-schema"]["environment"]["SQL_PLUGIN"] == "postgres12"
