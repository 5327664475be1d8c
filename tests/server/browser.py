"""A real browser on a served store: Chromium without a window, driven by its own driver."""

from __future__ import annotations

import contextlib
import json
import shutil
import threading
import time
from urllib.parse import urlsplit

import uvicorn
from selenium import webdriver
from selenium.common.exceptions import WebDriverException
from selenium.webdriver import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

from backtrail import server

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
DRIVER = shutil.which("chromedriver")
TOKEN = "token-of-the-tests"


@contextlib.contextmanager
def served(store, *, write=True, **options):
    """Serve a store on a free port, and give its address."""
    app = server.app(store, write=write, tokens=TOKEN, **options)
    running = uvicorn.Server(
        uvicorn.Config(app, "127.0.0.1", 0, log_level="error", ws="none", timeout_graceful_shutdown=1)
    )
    thread = threading.Thread(target=running.run)
    thread.start()
    try:
        while not running.started:
            time.sleep(0.01)
        yield f"http://127.0.0.1:{running.servers[0].sockets[0].getsockname()[1]}"
    finally:
        running.should_exit = True
        thread.join()
        app.close()


class Browser:
    """A window on a server. `close` checks nothing: ask for `errors` and `strangers`."""

    def __init__(self):
        options = webdriver.ChromeOptions()
        options.binary_location = CHROMIUM
        for each in ("headless=new", "no-sandbox", "disable-gpu", "disable-dev-shm-usage", "hide-scrollbars"):
            options.add_argument(f"--{each}")
        # What the browser itself would ask of the network.
        for each in (
            "no-first-run",
            "disable-background-networking",
            "disable-component-update",
            "disable-sync",
            "disable-extensions",
        ):
            options.add_argument(f"--{each}")
        options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
        self.driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))
        self.driver.set_page_load_timeout(30)
        self.address = ""
        self.errors = []
        self.requests = []

    def sign_in(self, address):
        """Open the link with the token."""
        self.address = address
        self.open(f"/search?token={TOKEN}")

    def open(self, path):
        """Open a page, and wait for its scripts."""
        self.driver.get(f"{self.address}{path}")
        self.wait(lambda: self.all("html[data-ready]"))

    @property
    def path(self):
        """The path and query of the page."""
        parts = urlsplit(self.driver.current_url)
        return f"{parts.path}{'?' if parts.query else ''}{parts.query}"

    def size(self, width, height=900):
        """Set the size of the page."""
        values = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", values)

    def scheme(self, name):
        """Set the colour scheme of the system."""
        features = [{"name": "prefers-color-scheme", "value": name}]
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})

    def js(self, script, *values):
        """Run JavaScript and return its result."""
        return self.driver.execute_script(script, *values)

    def all(self, selector):
        """Return the elements of a selector."""
        return self.driver.find_elements(By.CSS_SELECTOR, selector)

    def text(self, selector="body"):
        """Return the text of an element, also of what is scrolled away."""
        return self.js("return document.querySelector(arguments[0])?.innerText ?? ''", selector)

    def click(self, selector, text=None):
        """Click on the first element of a selector, or on the one with this text."""
        found = self.wait(lambda: [each for each in self.all(selector) if text is None or each.text == text])
        found[0].click()

    def press(self, *keys):
        """Press keys."""
        actions = ActionChains(self.driver)
        for key in keys:
            actions.send_keys(getattr(Keys, key) if len(key) > 1 and key.isupper() else key)
        actions.perform()

    def wait(self, condition, seconds=10.0):
        """Wait until a condition holds, and return its value."""
        end = time.monotonic() + seconds
        while True:
            try:
                value = condition()
            except WebDriverException:  # an element that is just being replaced
                value = None
            if value:
                return value
            if time.monotonic() > end:
                raise AssertionError(f"did not happen within {seconds} s, on {self.path}:\n{self.text()[:2000]}")
            time.sleep(0.05)

    def read_logs(self):
        """Collect the messages of the console, and the requests."""
        self.errors += [each["message"] for each in self.driver.get_log("browser") if each["level"] != "INFO"]
        for entry in self.driver.get_log("performance"):
            message = json.loads(entry["message"])["message"]
            if message["method"] == "Network.requestWillBeSent":
                self.requests.append(message["params"]["request"]["url"])

    def strangers(self):
        """Return the requests that left the server."""
        return [each for each in self.requests if not each.startswith((self.address, "data:"))]

    def shot(self, path):
        """Save a picture of the page."""
        self.driver.save_screenshot(str(path))

    def close(self):
        """Close the window."""
        self.driver.quit()
