"""The command line without any server: amounts, schedules, pages, exit codes, help."""

import io
import json
import os
from datetime import timedelta
from pathlib import Path

import pytest

import starter
from commands import amounts, keys, surroundings
from commands.exits import MEANING, Exit, Silent, table
from commands.page import Page
from commands.reading import address_of
from commands.voice import Voice, tell_error
from ledger.errors import Broken, Refused, Superseded, Unavailable
from ledger.money import CURRENCIES, shown

COMMANDS = (
    "propose refund", "inbox", "sheet", "approve", "decline", "withdraw", "show", "trail", "review", "resolve", "look",
    "hold", "release", "holds", "explain", "keys new", "keys test", "keys show", "config check", "config diff",
    "config apply", "migrate", "verify", "audit", "doctor", "clock advance", "demo", "up",
)  # fmt: skip


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No settings, no stack file, no keys of whoever runs the tests."""
    for name in os.environ:
        if name.startswith(("EFFECTS_", "TEMPORAL_")):
            monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))


@pytest.mark.parametrize(
    ("text", "currency", "minor"),
    [
        ("15.00", "eur", 1500),
        ("15", "eur", 1500),
        ("0.01", "eur", 1),
        ("1500", "jpy", 1500),
        ("1.230", "kwd", 1230),
        ("100.00", "isk", 10000),
        ("90071992547409.91", "eur", 9007199254740991),
    ],
)
def test_amounts_are_read_exactly(text: str, currency: str, minor: int) -> None:
    """No float in between: the last minor unit below 2^53 survives."""
    assert amounts.minor_units(text, currency) == minor


@pytest.mark.parametrize(
    ("text", "currency", "rule"),
    [
        ("15.0", "eur", "amount_decimals"),
        ("15.000", "eur", "amount_decimals"),
        ("15.00", "jpy", "amount_decimals"),
        ("1.23", "kwd", "amount_decimals"),
        ("1.234", "kwd", "amount_step"),
        ("1.50", "isk", "amount_step"),
        ("15,00", "eur", "amount_malformed"),
        ("1e3", "eur", "amount_malformed"),
        ("-15.00", "eur", "amount_malformed"),
        ("+15.00", "eur", "amount_malformed"),
        (" 15.00", "eur", "amount_malformed"),
        ("１５", "eur", "amount_malformed"),
        ("nan", "eur", "amount_malformed"),
        ("", "eur", "amount_malformed"),
        ("15.", "eur", "amount_malformed"),
        (".15", "eur", "amount_malformed"),
        ("0.00", "eur", "amount_not_positive"),
        ("90071992547409.92", "eur", "amount_too_large"),
        ("15.00", "EUR", "currency_malformed"),
        ("15.00", "xyz", "currency_unknown"),
        ("15.00", "twd", "currency_unchecked"),
    ],
)
def test_other_amounts_are_refused_with_their_rule(text: str, currency: str, rule: str) -> None:
    """What could be read in two ways is not read."""
    with pytest.raises(Refused) as refused:
        amounts.minor_units(text, currency)
    assert refused.value.rule == rule


def test_what_is_shown_is_read_back_as_the_same_amount() -> None:
    """Every currency of the table, both ways."""
    for currency, known in CURRENCIES.items():
        for minor in (known.step, 123 * known.step, 10**9 * known.step):
            text = shown(minor, currency).removesuffix(f" {currency.upper()}")
            assert amounts.minor_units(text, currency) == minor


def test_durations_are_read_and_told() -> None:
    """`+25h` is what clocks are moved by."""
    assert amounts.duration("+25h") == timedelta(hours=25)
    assert amounts.duration("1d2h30m") == timedelta(days=1, hours=2, minutes=30)
    assert amounts.duration("1.5s") == timedelta(seconds=1.5)
    for text in ("25", "h", "+", "25 h", "1e3s", "-25h"):
        with pytest.raises(Refused):
            amounts.duration(text)
    assert amounts.lasting(timedelta(hours=25, seconds=3)) == "1 d 1 h"
    assert amounts.lasting(timedelta(seconds=62)) == "1 min 2 s"
    assert amounts.lasting(timedelta()) == "0 s"


def test_the_exit_codes_are_one_table(capsys: pytest.CaptureFixture[str]) -> None:
    """Each has a meaning, `--help` prints them all, and each error has its own."""
    assert set(MEANING) == set(Exit)
    assert starter.main(["--help"]) == 0
    told = capsys.readouterr().out
    assert all(line in told for line in table().splitlines())
    for error, code in (
        (Refused("rule", "do this", field="x"), Exit.REFUSED),
        (Silent("Postgres", "127.0.0.1:1", "refused"), Exit.SILENT),
        (Unavailable("gone"), Exit.SILENT),
        (Broken("bad row"), Exit.BROKEN),
        (Superseded("lost"), Exit.UNSETTLED),
    ):
        assert tell_error(error, as_json=True) == code
        assert json.loads(capsys.readouterr().out)["error"]["exit"] == code
        assert tell_error(error, as_json=False) == code
        assert str(error) in capsys.readouterr().err


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_its_help(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    """With one sentence, and with `--json` wherever there is a document."""
    assert starter.main([*command.split(), "--help"]) == 0
    told = capsys.readouterr().out
    assert f"Usage: effects {command}" in told
    assert "--json" in told or command in ("demo", "up")


@pytest.mark.parametrize(
    ("words", "code", "kind"),
    [
        (["show"], 2, "wrong usage"),
        (["nonsense"], 2, "wrong usage"),
        (["resolve", "abcd"], 2, "wrong usage"),
        (["resolve", "abcd", "--undetermined", "--did-not-happen", "--evidence", "x"], 2, "wrong usage"),
        (["explain", "refund"], 2, "wrong usage"),
        (["explain", "refund", "--busy", "--lost-answer"], 2, "wrong usage"),
        (["explain", "refund", "--lost-answer", "--at", "tomorrow"], 3, "refused"),
        (["show", "abcd"], 3, "refused"),
        (["verify"], 3, "refused"),
        (["migrate"], 3, "refused"),
        (["clock", "advance", "+25h"], 3, "refused"),
        (["config", "check", "nowhere"], 3, "refused"),
        (["keys", "show", "--as", "nobody"], 3, "refused"),
        (["keys", "show", "--as", "../nobody"], 3, "refused"),
    ],
)
def test_errors_are_one_json_document_too(
    words: list[str], code: int, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """On stdout, with the exit code and what to do."""
    assert starter.main([*words, "--json"]) == code
    error = json.loads(capsys.readouterr().out)["error"]
    assert (error["exit"], error["kind"]) == (code, kind)
    assert error["message"]
    assert starter.main(words) == code
    said = capsys.readouterr()
    assert said.out == "" and said.err


def test_explain_tells_the_schedule_and_the_row(capsys: pytest.CaptureFixture[str]) -> None:
    """Inside the window the same request again; 25 hours later a look; nothing asks a server."""
    assert starter.main(["explain", "refund", "--lost-answer", "--at", "+25h", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["at"]["row"], told["at"]["step"]) == ("D9", "look")
    assert [s["row"] for s in told["steps"] if s["step"] == "repeat"][0] == "D7"
    lifetime, margin = told["contract"]["key"]["lifetime"], told["contract"]["key"]["margin"]
    assert told["schedule"]["repeat_until"] < lifetime - margin
    assert told["schedule"]["review_at"] == 4 * 3600
    for ending, row, step in (
        ("--stored-error", "D9", "look"),
        ("--busy", "D7", "repeat"),
        ("--refused", "D3", "reject"),
        ("--no-effect", "D3", "approve_again"),
        ("--applied", "D1", "succeed"),
        ("--misused", "D2", "review"),
        ("--open", "D0", "close_attempt"),
    ):
        assert starter.main(["explain", "refund", ending, "--at", "1h", "--json"]) == 0
        at = json.loads(capsys.readouterr().out)["at"]
        assert (at["row"], at["step"]) == (row, step), ending
    for ending in ("--mismatch", "--stored-error", "--refused"):
        assert starter.main(["explain", "refund", ending, "--json"]) == 0
        told = json.loads(capsys.readouterr().out)
        assert told["schedule"]["repeat_until"] is None, ending
        assert all(s["step"] != "repeat" for s in told["steps"]), ending
    assert starter.main(["explain", "refund", "--lost-answer", "--held", "--at", "1h", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["at"]["step"] == "wait"
    assert starter.main(["explain", "refund", "--lost-answer"]) == 0
    told_plainly = capsys.readouterr().out
    assert "repeat until: +22 h 57 min" in told_plainly and "ASSUMED" in told_plainly


def test_a_page_shows_untrusted_text_without_its_powers() -> None:
    """Escape sequences, bidi and line breaks are written out; nothing is read as markup."""
    nasty = "[bold]\x1b[31mred\u202egnp.exe\nforged: line"
    page = Page({"text": nasty})
    page.title(nasty)
    page.fact("name", nasty)
    page.table(("a",), [(nasty,)])
    plain, as_json, terminal = io.StringIO(), io.StringIO(), Terminal()
    page.print(plain)
    page.print_json(as_json)
    page.print(terminal)
    for told in (plain.getvalue(), as_json.getvalue(), terminal.getvalue()):
        assert "\x1b[31m" not in told and "\u202e" not in told
    assert "forged: line" not in plain.getvalue().splitlines()
    assert "[bold]" in plain.getvalue() and "[bold]" in terminal.getvalue()
    assert json.loads(as_json.getvalue()) == {"text": nasty}


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        """It is one."""
        return True


def test_a_question_needs_a_person(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a terminal it is wrong usage; on one, only a yes is a yes."""
    assert Voice().agreed("sign?", yes=True)
    for voice in (Voice(), Voice(as_json=True)):
        with pytest.raises(Exception, match="--yes"):
            voice.agreed("sign?", yes=False)
    for typed, agreed in (("y\n", True), ("yes\n", True), ("\n", False), ("n\n", False), ("", False)):
        monkeypatch.setattr("sys.stdin", Terminal(typed))
        assert Voice().agreed("sign?", yes=False) is agreed


