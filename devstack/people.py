"""Keys and configuration of a dev stack: the example configuration, with fresh keys in place of its placeholders."""

import os
import secrets
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import tomli_w
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from ledger.config import FILES, Document, parse
from ledger.config_check import check
from ledger.statement import key_id, load_private_pem, new_private_key, private_pem, public_x

EXAMPLE = Path(__file__).parent.parent / "config"


@dataclass(frozen=True)
class Holder:
    """Somebody with a private key."""

    name: str
    kid: str
    key: Ed25519PrivateKey


@dataclass(frozen=True)
class Access:
    """How a provider is reached: what its binding says, and the secret that the binding names."""

    account: str
    endpoint: str
    secret: str = field(repr=False)
    archive: str = ""


@dataclass(frozen=True)
class Household:
    """The configuration of a dev stack and everybody's keys, by name."""

    document: Document
    holders: dict[str, Holder]
    folder: Path

    @property
    def audience(self) -> str:
        """What every signature is made out to."""
        return self.document.ledger.name


def furnish(folder: Path, accesses: Mapping[str, Access]) -> Household:
    """Read the household of this folder, or make it: keys, encrypted with a passphrase beside them, and configuration.

    Only the providers in `accesses` are bound; proposals for others are refused.
    """
    config, keys = folder / "config", folder / "keys"
    if not (folder / "complete").exists():
        keys.mkdir(parents=True, exist_ok=True)
        config.mkdir(exist_ok=True)
        (folder / "secrets").mkdir(exist_ok=True)
        _private(keys / "passphrase", secrets.token_urlsafe(24))
        for name in FILES:
            text = _with_fresh_keys(tomllib.loads((EXAMPLE / name).read_text()), keys)
            (config / name).write_text(tomli_w.dumps(text))
        (folder / "complete").touch()
    # Where the outside systems listen changes with every start.
    tenants = tomllib.loads((EXAMPLE / "tenants.toml").read_text())
    tenants["bindings"] = [
        _bound(binding, accesses[binding["provider"]])
        for binding in tenants["bindings"]
        if binding["provider"] in accesses
    ]
    (config / "tenants.toml").write_text(tomli_w.dumps(tenants))
    for provider, access in accesses.items():
        _private(folder / "secrets" / f"{provider}_acme", access.secret)
    document = parse({name: (config / name).read_text() for name in FILES})
    check(document)
    passphrase = (keys / "passphrase").read_text()
    holders: dict[str, Holder] = {}
    kids = [(grant.name, grant.kid) for grant in document.grants]
    kids += [(person.name, key.kid) for person in document.people for key in person.keys]
    for owner, kid in kids:
        holders[owner] = Holder(owner, kid, load_private_pem((keys / f"{owner}.pem").read_bytes(), passphrase))
    return Household(document, holders, folder)


def _bound(binding: dict[str, Any], access: Access) -> dict[str, Any]:
    told = {"account": access.account, "endpoint": access.endpoint, "archive": access.archive}
    return binding | {name: value for name, value in told.items() if value}


def _with_fresh_keys(text: dict[str, Any], keys: Path) -> dict[str, Any]:
    for grant in text.get("grants", []):
        _fresh(grant, grant["name"], keys)
    for person in text.get("people", []):
        for key in person["keys"]:
            _fresh(key, person["name"], keys)
    return text


def _fresh(entry: dict[str, Any], owner: str, keys: Path) -> None:
    key = new_private_key()
    entry["x"] = public_x(key)
    entry["kid"] = key_id(owner, entry["x"])
    _private(keys / f"{owner}.pem", private_pem(key, (keys / "passphrase").read_text()).decode())


def _private(path: Path, text: str) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(text)
