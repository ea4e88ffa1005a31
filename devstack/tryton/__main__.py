"""`python -m devstack.tryton` makes the ERP's database ahead, so that nobody has to wait for it in a test or a demo."""

import sys

from devstack.child import DevstackError
from devstack.tryton.snapshot import dump


def main() -> int:
    """Build the dump unless it is there; 1 if something on this machine does not stand."""
    try:
        dump(lambda words: print(words, flush=True))
    except DevstackError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
