"""Settings from variables and from files of the secrets folder."""

import os
from pathlib import Path

import pytest

from activities.ports import Secrets
from activities.settings import Settings
from commands import surroundings
from commands.exits import Misuse
from ledger.errors import Refused


@pytest.fixture(autouse=True)
def secrets(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A secrets folder, and no setting of whoever runs the tests."""
    for name in os.environ:
        if name.startswith(("EFFECTS_", "TEMPORAL_")):
            monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "secrets"
    folder.mkdir()
    monkeypatch.setenv("EFFECTS_SECRETS_DIR", str(folder))
    return folder


def test_a_dsn_is_read_from_its_file(secrets: Path) -> None:
    """Whatever editor wrote its last line; providers' secrets beside it are no settings.

    Red: leave the third source out of `settings_customise_sources`.
    """
    (secrets / "effects_ledger_dsn").write_text("postgresql://worker:p@ledger-db/ledger\n")
    (secrets / "effects_owner_dsn").write_text("postgresql://owner:p@ledger-db/ledger")
    (secrets / "effects_inbox_dsn").write_text("postgresql://inbox:p@ledger-db/ledger")
    (secrets / "stripe_acme").write_text("a provider's secret")
    given = Settings.load()
    found = (given.ledger_dsn, given.owner_dsn, given.inbox_dsn)
    assert found == tuple(f"postgresql://{name}:p@ledger-db/ledger" for name in ("worker", "owner", "inbox"))
    assert "a provider's secret" not in repr(given)


def test_a_variable_goes_before_its_file(secrets: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that one run can be told otherwise. Without a folder there are only variables."""
    (secrets / "effects_ledger_dsn").write_text("postgresql://from-the-file")
    monkeypatch.setenv("EFFECTS_LEDGER_DSN", "postgresql://from-the-variable")
    assert Settings.load().ledger_dsn == "postgresql://from-the-variable"
    monkeypatch.delenv("EFFECTS_LEDGER_DSN")
    monkeypatch.setenv("EFFECTS_SECRETS_DIR", "")
    assert Settings.load().ledger_dsn == ""


def test_a_file_that_says_nothing_usable_is_refused_by_its_variable(secrets: Path) -> None:
    """And its content is not repeated."""
    (secrets / "effects_pool_size").write_text("hunter2")
    with pytest.raises(Refused, match="EFFECTS_POOL_SIZE") as refused:
        Settings.load()
    assert refused.value.rule == "setting_malformed" and "hunter2" not in str(refused.value)
    with pytest.raises(Misuse, match="EFFECTS_POOL_SIZE"):
        surroundings.settings()


def test_a_file_that_this_user_may_not_read_is_named(secrets: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As with a secret that was made for another account. Root reads everything: the refusal is made by hand."""
    (secrets / "effects_ledger_dsn").write_text("postgresql://x")

    def denied(path: Path, *args: object, **more: object) -> str:
        raise PermissionError(13, "Permission denied", str(path))

    (secrets / "stripe_acme").write_text("sk")
    monkeypatch.setattr(Path, "read_text", denied)
    with pytest.raises(Refused, match="Permission denied: .*effects_ledger_dsn.: whoever runs this") as refused:
        Settings.load()
    assert refused.value.rule == "setting_unreadable"
    with pytest.raises(Refused, match="stripe_acme cannot be read by who runs this: Permission denied") as refused:
        Secrets(secrets).read("stripe_acme")
    assert refused.value.rule == "secret_malformed"  # an order asks again, a delivery is answered with 503


def test_a_secrets_folder_is_not_mixed_with_a_dev_stack(secrets: Path) -> None:
    """Somebody who names one means another ledger than that of `make up`, even if its DSN is missing.

    Red: ask `surroundings.settings` for EFFECTS_LEDGER_DSN only.
    """
    surroundings.STACK_FILE.parent.mkdir(parents=True)
    surroundings.STACK_FILE.write_text("EFFECTS_LEDGER_DSN=postgresql://dev\nEFFECTS_DEV=true")
    given = surroundings.settings()
    assert (given.ledger_dsn, given.dev) == ("", False)
