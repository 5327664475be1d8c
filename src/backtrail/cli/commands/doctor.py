"""The command `doctor`: what is installed, and whether a store is healthy."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import click

from backtrail.cli.output import clean, count, say, size
from backtrail.cli.parameters import DAMAGED, command, translated

if TYPE_CHECKING:
    from collections.abc import Iterator

    from backtrail.cli.output import Output
    from backtrail.cli.parameters import Invocation
    from backtrail.store import Store

_INTERNAL: Final = ("test", "testing", "bench", "lint", "docs", "dist")
"""Extras for those who work on backtrail."""
_READ: Final = 20
"""Threads of each kind whose newest state is read."""
_SPARE: Final = 100 * 1024 * 1024
"""Bytes that should be free beside a store."""


@command(examples=("backtrail doctor", "backtrail doctor agents.db --json"))
@click.argument("url", metavar="[STORE]", required=False)
@click.pass_context
def doctor(ctx: click.Context, session: Invocation, *, out: Output, url: str | None) -> None:
    """Show what is installed, and whether the store is healthy.

    The checks are quick: they open the store for reading and read the newest states. `backtrail verify` reads
    everything. The exit code is that of the error if the store cannot be used, and 5 if data are damaged.
    """
    session.take(url, None, debug=False)
    store, code = examined(session)
    found = {**installed(), "store": store}
    if out.human:
        _show(session, out, found)
    else:
        out.value({"ok": not store["problems"], **found})
    ctx.exit(code)


# -- what is installed --------------------------------------------------------------------------------------


def installed() -> dict[str, Any]:
    """Return the versions of backtrail, of Python, and of what backtrail needs or can use."""
    import platform
    import re
    from importlib import metadata

    import apsw

    needed: dict[str, str | None] = {}
    extras: dict[str, dict[str, str | None]] = {}
    for line in metadata.requires("backtrail") or ():
        name = re.split(r"[^\w.-]", line, maxsplit=1)[0]
        extra = re.search(r"""extra == ["']([\w-]+)["']""", line)
        if extra is None:
            needed[name] = _version(name)
        elif extra[1] not in _INTERNAL and name != "backtrail":
            extras.setdefault(extra[1], {})[name] = _version(name)
    return {
        "backtrail": metadata.version("backtrail"),
        "python": platform.python_version(),
        "system": platform.platform(),
        "sqlite": apsw.sqlite_lib_version(),
        "packages": dict(sorted(needed.items())),
        "extras": dict(sorted(extras.items())),
    }


def _version(name: str) -> str | None:
    from importlib import metadata

    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


# -- the store ----------------------------------------------------------------------------------------------


def examined(session: Invocation) -> tuple[dict[str, Any], int]:
    """Return what the quick checks of a store found, and the exit code."""
    from backtrail.cli.main import exit_code
    from backtrail.errors import Corrupt, Error, NotFound
    from backtrail.urls import default_url, shown

    place = session.url or default_url()
    found: dict[str, Any] = {"url": shown(place), "exists": True, "damaged": False, "problems": [], "notes": []}
    try:
        with session.read() as store:
            _look(store, found)
        found["notes"] += _surroundings(place)
    except Error as error:
        found["exists"] = not isinstance(error, NotFound)
        found["damaged"] = isinstance(error, Corrupt)
        if found["exists"] or session.url is not None:  # the user's own store is made when it is needed
            found["problems"].append(translated(str(error), session))
            return found, exit_code(error)
    return found, DAMAGED if found["damaged"] else 0


def _look(store: Store, found: dict[str, Any]) -> None:
    """Count the contents, and read the newest states."""
    from dataclasses import asdict

    from backtrail.cli.parameters import KINDS
    from backtrail.errors import Corrupt

    found["contents"] = asdict(store.stats())
    found["states_read"] = 0
    for kind in KINDS:
        for info in store.threads(kind=kind, limit=_READ):
            try:
                if (checkpoint := store.checkpoint(info.head_id)) is not None:
                    _ = checkpoint.state
                    found["states_read"] += 1
            except Corrupt as error:
                found["damaged"] = True
                found["problems"].append(f"{kind} {info.id}: {error}")


def _surroundings(place: str) -> Iterator[str]:
    """Give notes about the disk or the server of a store."""
    import shutil
    from pathlib import Path

    from backtrail.urls import directory_of, file_of, in_postgres

    if in_postgres(place):
        yield f"PostgreSQL {_server_version(place)}"
        return
    if place.startswith("memory:"):
        return
    path = Path(directory_of(place) or file_of(place))
    if not path.exists():
        return
    free = shutil.disk_usage(path if path.is_dir() else path.absolute().parent).free
    if free < _SPARE:
        yield f"only {size(free)} are free on the disk of the store"
    if path.stat().st_mode & 0o077:
        yield "other users of this machine may read the store: chmod go= takes that away"
    log = path.with_name(path.name + "-wal")
    if log.exists() and log.stat().st_size > _SPARE:
        yield f"the write-ahead log has {size(log.stat().st_size)}: a reader may have been open for long"


def _server_version(url: str) -> str:
    import psycopg

    from backtrail.backends.postgres.url import read_url

    with psycopg.connect(**read_url(url).options) as connection:
        return connection.info.parameter_status("server_version") or "of an unknown version"


# -- for people ---------------------------------------------------------------------------------------------


def _show(session: Invocation, out: Output, found: dict[str, Any]) -> None:
    names = ("backtrail", "Python", "system", "SQLite", "packages", "extras", "missing", "store", "contents")
    cells = max(map(len, names))
    for name in names[:4]:
        out.fact(name, found[name.lower()], cells)
    out.fact("packages", ", ".join(f"{name} {version}" for name, version in found["packages"].items()), cells)
    whole = [extra for extra, packages in found["extras"].items() if all(packages.values())]
    missing = [extra for extra in found["extras"] if extra not in whole]
    out.fact("extras", ", ".join(whole) or "none", cells)
    if missing:
        out.fact("missing", f"{', '.join(missing)} (pip install 'backtrail[NAME]' adds one)", cells)
    store = found["store"]
    out.fact("store", clean(store["url"]), cells)
    if "contents" in store:
        out.fact("contents", _contents(store["contents"]), cells)
    for note in store["notes"]:
        out.fact("note", clean(note), cells)
    for problem in store["problems"]:
        say(f"problem: {clean(problem)}")
    if not store["exists"] and not store["problems"]:
        out.tell("The store does not exist yet: the first save creates it.")
    elif store["damaged"]:
        say(f"`{session.command('verify')}` finds all damage")
    elif not store["problems"]:
        out.tell(f"The store is healthy, as far as a quick look shows: {count(store['states_read'], 'state')} read.")


def _contents(stats: dict[str, Any]) -> str:
    kinds = ("thread", "agent", "conversation", "run", "checkpoint")
    listed = ", ".join(count(stats[f"{kind}s"], kind) for kind in kinds)
    return f"{listed}; {size(stats['stored_bytes'])}"


COMMANDS: Final = (doctor,)
