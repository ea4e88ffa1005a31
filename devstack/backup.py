"""A Postgres that can be taken back to a moment: it archives its log, gives base backups, and is recovered from both.

For the restore drill in the tests. What is done is what an operator does with pg_basebackup, an archive and
recovery_target_name; the server keeps its folder and its port.
"""

import os
import shutil
import signal
import tempfile
import time
from pathlib import Path

import psycopg

from devstack.postgres import Postgres, PostgresError

_BACKUP_SECONDS = 60.0
_RECOVERY_SECONDS = 60.0


class ArchivingPostgres(Postgres):
    """One server whose log is archived from its first start on."""

    @property
    def _archive(self) -> Path:
        return self._place / "archive"

    def _command(self) -> list[str]:
        self._archive.mkdir(exist_ok=True)
        self._give(self._archive)
        keep = f"test ! -f '{self._archive}/%f' && cp '%p' '{self._archive}/%f'"
        return [*super()._command(), "-c", "archive_mode=on", "-c", f"archive_command={keep}"]

    def back_up(self) -> Path:
        """A base backup of the running server; returns its folder."""
        backup = Path(tempfile.mkdtemp(prefix="backup-", dir=self._place))
        self._give(backup)
        argv = [str(self._programs / "pg_basebackup"), "-D", str(backup), "-d", self.dsn()]
        argv += ["--checkpoint=fast", "--wal-method=none", "--no-manifest"]
        if not self.durable:
            argv.append("--no-sync")
        with self._spawn(argv, "pg_basebackup", signal.SIGTERM) as child:
            if (code := child.wait(_BACKUP_SECONDS)) != 0:
                raise PostgresError(f"pg_basebackup ended with {code}; its last lines:\n{child.log_tail()}")
        return backup

    def mark(self, name: str) -> None:
        """A moment that can be gone back to."""
        with psycopg.connect(self.dsn(), autocommit=True) as connection:
            connection.execute("select pg_create_restore_point(%s)", [name])

    def go_back(self, backup: Path, name: str) -> None:
        """Stop, put the backup in the place of what is there, recover to the mark, and go on from there."""
        self._running().stop()  # a clean stop archives the rest of the log
        cluster = self._place / "data"
        shutil.rmtree(cluster)
        shutil.copytree(backup, cluster, symlinks=True)
        with open(cluster / "postgresql.auto.conf", "a") as settings:
            settings.write(f'restore_command = \'cp "{self._archive}/%f" "%p"\'\n')
            settings.write(f"recovery_target_name = '{name}'\nrecovery_target_action = 'promote'\n")
        (cluster / "recovery.signal").touch()
        for path in (cluster, *cluster.rglob("*")):
            self._give(path)
        self._launch(keep_port=True)
        deadline = time.monotonic() + _RECOVERY_SECONDS
        with psycopg.connect(self.dsn(), autocommit=True) as connection:
            while _in_recovery(connection):
                if time.monotonic() >= deadline:
                    raise PostgresError(f"recovery to {name} does not end; its log is {self.root / 'postgres.log'}")
                time.sleep(0.02)

    def _give(self, path: Path) -> None:
        if self._account is not None:
            os.chown(path, self._account.uid, self._account.gid)


def _in_recovery(connection: psycopg.Connection[tuple[bool]]) -> bool:
    row = connection.execute("select pg_is_in_recovery()").fetchone()
    return row is None or bool(row[0])
