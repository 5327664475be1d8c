"""The golden exports: one of the store that `contents.py` writes, and one of what was new since.

`python tests/golden/exports.py DIRECTORY` writes them with the code at hand. Those that have been checked in are never
written again.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import contents

import backtrail


def write(directory: str) -> None:
    """Write both files."""
    with tempfile.TemporaryDirectory() as place:
        contents.write(f"{place}/s.db")
        with backtrail.open(f"{place}/s.db") as store:
            first = store.export(Path(directory, "export1"))
            store.thread("counted").append("n", "since", tags=["since"])
            store.thread("repacked").prune(keep_last=2)
            store.thread("since").save({"text": "line\n" * 3000})
            store.export(Path(directory, "export1-since"), since=first.path)


if __name__ == "__main__":
    write(*sys.argv[1:])
