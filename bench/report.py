"""Figures, told: on the terminal, as JSON, and as the section of docs/performance.md that is never typed by hand."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from bench.machine import told

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from bench.figures import Figure, Result

SCHEMA = 1
SHOWN = (
    "append at 10 / raw",
    "append at 10,000 / raw",
    "SQLite: append at 10,000 /",
    "SQLite: step at 1,000 /",
    "plain save at 100 / raw",
    "plain save at 1,000 / raw",
    "SqliteSaver: put / append, at 1,000",
    "SqliteSaver: put / append, at 10,000",
    "SqliteSaver: put / plain save, at 10,000",
    "SqliteSaver, delta channel: put / append, at 10,000",
    "file, bytes per 1 KB step: 10,000",
    "bytes of a status flip",
    "bytes of a token",
    "bytes of a message beside",
    "bytes of a fork",
    "first 30 %",
    "cold full load of 10,000 / SqliteSaver's",
    "warm full load of 10,000 / SqliteSaver's",
    "cold last 20 of 10,000 / SqliteSaver's",
    "fresh process, plain save at 10,000: chunk bodies read",
    "1,000 coroutines, a thread each: one commit each",
    "1,000 coroutines, a thread each, if a commit",
    "1,000 coroutines: commits",
    "event loop lag, p99, during a save",
    "append to a long conversation /",
    "warm last 20 of a long conversation /",
    "checkpoint of an agent with many conversations /",
    "a call of a run: intent",
    "resuming a long run /",
    "PostgreSQL: append at 10,000 / raw",
    "PostgresSaver: put / append, at 1,000",
    "PostgreSQL: appends by 16 connections / by one",
)
"""How the figures begin that README shows."""
BEGIN, END = "<!-- figures: written by `make bench ARGS=--write-docs` -->", "<!-- end of figures -->"
HEADERS = ("what", "value", "CPU", "gate", "goal", "reached")
REACHED = {"goal": "goal", "gate": "gate", "missed": "MISSED", "told": "", "not measured": "not measured"}


def number(value: float | None, unit: str = "x") -> str:
    """Write a number with three digits that count."""
    if value is None:
        return "-"
    size = abs(value)
    text = f"{value:,.0f}" if size >= 100 or value == int(value) else f"{value:.1f}" if size >= 10 else f"{value:.2f}"
    if 0 < size < 0.1:
        text = f"{value:.3f}" if size >= 0.001 else "< 0.001"
    return text if unit == "x" else f"{text} {unit}"


def cells(figure: Figure) -> tuple[str, ...]:
    """Return a figure as a row of the table."""
    sign = "≤" if figure.better == "lower" else "≥"
    marks = ("" if mark is None else f"{sign} {number(mark)}" for mark in (figure.gate, figure.goal))
    cpu = "" if figure.cpu is None else number(figure.cpu)
    reached = " ".join(filter(None, (REACHED[figure.verdict], figure.note and f"({figure.note})")))
    return (figure.name, number(figure.value, figure.unit), cpu, *marks, reached)


def table(figures: list[Figure]) -> Iterator[str]:
    """Give the lines of a table for the terminal."""
    rows = [HEADERS, *map(cells, figures)]
    widths = [max(len(row[at]) for row in rows) for at in range(len(HEADERS))]
    for row in rows:
        name, *rest, reached = (
            text.ljust(width) if at in (0, 5) else text.rjust(width)
            for at, (text, width) in enumerate(zip(row, widths, strict=True))
        )
        yield "  ".join([name, *rest, reached]).rstrip()


def summary(results: dict[str, Result]) -> str:
    """Say in one line how many gates and goals are reached."""
    verdicts = [figure.verdict for result in results.values() for figure in result.figures]
    held = [verdict for verdict in verdicts if verdict in ("goal", "gate", "missed")]
    goals, missed = held.count("goal"), held.count("missed")
    return f"{len(held)} figures have a gate: {len(held) - missed} reach it, {goals} of them the goal; {missed} miss it"


def as_json(machine: dict[str, Any], results: dict[str, Result], *, quick: bool) -> str:
    """Return all of a run; docs/performance.md has the schema."""
    figures = [
        {"group": group} | asdict(figure) | {"verdict": figure.verdict}
        for group, result in results.items()
        for figure in result.figures
    ]
    points = [asdict(point) for result in results.values() for point in result.points]
    run = {"schema": SCHEMA, "quick": quick, "machine": machine, "figures": figures, "points": points}
    return json.dumps(run, indent=1, allow_nan=False) + "\n"


def section(machine: dict[str, Any], results: dict[str, Result]) -> str:
    """Return the part of the page between its marks."""
    lines = [BEGIN, "", *(f"- {line}" for line in told(machine)), "", summary(results) + ".", ""]
    lines += [
        "![Milliseconds per save against the length of the history](figures/latency.svg)",
        "",
        "![Bytes added per save against the length of the history](figures/bytes.svg)",
        "",
    ]
    for group, result in results.items():
        lines += [f"### {group}", "", f"| {' | '.join(HEADERS)} |", "|---|--:|--:|--:|--:|---|"]
        lines += [f"| {' | '.join(cells(figure))} |" for figure in result.figures]
        lines.append("")
    return "\n".join([*lines, END])


def highlights(machine: dict[str, Any], results: dict[str, Result]) -> str:
    """Return the part of README between its marks: the figures that people ask for first, reached or not."""
    figures = [figure for result in results.values() for figure in result.figures]
    chosen = [figure for start in SHOWN for figure in figures if figure.name.startswith(start)]
    lines = [BEGIN, "", f"From `make bench`: {'; '.join(told(machine)[:2])}.", ""]
    lines += [
        "![Milliseconds per save against the length of the history](docs/figures/latency.svg)",
        "",
        "![Bytes added per save against the length of the history](docs/figures/bytes.svg)",
        "",
        f"| {' | '.join(HEADERS)} |",
        "|---|--:|--:|--:|--:|---|",
        *(f"| {' | '.join(cells(figure))} |" for figure in chosen),
        "",
    ]
    return "\n".join([*lines, END])


def write_section(page: Path, text: str, mark: str = BEGIN) -> None:
    """Put the section in the place of the one that the page has, which begins with a mark."""
    before, begin, rest = page.read_text(encoding="utf-8").partition(mark)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"{page}: the marks of the section are missing: {mark} and {END}")
    page.write_text(before + text + after, encoding="utf-8")
