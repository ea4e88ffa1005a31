"""`make explore`: the nightly size. One line a scenario, the story of the first counter-example, and how many states in all."""

import sys
import time

from tests.exploration.scenarios import nightly, small
from tests.exploration.search import Search
from tests.exploration.system import System

MOST = 600_000  # states of one scenario; what is beyond has more steps than everything that was seen


def main(arguments: list[str]) -> int:
    """0 when every state of every scenario is good."""
    total, began = 0, time.process_time()
    wrong = 0
    for scenario in small() if "--small" in arguments else nightly():
        search, start = Search(System(scenario), most=MOST), time.process_time()
        found = search.run()
        seconds = time.process_time() - start
        total += len(search.states)
        size = f"{len(search.states):>9,} states{'' if search.whole or found else ' (not all)'}"
        chained = ", one after the other" if scenario.chained else ""
        faults = f"{scenario.limit} of {len(scenario.faults)} faults"
        what = f"{scenario.contract.name}, {faults}, {len(scenario.amounts)} operation(s){chained}"
        rate = f"{len(search.states) / max(seconds, 0.01):,.0f}/s"
        print(f"{size} {seconds:6.1f} s {rate:>9}  {what}: {'GOOD' if found is None else 'WRONG'}", flush=True)
        if found is not None:
            wrong += 1
            print(found, flush=True)
    print(f"{total:>9,} states in {time.process_time() - began:.0f} s of CPU, {wrong} scenario(s) wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
