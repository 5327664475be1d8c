"""The golden exports: one of the store that `contents.py` writes, and what was new since, in two versions.

`python tests/golden/exports.py DIRECTORY` writes them with the code at hand, but for `export1-since`: files that
continue others were of version 1 at first. Those that have been checked in are never written again.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import contents

import backtrail


def write(directory: str) -> None:
    """Write the files."""
    with tempfile.TemporaryDirectory() as place:
        contents.write(f"{place}/s.db")
        with backtrail.open(f"{place}/s.db") as store:
            first = store.export(Path(directory, "export1"))
            store.thread("counted").append("n", "since", tags=["since"])
            store.thread("repacked").prune(keep_last=2)
            store.thread("since").save({"text": "line\n" * 3000})
            store.thread("counted").delete_checkpoint("@-")  # the newest row of the first one: it is gone then
            store.gc()
            store.thread("counted").append("n", "later")
            store.export(Path(directory, "export2-since"), since=first.path)


if __name__ == "__main__":
    write(*sys.argv[1:])
