"""Notices and the ledger's connections: whoever posts them leaves the others to moves."""

import base64
from pathlib import Path

import httpx

from activities.notices import Poster
from activities.settings import Settings
from devstack.ports import LOOPBACK, free_port
from ledger.store.database import Ledger
from tests.store.conftest import WORKER, Book


async def test_a_receiver_that_fails_for_many_at_once_takes_one_connection(own_book: Book, tmp_path: Path) -> None:
    """Nobody listens, so all tries end together. Red: write each down as soon as it ends: the pool queues them before moves."""
    asked = [await own_book.asked() for _ in range(5)]
    (tmp_path / "notices").write_text("whsec_" + base64.b64encode(b"n" * 32).decode())
    settings = Settings(notices_url=f"http://{LOOPBACK}:{free_port()}/", secrets_dir=tmp_path)
    ledger = Ledger(own_book.dsn(WORKER), max_size=1)
    await ledger.open()
    try:
        ledger.pool_numbers()
        async with httpx.AsyncClient() as http:
            assert await Poster(settings, ledger).round(http) == len(asked)
        assert ledger.pool_numbers().get("requests_queued", 0) == 0
    finally:
        await ledger.close()
    rows = await own_book.rows("select problem from notices where kind = 'waiting'")
    assert [row["problem"] for row in rows] == ["ConnectError"] * len(asked)
