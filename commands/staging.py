"""`demo` and `up`: the dev stack, imported only when asked for; nothing else of the command line knows it."""

import importlib


def demo(*, all_scenarios: bool) -> int:
    """Run the main job on an embedded stack."""
    return int(importlib.import_module("devstack.demo").run(all_scenarios))


def up() -> int:
    """Start the stack and leave it running."""
    return int(importlib.import_module("devstack.up").run())
