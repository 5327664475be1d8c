"""`make bench-peers`: one chat, kept by the stores that frameworks bring along and by ours, side by side.

    make bench-peers                              all of it: up to an hour, and 6 GB in a temporary directory
    make bench-peers ARGS=--quick                 100 turns instead of 1,000
    make bench-peers ARGS="--only langgraph"      one framework

Every run leaves `peers.json` and the plots in build/bench-peers. With --write-docs a full run also becomes the one that
the docs show: bench/peers.json, docs/figures, and the figures of docs/peers.md, which says what they mean.
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench import machine, own_environment, plot, report, server
from bench.__main__ import run
from bench.figures import Figure
from bench.sides import FULL, QUICK, Compared

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from bench.place import Place
    from bench.sides import Scale, Side

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = (*machine.PACKAGES, "langchain-core", "openai-agents", "pydantic-ai-slim", "sqlalchemy", "aiosqlite")
BEGIN = "<!-- figures: written by `make bench-peers ARGS=--write-docs` -->"
TURNS = "turns of two messages of 1 KB"
TITLES = {"ms": "Milliseconds per turn", "bytes": "Bytes on disk after so many turns"}


def _measured(measure: Callable[[Path, Place | None, Scale], Compared], directory: Path, scale: Scale) -> Compared:
    """Measure with a server, if there can be one."""
    why = server.missing()
    with ExitStack() as stack:
        place = None
        if not why:
            from bench.place import Place  # noqa: PLC0415 - an extra

            place = Place(stack.enter_context(server.server(directory)))
            stack.callback(place.close)
        found = measure(directory, place, scale)
    if why:
        found.figures.append(Figure("PostgreSQL", None, note=why))
    return found


def langgraph(directory: Path, scale: Scale) -> Compared:
    """LangGraph's savers."""
    try:
        from bench.graphs import graphs  # noqa: PLC0415 - extras
    except ImportError as error:
        return Compared([Figure("SqliteSaver / BacktrailSaver", None, note=str(error))])
    return _measured(graphs, directory, scale)


def openai(directory: Path, scale: Scale) -> Compared:
    """The sessions of the OpenAI Agents SDK."""
    try:
        from bench.agent_sessions import sessions  # noqa: PLC0415 - extras
    except ImportError as error:
        return Compared([Figure("SQLiteSession / BacktrailSession", None, note=str(error))])
    return _measured(sessions, directory, scale)


def memories(directory: Path, scale: Scale) -> Compared:
    """LangGraph's long-term memory."""
    try:
        from bench.memories import memories as measure  # noqa: PLC0415 - extras
    except ImportError as error:
        return Compared([Figure("SqliteStore / BacktrailStore", None, note=str(error))])
    return measure(directory, None, scale)


def pydantic_ai(directory: Path, scale: Scale) -> Compared:
    """The conversations of Pydantic AI."""
    try:
        from bench.pydantic_conversations import conversations  # noqa: PLC0415 - extras
    except ImportError as error:
        return Compared([Figure("BacktrailConversationStore", None, note=str(error))])
    return conversations(directory, None, scale)


ADK = ["google-adk==2.13.0", "aiosqlite", "sqlalchemy[asyncio]"]
STRANDS = ["strands-agents==1.62.0"]
GROUPS: dict[str, Callable[[Path, Scale], Compared]] = {
    "langgraph": langgraph,
    "memories": memories,
    "openai": openai,
    "pydantic-ai": pydantic_ai,
    "adk": partial(own_environment.measured, "adk_sessions", ADK),
    "strands": partial(own_environment.measured, "strands_sessions", STRANDS),
}
NAMES = {
    "langgraph": "LangGraph",
    "memories": "LangGraph's long-term memory",
    "openai": "OpenAI Agents",
    "pydantic-ai": "Pydantic AI",
    "adk": "Google ADK",
    "strands": "Strands",
}


# -- told -------------------------------------------------------------------------------------------


def as_json(described: dict[str, Any], results: dict[str, Compared], scale: Scale) -> str:
    """Return all of a run; docs/peers.md has the schema."""
    told = json.loads(report.as_json(described, {**results}, quick=scale != FULL))
    del told["points"]
    told["sides"] = [{"group": group} | side.as_data(scale) for group, one in results.items() for side in one.sides]
    return json.dumps(told, indent=1, allow_nan=False) + "\n"


def plots(results: dict[str, Compared], scale: Scale) -> dict[str, str]:
    """Return the plots by their file names: times and bytes of the sides that have taken all turns."""
    drawn = {}
    for group, one in results.items():
        whole = [side for side in one.sides if len(side.taken) == scale.turns]
        times = {side.name: [(n, ms) for n in scale.lengths if (ms := side.ms(n, scale.window))] for side in whole}
        sizes = {side.name: sorted(side.bytes.items()) for side in whole if side.bytes}
        for what, unit, lines in (("ms", "ms", times), ("bytes", "B", sizes)):
            if lines:
                drawn[_file(group, what)] = plot.plot(f"{NAMES[group]}: {TITLES[what].lower()}", unit, lines, TURNS)
    return drawn


