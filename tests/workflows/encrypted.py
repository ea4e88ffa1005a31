"""A rig whose Temporal client encrypts, with keys that workers find under the same names."""

import base64
import os
from dataclasses import replace

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
