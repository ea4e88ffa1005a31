"""The seeded ERP database, made once and kept as a dump: a minute or two the first time, seconds ever after.

The dump holds Tryton's own views, translations and chart of accounts, so it is built on each machine and never committed.
"""

import fcntl
import hashlib
import os
import secrets
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import psycopg
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict

from devstack.child import Child, StillRuns
from devstack.postgres import Postgres, find_programs
from devstack.tryton.names import ADMIN
from devstack.tryton.seed import seed
from devstack.tryton.server import (
    ROLE,
    ROOT,
    TrytonServer,
    TrytonServerError,
    find_program,
    plain_environment,
    write_config,
)

CACHE = ROOT / ".cache" / "erp"
DATABASE = "erp"

_FOLDER = Path(__file__).parent
# Whatever shapes the database: with another version or another seed it is another dump.
_INGREDIENTS = (ROOT / "requirements" / "erp.txt", *(_FOLDER / f"{name}.py" for name in ("names", "records", "seed")))
# These bring the rest of the modules with them.
_MODULES = ("purchase", "account_invoice")
_BUILD_SECONDS = 900.0
_SAY_SECONDS = 15.0

Say = Callable[[str], None]


def ready_server(root: Path, postgres: Postgres, *, cache: Path = CACHE, say: Say = print) -> TrytonServer:
    """A server, not yet started, over the seeded database, which is put into this running Postgres unless it is there."""
    return TrytonServer(root, postgres, password=install(postgres, cache=cache, say=say), database=DATABASE)


def install(postgres: Postgres, *, database: str = DATABASE, cache: Path = CACHE, say: Say = print) -> str:
    """Put the seeded database into a running Postgres, unless it is there; returns the password of the role `tryton`.

    A database that is there is left as it is, with all that was written into it since.
    """
    password = make_role(postgres)
    with psycopg.connect(postgres.dsn(), autocommit=True) as connection:
        known = connection.execute("select 1 from pg_database where datname = %s", [database]).fetchone()
    if known is None:
        source = dump(say, cache=cache)
        say("Tryton: restoring the seeded database …")
        # Restored under another name, so that what is found under its own is always whole.
        unfinished = f"{database}_unfinished"
        postgres.drop_database(unfinished)
        _create_database(postgres, unfinished)
        _run("pg_restore", postgres, "--dbname", unfinished, "--no-owner", f"--role={ROLE}", "--exit-on-error", source)
        with psycopg.connect(postgres.dsn(), autocommit=True) as connection:
            rename = sql.SQL("alter database {} rename to {}")
            connection.execute(rename.format(sql.Identifier(unfinished), sql.Identifier(database)))
    return password


def dump(say: Say, *, cache: Path = CACHE) -> Path:
    """The dump of this checkout's seed, which is built first unless it is there; who comes second waits for the first."""
    path = cache / f"{digest()}.dump"
    if path.exists():
        return path
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / "lock").open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            say("Tryton: another run is making the database; waiting for it …")
            fcntl.flock(lock, fcntl.LOCK_EX)
        if not path.exists():
            _build(path, say)
    return path


def digest() -> str:
    """Names the dump: equal for equal versions, seed and Postgres programs."""
    shown = subprocess.run([find_programs() / "pg_dump", "--version"], check=True, capture_output=True).stdout
    hashed = hashlib.sha256(shown + repr(_MODULES).encode())
    for path in _INGREDIENTS:
        hashed.update(path.read_bytes())
    return hashed.hexdigest()[:16]


def make_role(postgres: Postgres) -> str:
    """Make the role `tryton` unless it is there; its password is kept beside the cluster, and returned."""
    note = postgres.root / f"{ROLE}.password"
    if not note.exists():
        note.touch(mode=0o600)
        note.write_text(secrets.token_hex(16))
    password = note.read_text()
    with psycopg.connect(postgres.dsn(), autocommit=True) as connection:
        known = connection.execute("select 1 from pg_roles where rolname = %s", [ROLE]).fetchone()
        # Set each time: a run that was killed may have written the note and made no role.
        statement = "alter role {} login password {}" if known else "create role {} login password {}"
        connection.execute(sql.SQL(statement).format(sql.Identifier(ROLE), sql.Literal(password)))
    return password


def _build(path: Path, say: Say) -> None:
    begun = time.monotonic()
    say("Tryton: making its database, once for this version and seed; this takes a minute or two …")
    with tempfile.TemporaryDirectory(prefix="effect-ledger-erp-") as folder:
        root = Path(folder)
        # Not durable: what a crash leaves is thrown away.
        postgres = Postgres(root / "postgres", durable=False)
        try:
            postgres.start()
            password = make_role(postgres)
            _create_database(postgres, DATABASE)
            _activate(root, postgres, password, lambda words: say(f"Tryton, {_since(begun)}: {words}"))
            tryton = TrytonServer(root, postgres, password=password, database=DATABASE)
            with tryton, tryton.session(ADMIN) as admin:
                seed(admin, lambda words: say(f"Tryton, {_since(begun)}: {words}"))
            unfinished = path.with_suffix(".unfinished")
            _run("pg_dump", postgres, "--dbname", DATABASE, "--format=custom", "--no-owner", f"--file={unfinished}")
            unfinished.rename(path)
        finally:
            postgres.remove()
    say(f"Tryton, {_since(begun)}: kept in {path}")


def _activate(root: Path, postgres: Postgres, password: str, say: Say) -> None:
    """Let Tryton make its tables, views and translations."""
    secret = root / "admin.password"
    secret.touch(mode=0o600)
    secret.write_text(ADMIN.password)
    config = write_config(root, postgres, password)
    command = [str(find_program("trytond-admin")), "-c", str(config), "-d", DATABASE, "-u", *_MODULES]
    command += ["--activate-dependencies", "--email", "admin@acme.example", "--password"]
    environment = plain_environment(root) | {"TRYTONPASSFILE": str(secret)}
    with Child.spawn(command, name="trytond-admin", log=root / "admin.log", env=environment, cwd=root) as child:
        deadline = time.monotonic() + _BUILD_SECONDS
        while True:
            try:
                code = child.wait(_SAY_SECONDS)
                break
            except StillRuns:
                if time.monotonic() >= deadline:
                    words = f"trytond-admin still runs after {_BUILD_SECONDS:.0f} s"
                    raise TrytonServerError(f"{words}; its last lines:\n{child.log_tail()}") from None
                say("making tables, views and translations …")
        if code != 0:
            raise TrytonServerError(f"trytond-admin ended with {code}; its last lines:\n{child.log_tail()}")


def _create_database(postgres: Postgres, name: str) -> None:
    with psycopg.connect(postgres.dsn(), autocommit=True) as connection:
        statement = sql.SQL("create database {} owner {} template template0 encoding 'UTF8'")
        connection.execute(statement.format(sql.Identifier(name), sql.Identifier(ROLE)))


def _run(program: str, postgres: Postgres, *arguments: str | Path) -> None:
    """Run a client program of Postgres as the superuser."""
    # Not on the command line, where every process of the machine could read the password.
    login = conninfo_to_dict(postgres.dsn())
    environment = {f"PG{name.upper()}": str(login[name]) for name in ("host", "port", "user", "password")}
    done = subprocess.run(
        [find_programs() / program, *arguments],
        env={"PATH": os.defpath, "LC_ALL": "C", **environment},
        capture_output=True,
        text=True,
    )
    if done.returncode != 0:
        raise TrytonServerError(f"{program} ended with {done.returncode}:\n{done.stderr.strip()}")


def _since(begun: float) -> str:
    return f"{time.monotonic() - begun:.0f} s"
