"""Crash points for tests of recovery: at a named point of a dispatch this process kills or stops itself, once."""

import os
import signal
from collections.abc import Callable

from activities.ports import no_seam
from ledger.errors import Refused

NAMES = ("claimed", "guarded", "written", "answered", "recorded")
_SIGNALS = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP}


def seam(specification: str) -> Callable[[str], None]:
    """The crash point of NAME:kill|stop:FLAG-FILE. It fires only if it can delete the flag file, so once for all workers."""
    if not specification:
        return no_seam
    name, action, flag = (specification.split(":", 2) + ["", ""])[:3]
    if name not in NAMES or action not in _SIGNALS or not flag:
        raise Refused("seam_malformed", f"EFFECTS_SEAM is NAME:kill|stop:FLAG-FILE with NAME one of {', '.join(NAMES)}")

    def fire(reached: str) -> None:
        if reached != name:
            return
        try:
            os.unlink(flag)
        except FileNotFoundError:
            return
        os.kill(os.getpid(), _SIGNALS[action])

    return fire
