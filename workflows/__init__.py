"""Order and waiting: what comes after what, and for how long. No rules, no I/O; the ledger decides."""
