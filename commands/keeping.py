"""The wiring of `effects keys`, `effects config` and `effects register`: what must stand before anything is sent."""

from pathlib import Path
from typing import Annotated

import typer

from commands import options
from commands.voice import run

keys = typer.Typer(help="Private keys: make, try, show.", no_args_is_help=True, rich_markup_mode=None)
config = typer.Typer(help="Who may ask, who may permit, where it goes.", no_args_is_help=True, rich_markup_mode=None)


@keys.command("new")
def keys_new(
    name: Annotated[str, options.arg("Whose key: a person or a service.")],
    folder: Annotated[Path | None, options.opt("Instead of EFFECTS_KEYS_DIR.", "--dir")] = None,
    as_json: options.Json = False,
) -> int:
    """Make an Ed25519 key, encrypted with a passphrase, and print its public half to paste."""
    from commands.keys import new

    return run(as_json, lambda voice: new(voice, name, folder))


@keys.command("test")
def keys_test(who: options.As = "", key_file: options.KeyFile = None, as_json: options.Json = False) -> int:
    """Sign a dummy and verify it with the configuration in force."""
    from commands.keys import test

    return run(as_json, lambda voice: test(voice, who, key_file))


@keys.command("show")
def keys_show(who: options.As = "", key_file: options.KeyFile = None, as_json: options.Json = False) -> int:
    """The public half of one key, or every key that the configuration in force names."""
    from commands.keys import show

    return run(as_json, lambda voice: show(voice, who, key_file))


@config.command("check")
def config_check(folder: options.ConfigFolder = Path("config"), as_json: options.Json = False) -> int:
    """Whether the files fit together; needs no server."""
    from commands.configuring import check

    return run(as_json, lambda voice: check(voice, folder))


@config.command("diff")
def config_diff(folder: options.ConfigFolder = Path("config"), as_json: options.Json = False) -> int:
    """What the files would change, and what that would do to waiting operations."""
    from commands.configuring import compare

    return run(as_json, lambda voice: compare(voice, folder))


@config.command("apply")
def config_apply(
    by: Annotated[str, options.opt("Who applies it; told in the trail.")],
    folder: options.ConfigFolder = Path("config"),
    yes: Annotated[bool, options.opt("Even if it touches waiting operations.", "--yes")] = False,
    as_json: options.Json = False,
) -> int:
    """Make the files the configuration in force (owner's DSN)."""
    from commands.configuring import apply

    return run(as_json, lambda voice: apply(voice, folder, by, yes=yes))


def register(
    retention_days: Annotated[int, options.opt("Make a missing namespace; it keeps ended runs this long.", min=0)] = 0,
    as_json: options.Json = False,
) -> int:
    """Register the search attributes in Temporal's namespace; what is there stays."""
    from commands.registering import register

    return run(as_json, lambda voice: register(voice, retention_days))
