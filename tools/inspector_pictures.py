"""Takes the pictures of docs/inspector.md: a real store, served, in Chromium.

It needs the extra `test`, chromium and chromedriver: `python tools/inspector_pictures.py`.
"""

from __future__ import annotations

import sys
import tempfile
import time
import warnings
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "src"), str(ROOT)]

import backtrail  # noqa: E402
from tests.server.browser import Browser, served  # noqa: E402
from tests.server.browser_store import fill  # noqa: E402

FIGURES = ROOT / "docs" / "figures"
MOST = 150_000
"""Bytes of a picture."""


def taken(browser: Browser, name: str) -> None:
    """Take one picture."""
    time.sleep(0.6)  # parts that load when they are seen
    path = FIGURES / f"inspector-{name}.png"
    browser.shot(path)
    size = path.stat().st_size
    assert size < MOST, f"{path.name} has {size:,} bytes"
    print(f"{path.relative_to(ROOT)}: {size:,} bytes")


def main() -> None:
    """Take all pictures."""
    warnings.simplefilter("ignore", backtrail.Irreversible)
    with (
        tempfile.TemporaryDirectory() as directory,
        backtrail.open(f"{directory}/agents.db") as store,
    ):
        fill(store, hostile=False)
        with served(store) as address:
            browser = Browser()
            try:
                browser.size(1200, 720)
                browser.scheme("light")
                browser.sign_in(address)
                browser.open("/")
                taken(browser, "activity")
                browser.open("/threads/thread/trip-planner")
                taken(browser, "thread")
                browser.scheme("dark")
                browser.open("/conversations/order-4711?at=0")
                browser.click("details.call summary")
                taken(browser, "conversation")
                browser.open("/agents/support")
                browser.click(".action", "Restore…")
                browser.wait(lambda: browser.all("#dialog[open] .primary"))
                taken(browser, "restore")
            finally:
                browser.close()


if __name__ == "__main__":
    main()
