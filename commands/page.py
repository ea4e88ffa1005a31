"""What a command says, once: as JSON for programs, as lines for pipes, and with tables on a terminal.

Every text passes `visible` on its way in: no control, bidi or escape character of an agent or a provider reaches a terminal,
and nothing is ever read as markup.
"""

import json
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, TextIO

from commands.exits import Exit
from ledger.fingerprint import visible


@dataclass(frozen=True)
class Part:
    """One piece of a page; `kind` is title, fact, line, warning or table."""

    kind: str
    cells: tuple[str, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()


@dataclass
class Page:
    """Lines for people and one JSON document for programs, with the exit code they amount to."""

    document: dict[str, Any] = field(default_factory=dict)
    exit: Exit = Exit.ASKED
    parts: list[Part] = field(default_factory=list)

    def title(self, text: str) -> None:
        """What the next lines are about."""
        self.parts.append(Part("title", (visible(text),)))

    def fact(self, name: str, value: object) -> None:
        """One named value. Nothing is shown for an empty one."""
        if value is not None and str(value) != "":
            self.parts.append(Part("fact", (name, visible(str(value)))))

    def say(self, text: str) -> None:
        """Text of our own, each line of it on a line."""
        self.parts.extend(Part("line", (visible(line),)) for line in text.split("\n"))

    def warn(self, text: str) -> None:
        """What nobody should overlook."""
        self.parts.append(Part("warning", (visible(text),)))

    def table(self, headers: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
        """Rows under headers; nothing for no rows."""
        cells = tuple(tuple(visible(str(cell)) for cell in row) for row in rows)
        if cells:
            self.parts.append(Part("table", tuple(headers), cells))

    def print_json(self, out: TextIO | None = None) -> None:
        """One document, ASCII only: what it carries cannot act on the terminal that shows it."""
        print(json.dumps(self.document, indent=2, default=str), file=out or sys.stdout, flush=True)

    def print(self, out: TextIO | None = None) -> None:
        """For people: with tables and weight on a terminal, plain lines elsewhere."""
        stream = out or sys.stdout
        if stream.isatty():
            _print_rich(self.parts, stream)
        else:
            _print_plain(self.parts, stream)


def _print_plain(parts: Sequence[Part], stream: TextIO) -> None:
    for part in parts:
        match part.kind:
            case "fact":
                print(f"{part.cells[0]}: {part.cells[1]}", file=stream)
            case "warning":
                print(f"! {part.cells[0]}", file=stream)
            case "table":
                widths = [max(map(len, column)) for column in zip(part.cells, *part.rows, strict=True)]
                for row in (part.cells, *part.rows):
                    line = "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))
                    print(line.rstrip(), file=stream)
            case _:
                print(part.cells[0], file=stream)
    stream.flush()


def _print_rich(parts: Sequence[Part], stream: TextIO) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(file=stream, highlight=False, markup=False, emoji=False)
    for part in parts:
        match part.kind:
            case "title":
                console.print(Text(part.cells[0], style="bold"))
            case "fact":
                console.print(Text.assemble((f"{part.cells[0]}: ", "dim"), part.cells[1]), soft_wrap=True)
            case "warning":
                console.print(Text(f"! {part.cells[0]}", style="bold yellow"), soft_wrap=True)
            case "table":
                drawn = Table(box=None, pad_edge=False)
                for header in part.cells:
                    drawn.add_column(Text(header))
                for row in part.rows:
                    drawn.add_row(*[Text(cell, overflow="fold") for cell in row])
                console.print(drawn)
            case _:
                console.print(Text(part.cells[0]), soft_wrap=True)
