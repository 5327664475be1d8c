"""Figures as text: on the terminal, as JSON, and as the sections of docs/performance.md and README.md."""

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
SHOWN = {
    "append at 10,000 / raw insert": "An append to 10,000 messages, compared with a raw durable insert into SQLite",
    "SQLite: append at 10,000 / append at 10": "The same, compared with an append to 10 messages",
    "SqliteSaver: put / append, at 10,000": "LangGraph's SqliteSaver at 10,000 messages, compared with our append",
}
"""The figures that README shows, by the beginning of their names, with the words of README."""
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
    """Return the part of README between its marks: a picture, and three figures in words."""
    figures = [figure for result in results.values() for figure in result.figures]
    lines = [BEGIN, "", "![Milliseconds per save against the length of the history](docs/figures/latency.svg)", ""]
    lines += [
        f"- {words}: {number(figure.value)} times as long."
        for start, words in SHOWN.items()
        for figure in figures
        if figure.name.startswith(start) and not figure.name.endswith(": CPU")
    ]
    return "\n".join(
        [*lines, "", f"From `make bench` of {machine['date'][:10]}; ratios of wall times, messages of 1 KB.", "", END]
    )


def write_section(page: Path, text: str, mark: str = BEGIN) -> None:
    """Put the section in the place of the one that the page has, which begins with a mark."""
    before, begin, rest = page.read_text(encoding="utf-8").partition(mark)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"{page}: the marks of the section are missing: {mark} and {END}")
    page.write_text(before + text + after, encoding="utf-8")
