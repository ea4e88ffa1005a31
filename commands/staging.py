"""`demo` and `up`: the dev stack, imported only when asked for."""


def demo(*, all_scenarios: bool) -> int:
    """Run the main job on an embedded stack."""
    from devstack.demo import run

    return run(all_scenarios)


def up(*, erp: bool) -> int:
    """Start the stack and leave it running."""
    from devstack.up import run

    return run(erp=erp)
