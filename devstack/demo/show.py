"""What the demo shows: acts, steps and the table. Rich on a terminal, plain lines everywhere else."""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from rich import box
from rich.console import Console
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from devstack.demo.promises import Row

HEADINGS = (
    "scenario",
    "ended as",
    "requests that\nreached the\nreceiver",
    "effects\nthat exist",
    "by",
    "seconds",
    "as\npromised",
)


class Show:
    """Writes to standard output; every line is there as soon as it is said."""

    def __init__(self) -> None:
        self._console = Console(highlight=False, markup=False)
        self._rich = self._console.is_terminal
        self._began = time.monotonic()

    @property
    def seconds(self) -> float:
        """Since the show began."""
        return time.monotonic() - self._began

    def say(self, text: str) -> None:
        """One plain line."""
        self._write(text)

    def act(self, title: str, broken: str, expected: str) -> None:
        """Open an act: what is broken, and what one would expect of it."""
        if self._rich:
            body = Text.assemble(("Broken: ", "bold"), broken, "\n", ("Expected: ", "bold"), expected)
            self._console.print()
            self._console.print(Panel(body, title=title, title_align="left", border_style="cyan", width=110))
            return
        self._write(f"\n== {title}\n   Broken: {broken}\n   Expected: {expected}")

    def step(self, text: str, who: str = "") -> None:
        """One thing that happened; `who` names the scenario where several run at once."""
        name = f"{who}: " if who else ""
        if self._rich:
            self._console.print(Text.assemble((f"{self.seconds:6.1f}s ", "dim"), (name, "cyan"), text))
        else:
            self._write(f"{self.seconds:6.1f}s {name}{text}")

    @contextmanager
    def waiting(self, text: str) -> Iterator[None]:
        """Say what is waited for; on a terminal with something that turns."""
        if not self._rich:
            yield
            return
        with self._console.status(Text(text)):
            yield

    def table(self, rows: Sequence[tuple[Row, list[str]]]) -> None:
        """All rows, each with whether it is as promised, and below what is not."""
        lines = [_cells(row, wrong) for row, wrong in rows]
        self._write("")
        if self._rich:
            self._rich_table(lines)
        else:
            self._plain_table(lines)
        for row, wrong in rows:
            for sentence in wrong:
                self._write(f"NOT AS PROMISED, {row.scenario}: {sentence}")

    def _rich_table(self, lines: Sequence[tuple[str, ...]]) -> None:
        title = "As the receivers' own records have it"
        table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), title=title, title_justify="left")
        for heading in HEADINGS:
            # On a narrow terminal cells fold; what is cut off could be what matters.
            table.add_column(heading, justify="right" if heading == "seconds" else "left", overflow="fold")
        for line in lines:
            table.add_row(*line[:-1], Text(line[-1], "green" if line[-1] == "yes" else "bold red"))
        self._console.print(table)

    def _plain_table(self, lines: Sequence[tuple[str, ...]]) -> None:
        headings = tuple(heading.replace("\n", " ") for heading in HEADINGS)
        widths = [max(len(line[n]) for line in (headings, *lines)) for n in range(len(headings))]
        rule = tuple("-" * width for width in widths)
        for line in (headings, rule, *lines):
            cells = (cell.ljust(width) for cell, width in zip(line, widths, strict=True))
            self._write(" | ".join(cells).rstrip())

    def _write(self, text: str) -> None:
        if self._rich:
            self._console.print(Text(text))
        else:
            print(text, flush=True)  # rich would wrap lines that somebody pipes into a file


def _cells(row: Row, wrong: list[str]) -> tuple[str, ...]:
    seconds = f"{row.seconds:.1f}"
    verdict = "no" if wrong else "yes"
    return (row.scenario, row.ended, row.requests, row.effects, row.by, seconds, verdict)
