"""Makes this checkout importable from its own venv and puts the `effects` script beside its Python; touches nothing else."""

import stat
import sys
import sysconfig
from pathlib import Path

ROOT = Path(__file__).parent.parent
SCRIPT = """\
#!{python}
import sys
from starter import main
sys.exit(main())
"""


def install() -> None:
    """Write the path file and the script. An editable install would need a package layout that this checkout has not."""
    Path(sysconfig.get_path("purelib"), "effect_ledger.pth").write_text(f"{ROOT}\n")
    script = Path(sys.executable).parent / "effects"
    script.write_text(SCRIPT.format(python=sys.executable))
    script.chmod(script.stat().st_mode | stat.S_IXUSR | stat.S_IXGRP | stat.S_IXOTH)


if __name__ == "__main__":
    install()
