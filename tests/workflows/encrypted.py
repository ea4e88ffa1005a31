"""A rig whose Temporal client encrypts, with keys that workers find under the same names."""

import base64
import json
import os
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from google.protobuf.json_format import ParseDict
from temporalio.api.common.v1 import Payload
from temporalio.client import Client

from activities.ports import Secrets
from tests.conftest import Rig
from workflows.converter import converter_with


async def encrypting(rig: Rig, names: str) -> Rig:
    """The same rig, whose client has these keys, or none; a worker gets them by `worker(payload_keys=names)`."""
    folder = rig.stack.household.folder / "secrets"
    for name in filter(None, names.split(",")):
        if not (folder / name).exists():
            (folder / name).write_text(base64.b64encode(os.urandom(32)).decode())
    converter = converter_with(names, Secrets(folder).read)
    return replace(rig, client=await Client.connect(rig.stack.servers.temporal.address, data_converter=converter))


def payloads_in(history: str) -> Iterator[tuple[str, Payload]]:
    """Every payload in a history that was written as JSON, and where it stands."""
    yield from _payloads(json.loads(history), "")


def _payloads(kept: Any, where: str) -> Iterator[tuple[str, Payload]]:
    if isinstance(kept, dict) and "encoding" in (kept.get("metadata") or {}):
        yield where, ParseDict(kept, Payload())
    elif isinstance(kept, dict):
        for name, inside in kept.items():
            yield from _payloads(inside, where if name in ("events", "payloads") else f"{where}.{name}".strip("."))
    elif isinstance(kept, list):
        for inside in kept:
            yield from _payloads(inside, where)
