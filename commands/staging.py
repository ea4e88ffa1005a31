"""`demo` and `up`: the dev stack, imported only when asked for, and not part of an image."""

from importlib.util import find_spec

from commands.voice import tell_error
from ledger.errors import Refused


def demo(*, all_scenarios: bool) -> int:
    """Run the main job on an embedded stack."""
    if find_spec("devstack") is None:
        return _nowhere()
    from devstack.demo import run

    return run(all_scenarios)


def up(*, erp: bool) -> int:
    """Start the stack and leave it running."""
    if find_spec("devstack") is None:
        return _nowhere()
    from devstack.up import run

    return run(erp=erp)


def _nowhere() -> int:
    return tell_error(
        Refused("dev_stack_missing", "no dev stack is installed here: run it in a checkout"), as_json=False
    )
