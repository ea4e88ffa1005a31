"""Arguments and options that several commands share, with their help."""

from pathlib import Path
from typing import Annotated, Any

import typer


def opt(told: str, *names: str, **more: Any) -> Any:
    """An option with its help; the name is the parameter's unless given."""
    return typer.Option(*names, help=told, show_default=False, **more)


def arg(told: str) -> Any:
    """An argument with its help."""
    return typer.Argument(help=told, show_default=False)


Json = Annotated[bool, typer.Option("--json", help="One JSON document on stdout, errors too.")]
OperationName = Annotated[
    str,
    typer.Argument(
        metavar="OPERATION", help="Its id, a unique beginning of it, or tenant/business-key.", show_default=False
    ),
]
As = Annotated[
    str,
    typer.Option(
        "--as", metavar="NAME", envvar="EFFECTS_AS", help="Who signs: NAME.pem in EFFECTS_KEYS_DIR.", show_default=False
    ),
]
KeyFile = Annotated[
    Path | None, typer.Option("--key-file", help="The private key to sign with, wherever it lies.", show_default=False)
]
Yes = Annotated[bool, typer.Option("--yes", help="Sign without a further question.")]
Reason = Annotated[str, typer.Option("--reason", help="Why; it is signed, and kept.", show_default=False)]
Wait = Annotated[float, typer.Option("--wait", min=0, help="Seconds to wait for a worker's word.")]
ConfigFolder = Annotated[
    Path, typer.Argument(metavar="[DIR]", help="The folder with tenants, policy, grants and people.", show_default=True)
]
