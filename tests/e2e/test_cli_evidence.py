"""`effects evidence` and `effects checkpoint`, from a real refund to an auditor who has neither our database nor our package."""

import asyncio
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ledger.statement import public_x
from tests.conftest import Rig
from tests.e2e.spoken import Effects, speaking
from tests.e2e.test_cli import a_key, refund

ROOT = Path(__file__).parents[2]
KEPT = ROOT / "tests" / "unit" / "evidence"


@pytest.fixture
def effects(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> Iterator[Effects]:
    """Run a command in this process, beside the worker's loop; with JSON unless told otherwise."""
    yield from speaking(rig, monkeypatch)


def audited(folder: Path, *words: str | Path) -> subprocess.CompletedProcess[str]:
    """What the script says that an auditor copied into an empty folder, with a Python that looks nowhere else."""
    shutil.copy(ROOT / "docs" / "verify_evidence.py", folder)
    command = [sys.executable, "-I", "verify_evidence.py", *map(str, words)]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=60, check=False)


async def test_an_auditor_verifies_what_people_approved_and_what_they_settled(
    rig: Rig, effects: Effects, tmp_path: Path
) -> None:
    """One answer is lost and found by a look a day later; one request is lost, and two operators certify that.

    With EFFECTS_RECORD set, what is written here is what tests/unit/test_evidence.py tampers with.
    """
    found, lost = rig.payment(), rig.payment()
    async with rig.worker():
        operations = []
        for target, faults in ((found, ("lost-answer",)), (lost, ())):
            for fault in faults:
                rig.stack.stripe.control.fault(fault, payment_intent=target)
            rig.stack.stripe.control.fault("lost-request", times=None, payment_intent=target, replay=bool(faults))
            asked = (await effects(*refund(target, "50.00", a_key()))).document["operation_id"]
            assert (await effects("approve", asked, "--as", "alice", "--yes")).code == 0
            await rig.until(asked, "unknown")
            operations.append(asked)
        await effects("clock", "advance", "+25h")
        await rig.until(operations[0], "succeeded")
        await rig.until(operations[1], "needs_review")
        words = ["resolve", operations[1], "--did-not-happen", "--evidence", "the log of POST is empty", "--yes"]
        for operator in ("olga", "oscar"):
            assert (await effects(*words, "--as", operator)).code == 0
    marked = await effects("checkpoint", "--as", "olga", "--out", str(tmp_path / "checkpoint.jsonl"))
    assert (marked.code, marked.document["trails"]) == (0, 3), marked
    key = public_x(rig.holder("olga").key)
    digest = marked.document["config_digest"]
    for name, asked in zip(("found", "settled"), operations, strict=True):
        written = await effects("evidence", asked, "--out", str(tmp_path / f"{name}.json"))
        assert (written.code, (tmp_path / f"{name}.json").stat().st_mode & 0o777) == (0, 0o600), written
        words = [f"{name}.json", "--config", digest, "--checkpoint", "checkpoint.jsonl", key]
        said = await asyncio.to_thread(audited, tmp_path, *words)
        assert (said.returncode, said.stderr) == (0, ""), said
        assert said.stdout.count("ok  ") == 12 and f"It holds: {asked}" in said.stdout
        again = await effects("evidence", asked, "--out", str(tmp_path / "again.json"))
        assert again.document["sha256"] == written.document["sha256"]
        (tmp_path / "again.json").unlink()
    refused = await effects("evidence", operations[0], "--out", str(tmp_path / "found.json"))
    assert (refused.code, refused.document["error"]["rule"]) == (3, "file_exists")
    told = await effects("verify", "--checkpoint", str(tmp_path / "checkpoint.jsonl"))
    assert (told.code, told.document["verified"]["checkpointed trails"]) == (0, 3), told
    assert (await effects("erase", operations[0], "--by", "mira", "--reason", "asked for", "--yes")).code == 0
    gone = await effects("evidence", operations[0], "--out", str(tmp_path / "gone.json"))
    assert (gone.code, gone.document["error"]["rule"]) == (3, "erased") and not (tmp_path / "gone.json").exists()
    told = await effects("verify", "--checkpoint", str(tmp_path / "checkpoint.jsonl"))
    assert (told.code, told.document["differences"]) == (0, []), told
    text = (tmp_path / "found.json").read_text()
    (tmp_path / "changed.json").write_text(text.replace(rig.effects(found)[0].refund, "re_other"))
    changed = await asyncio.to_thread(audited, tmp_path, "changed.json")
    assert changed.returncode == 1 and "NO  Both trails are whole" in changed.stdout
    if os.environ.get("EFFECTS_RECORD"):
        for name in ("found.json", "settled.json", "checkpoint.jsonl"):
            shutil.copy(tmp_path / name, KEPT)
        (KEPT / "known.json").write_text(json.dumps({"key": key, "config": digest}) + "\n")