def _file(group: str, what: str) -> str:
    return f"peers-{group}-{what}.svg"


def side_by_side(sides: list[Side], scale: Scale) -> Iterator[list[str]]:
    """Give the rows of a table with a row for each side, the headers first."""
    reads = list(dict.fromkeys(read for side in sides for read in side.reads))
    races = list(dict.fromkeys(what for side in sides for what in side.races))
    yield [
        "",
        *(f"ms per turn at {length:,}" for length in scale.lengths),
        "turns",
        "total",
        "on disk",
        *(f"{read}, ms" for read in reads),
        *(f"{scale.writers} {what}: kept / told / lost" for what in races),
    ]
    for side in sides:
        yield [
            side.name,
            *(report.number(side.ms(length, scale.window)) for length in scale.lengths),
            f"{len(side.taken):,}",
            f"{report.number(side.total(len(side.taken)).wall)} s",
            size(side.bytes.get(len(side.taken))),
            *(report.number(side.reads.get(read)) for read in reads),
            *(f"{race.kept} / {race.told} / {race.lost}" if (race := side.races.get(w)) else "-" for w in races),
        ]


def size(count: int | None) -> str:
    """Write so many bytes with three digits that count."""
    if count is None:
        return "-"
    for unit, name in ((1e9, "GB"), (1e6, "MB")):
        if count >= unit:
            return report.number(count / unit, name)
    return report.number(count / 1e3, "KB")


def section(described: dict[str, Any], results: dict[str, Compared], scale: Scale) -> str:
    """Return the part of the page between its marks."""
    lines = [BEGIN, "", *(f"- {line}" for line in machine.told(described)), "", report.summary({**results}) + ".", ""]
    drawn = plots(results, scale)
    for group, one in results.items():
        lines += [f"### {NAMES[group]}", ""]
        headers, *rows = side_by_side(one.sides, scale)
        lines += [f"| {' | '.join(headers)} |", f"|---{'|--:' * (len(headers) - 1)}|"]
        lines += [f"| {' | '.join(row)} |" for row in rows]
        images = ((what, _file(group, what)) for what in TITLES)
        lines += ["", *(f"![{TITLES[what]}](figures/{name})\n" for what, name in images if name in drawn)]
        lines += [f"| {' | '.join(report.HEADERS)} |", "|---|--:|--:|--:|--:|---|"]
        lines += [f"| {' | '.join(report.cells(figure))} |" for figure in one.figures]
        lines.append("")
    return "\n".join([*lines, report.END])


def show(one: Compared, scale: Scale) -> Iterator[str]:
    """Give a line for each side, for the terminal, where a table of them would be too wide."""
    headers, *rows = side_by_side(one.sides, scale)
    for row in rows:
        told = (f"{header} {cell}" for header, cell in zip(headers[1:], row[1:], strict=True) if cell != "-")
        yield f"{row[0]}: {'; '.join(told)}"


def main(arguments: list[str] | None = None) -> None:
    """Measure."""
    parser = argparse.ArgumentParser(prog="make bench-peers", description="One chat, kept side by side.")
    parser.add_argument("--quick", action="store_true", help="100 turns: the gates are for 1,000")
    parser.add_argument("--only", action="append", choices=GROUPS, metavar="NAME", help=f"one of {', '.join(GROUPS)}")
    parser.add_argument("--directory", type=Path, help="where to put the stores; a temporary directory if not given")
    parser.add_argument("--write-docs", action="store_true", help="make this run the one that the docs show")
    options = parser.parse_args(arguments)
    if options.write_docs and (options.quick or options.only):
        parser.error("--write-docs is for a full run: without --quick and --only")
    scale = QUICK if options.quick else FULL
    described = machine.facts(options.directory or Path(tempfile.gettempdir()), PACKAGES)
    print(*machine.told(described), sep="\n")
    results = run({name: GROUPS[name] for name in options.only or GROUPS}, scale, options.directory)
    for group, one in results.items():
        print(f"\n{NAMES[group]}, side by side", *show(one, scale), sep="\n  ")
    print(f"\n{report.summary({**results})}")
    text, drawn = as_json(described, results, scale), plots(results, scale)
    made = ROOT / "build" / "bench-peers"
    shutil.rmtree(made, ignore_errors=True)
    _write(made, made, text, drawn)
    print(f"peers.json and plots: {made}")
    if options.write_docs:
        if any(figure.value is None for one in results.values() for figure in one.figures):
            raise SystemExit("something was not measured: the docs stay as they are")
        _write(ROOT / "bench", ROOT / "docs" / "figures", text, drawn)
        report.write_section(ROOT / "docs" / "peers.md", section(described, results, scale), BEGIN)


def _write(folder: Path, figures: Path, text: str, drawn: dict[str, str]) -> None:
    for where in (folder, figures):
        where.mkdir(parents=True, exist_ok=True)
    (folder / "peers.json").write_text(text, encoding="utf-8")
    for name, svg in drawn.items():
        (figures / name).write_text(svg, encoding="utf-8")


if __name__ == "__main__":
    main()