def test_an_address_never_holds_a_login() -> None:
    """Whatever form the DSN has."""
    assert address_of("postgresql://user:secret@db.example:5433/ledger") == "db.example:5433"
    assert address_of("host=/run/postgresql user=me password=secret") == "/run/postgresql:5432"
    assert address_of("postgresql://u:secret@a:1,b:2/ledger") == "a:1,b:2"
    with pytest.raises(Refused) as refused:
        address_of("secret")
    assert "secret" not in str(refused.value)


def test_the_stack_file_is_read_when_nothing_is_set(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Ours and Temporal's names only; what is set already stays; and it is said."""
    for name in ("EFFECTS_LEDGER_DSN", "EFFECTS_TASK_QUEUE", "TEMPORAL_ADDRESS", "PYTHONPATH"):
        monkeypatch.setenv(name, "kept")
        if name == "EFFECTS_LEDGER_DSN":
            monkeypatch.delenv(name)
    surroundings.STACK_FILE.parent.mkdir(parents=True)
    lines = ("EFFECTS_LEDGER_DSN=postgresql://x", "EFFECTS_DEV=true", "TEMPORAL_ADDRESS=a:1", "PYTHONPATH=evil", "# no")
    surroundings.STACK_FILE.write_text("\n".join(lines))
    monkeypatch.setenv("EFFECTS_DEV", "false")
    given = surroundings.settings()
    assert (given.ledger_dsn, given.dev, os.environ["PYTHONPATH"]) == ("postgresql://x", False, "kept")
    assert os.environ["TEMPORAL_ADDRESS"] == "kept"
    assert "3 settings from .cache/stack/environment" in capsys.readouterr().err
    monkeypatch.setenv("EFFECTS_LEDGER_DSN", "postgresql://y")
    assert surroundings.settings().ledger_dsn == "postgresql://y"
    assert capsys.readouterr().err == ""


def test_a_new_key_is_encrypted_and_never_overwritten(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """0600, PKCS #8 with a passphrase; what is printed is the public half only."""
    folder = tmp_path / "keys"
    words = ["keys", "new", "alice", "--dir", str(folder), "--json"]
    assert starter.main(words) == 3  # nobody can be asked
    monkeypatch.setenv("EFFECTS_PASSPHRASE", "short")
    assert starter.main(words) == 3
    monkeypatch.setenv("EFFECTS_PASSPHRASE", "correct horse battery staple")
    capsys.readouterr()
    assert starter.main(words) == 0
    made = json.loads(capsys.readouterr().out)
    file = folder / "alice.pem"
    assert b"ENCRYPTED PRIVATE KEY" in file.read_bytes() and file.stat().st_mode & 0o777 == 0o600
    assert starter.main(words) == 3
    assert json.loads(capsys.readouterr().out)["error"]["rule"] == "key_exists"
    monkeypatch.setenv("EFFECTS_KEYS_DIR", str(folder))
    assert starter.main(["keys", "show", "--as", "alice", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"kid": made["kid"], "x": made["x"]}
    monkeypatch.setenv("EFFECTS_PASSPHRASE", "wrong horse")
    assert starter.main(["keys", "show", "--as", "alice", "--json"]) == 3
    assert json.loads(capsys.readouterr().out)["error"]["rule"] == "key_unreadable"
    assert "wrong horse" not in capsys.readouterr().out
    assert keys.key_path("alice", folder) == file


def test_faults_are_set_in_a_dev_stack_only(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nobody breaks a real provider: refused before anything is asked, with or without a ledger."""
    words = [
        "propose",
        "refund",
        "pi_1",
        "--amount",
        "1.00",
        "--currency",
        "eur",
        "--key",
        "k",
        "--requested-by",
        "mia",
    ]
    assert starter.main([*words, "--as", "bot", "--fault", "lost-answer", "--json"]) == 3
    assert json.loads(capsys.readouterr().out)["error"]["rule"] == "not_dev"
    monkeypatch.setenv("EFFECTS_DEV", "true")
    monkeypatch.setenv("EFFECTS_STRIPE_BASE_URL", "http://127.0.0.1:1")
    assert starter.main([*words, "--as", "bot", "--fault", "earthquake", "--json"]) == 2
    assert "lost-answer" in json.loads(capsys.readouterr().out)["error"]["message"]


def test_config_check_tells_every_problem(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Not only the first, and the example configuration has none."""
    example = Path(starter.__file__).parent / "config"
    assert starter.main(["config", "check", str(example), "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["digest"]) == 64
    for file in example.iterdir():
        text = file.read_text().replace("waive_total_per_target_minor = 40_00", "waive_total_per_target_minor = 1_00")
        (tmp_path / file.name).write_text(text.replace("limit_minor = 500_00", "limit_minor = 400_00"))
    assert starter.main(["config", "check", str(tmp_path), "--json"]) == 3
    rules = [problem["rule"] for problem in json.loads(capsys.readouterr().out)["problems"]]
    assert rules == ["waiver_totals", "people_too_few"]
