"""`make bench`: run the groups, print their figures, write them down.

Every run leaves `results.json` and the plots in build/bench. With --write-docs a full run also becomes the one that
the docs show: bench/results.json, docs/figures, and the tables of docs/performance.md and README.md.
"""

from __future__ import annotations

import argparse
import multiprocessing
import shutil
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from bench import (
    agents,
    aio,
    cold,
    commands,
    dicts,
    instructions,
    loads,
    machine,
    memory,
    peers,
    plot,
    postgres,
    report,
    runs,
    saves,
    sizes,
    upkeep,
)
from bench.scale import FULL, QUICK

if TYPE_CHECKING:
    from collections.abc import Callable

    from bench.figures import Point, Result
    from bench.scale import Scale

S = TypeVar("S")
R = TypeVar("R", bound="Result")
ROOT = Path(__file__).resolve().parent.parent
GROUPS: dict[str, Callable[[Path, Scale], Result]] = {
    "append": saves.appends,
    "instructions": instructions.instructions,
    "plain": saves.plain,
    "dicts": dicts.dicts,
    "peers": peers.peers,
    "sizes": sizes.sizes,
    "memory": memory.memory,
    "loads": loads.loads,
    "cold": cold.cold,
    "async": aio.coroutines,
    "agents": agents.agents,
    "runs": runs.runs,
    "postgres": postgres.postgres,
    "upkeep": upkeep.upkeep,
    "commands": commands.commands,
}
ORDER = (saves.APPEND, saves.STEP, saves.PLAIN, peers.DEFAULT, peers.DELTA)


def _apart(group: Callable[[Path, S], R], directory: Path, scale: S) -> R:
    """Run a group in a process of its own, where that can be: memory that another has left makes some loads cheaper."""
    if "fork" not in multiprocessing.get_all_start_methods():
        return group(directory, scale)
    context = multiprocessing.get_context("fork")
    reader, writer = context.Pipe(duplex=False)
    process = context.Process(target=lambda: writer.send(group(directory, scale)))
    process.start()
    writer.close()
    try:
        found: R = reader.recv()
    except EOFError:
        raise SystemExit("a group has failed: see above") from None
    process.join()
    return found


def run(groups: dict[str, Callable[[Path, S], R]], scale: S, place: Path | None) -> dict[str, R]:
    """Run groups, each in a directory of its own, and print what they find."""
    results = {}
    for name, group in groups.items():
        with tempfile.TemporaryDirectory(prefix="backtrail-bench-", dir=place) as directory:
            begun = time.monotonic()
            results[name] = _apart(group, Path(directory), scale)
            print(f"\n{name} ({time.monotonic() - begun:.0f} s)", flush=True)
            for line in report.table(results[name].figures):
                print(f"  {line}", flush=True)
    return results


def plots(results: dict[str, Result]) -> dict[str, str]:
    """Return the plots by their file names; none if no group has points for them."""
    points = [point for result in results.values() for point in result.points]
    if not points:
        return {}
    return {
        "latency.svg": plot.plot("Milliseconds per save", "ms", _lines(points, lambda point: point.ms)),
        "bytes.svg": plot.plot("Bytes added to the file per save", "B", _lines(points, lambda point: point.bytes)),
    }


def _lines(points: list[Point], value: Callable[[Point], float]) -> dict[str, list[tuple[float, float]]]:
    there = [series for series in ORDER if any(point.series == series for point in points)]
    return {s: sorted((p.length, max(value(p), 1e-3)) for p in points if p.series == s) for s in there}


def write(folder: Path, figures: Path, text: str, drawn: dict[str, str]) -> None:
    """Write the JSON into one directory and the plots into another."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "results.json").write_text(text, encoding="utf-8")
    figures.mkdir(parents=True, exist_ok=True)
    for name, svg in drawn.items():
        (figures / name).write_text(svg, encoding="utf-8")


def main(arguments: list[str] | None = None) -> None:
    """Measure."""
    parser = argparse.ArgumentParser(prog="make bench", description="What saving, loading and storing cost.")
    parser.add_argument("--quick", action="store_true", help="fewer rounds, no history of 100,000")
    parser.add_argument("--only", action="append", choices=GROUPS, metavar="NAME", help=f"one of {', '.join(GROUPS)}")
    parser.add_argument("--directory", type=Path, help="where to put the stores; a temporary directory if not given")
    parser.add_argument("--write-docs", action="store_true", help="make this run the one that the docs show")
    options = parser.parse_args(arguments)
    if options.write_docs and (options.quick or options.only):
        parser.error("--write-docs is for a full run: without --quick and --only")
    names = options.only or list(GROUPS)
    described = machine.facts(options.directory or Path(tempfile.gettempdir()))
    print(*machine.told(described), sep="\n")
    results = run({name: GROUPS[name] for name in names}, QUICK if options.quick else FULL, options.directory)
    print(f"\n{report.summary(results)}")
    text, drawn = report.as_json(described, results, quick=options.quick), plots(results)
    made = ROOT / "build" / "bench"
    shutil.rmtree(made, ignore_errors=True)
    write(made, made, text, drawn)
    print(f"results.json and plots: {made}")
    if options.write_docs:
        write(ROOT / "bench", ROOT / "docs" / "figures", text, drawn)
        report.write_section(ROOT / "docs" / "performance.md", report.section(described, results))
        report.write_section(ROOT / "README.md", report.highlights(described, results))


if __name__ == "__main__":
    main()
