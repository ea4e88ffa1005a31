"""Files that commands write: new ones only, for their owner's eyes, and never half."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from ledger.errors import Refused


@contextmanager
def new_file(file: Path) -> Iterator[BinaryIO]:
    """A new file with mode 0600, on disk when the block has ended; removed again if it does not end well.

    Refused: `file_exists`, `file_unwritable`.
    """
    try:
        number = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError as error:
        raise Refused(
            "file_exists", f"{file} is there already: it is never overwritten; use --out", field="out"
        ) from error
    except OSError as error:
        raise Refused("file_unwritable", f"{file} cannot be written: {error.strerror}", field="out") from error
    try:
        with os.fdopen(number, "wb") as to:
            yield to
            to.flush()
            os.fsync(to.fileno())
    except BaseException:
        with suppress(OSError):
            file.unlink()
        raise
