"""What README tells a service to run is run, as it stands there, against the real stack."""

import asyncio
import json
import os
import re
import sys
import uuid
from pathlib import Path
from typing import Any

import pytest

from devstack.stack import clean
from tests.conftest import Rig

ROOT = Path(__file__).parents[2]

# Put before the program that needs nothing of ours: it must not find anything of ours either.
ALONE = """\
import sys

class Nothing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("activities", "commands", "devstack", "inbox", "ledger", "providers", "workflows"):
            raise ImportError(f"{name} is ours")

sys.meta_path.insert(0, Nothing())
"""


def snippet(name: str) -> str:
    """The program that stands under this marker in README.md."""
    found = re.search(rf"<!-- snippet:{name} -->\n```python\n(.*?)^```", (ROOT / "README.md").read_text(), re.M | re.S)
    assert found is not None, f"README.md has no program under snippet:{name}"
    return found[1]


async def run(rig: Rig, program: str, folder: Path, *, payment: str, key: str) -> list[dict[str, Any]]:
    """Run a program as its reader would; every answer it printed."""
    keys = rig.stack.household.folder / "keys"
    file = folder / f"{uuid.uuid4().hex}.py"
    file.write_text(program)
    environment = {
        **clean(os.environ),
        **rig.stack.environment(),
        "EFFECTS_KEYS_DIR": str(keys),
        "EFFECTS_PASSPHRASE_FILE": str(keys / "passphrase"),
        "PAYMENT": payment,
        "KEY": key,
        "KID": rig.holder("support-bot").kid,
    }
    running = await asyncio.create_subprocess_exec(
        sys.executable, str(file), env=environment, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    out, err = await asyncio.wait_for(running.communicate(), 60)
    assert running.returncode == 0, f"{running.returncode}: {err.decode()[-2000:]}"
    return [json.loads(line) for line in out.decode().splitlines()]


async def test_the_program_with_our_module_and_the_one_without_ask_for_the_same(rig: Rig, tmp_path: Path) -> None:
    """The second, run after the first with the same variables, is the poll: same operation, one request, one refund.

    Red: change any of the six fields in one of the programs; the digests differ and the key is refused.
    """
    target = rig.payment()
    async with rig.worker():
        with_module = await run(rig, snippet("client"), tmp_path, payment=target, key="order-1001")
        without = await run(rig, ALONE + snippet("json"), tmp_path, payment=target, key="order-1001")
    assert (with_module[-1]["state"], without[-1]["state"]) == ("succeeded", "succeeded")
    assert with_module[-1]["operation_id"] == without[-1]["operation_id"]
    assert [e.refund for e in rig.effects(target)] == [without[-1]["receipt"]]
    assert len(rig.posts(target)) == 1


@pytest.mark.parametrize("name", ["client", "json"])
async def test_each_program_makes_one_refund_although_the_answer_is_lost(rig: Rig, tmp_path: Path, name: str) -> None:
    """Alone, on a payment of its own, with the fault that README is about."""
    target = rig.payment()
    rig.stack.stripe.control.fault("lost-answer", payment_intent=target)
    async with rig.worker():
        told = await run(rig, snippet(name), tmp_path, payment=target, key=f"order-{name}")
    assert (told[-1]["state"], told[-1]["advice"]) == ("succeeded", "Done; the effect exists. Do not ask for it again.")
    assert [(e.amount, e.refund) for e in rig.effects(target)] == [(1_500, told[-1]["receipt"])]
