"""The command line; see `effects --help`."""


def main() -> int:
    """Not yet."""
    return 0
