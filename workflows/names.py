"""Names that workflows and their clients must agree on."""

TELL_PARENT = "tell_parent"  # memo of an operation whose parent wants to hear when it moves


def workflow_id(tenant: str, business_key: str) -> str:
    """The one workflow id of an intent."""
    return f"{tenant}/{business_key}"


def events_id(task_queue: str) -> str:
    """The one workflow id of the run that takes events. No operation has it: a tenant has no colon."""
    return f"events:{task_queue}"


def audit_id(task_queue: str) -> str:
    """The one workflow id of the audit. No operation has it: a tenant has no colon."""
    return f"audit:{task_queue}"


def order_id(tenant: str, order: str) -> str:
    """The one workflow id of an order. No operation has it: a tenant has no colon."""
    return f"order:{tenant}/{order}"
