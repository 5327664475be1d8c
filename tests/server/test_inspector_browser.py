"""The inspector in a real browser: Chromium. No test may leave an error in the console, or ask another server."""

import sys
import time

import pytest

import backtrail
from backtrail import Message

pytest.importorskip("selenium", reason="needs selenium")

from tests.server.browser import CHROMIUM, DRIVER, Browser, served
from tests.server.browser_store import HOSTILE, fill

pytestmark = [
    pytest.mark.skipif(not (CHROMIUM and DRIVER), reason="needs chromium and chromedriver"),
    pytest.mark.filterwarnings("ignore::backtrail.Irreversible"),
]
PAGES = (
    "/",
    "/search?q=refund",
    "/threads/thread/trip-planner",
    "/threads/thread/trip-planner/diff?a=1&b=@",
    "/threads/conversation/order-4711?ref=3",
    "/conversations/order-4711",
    "/runs/refund-4711",
    "/agents/support",
    "/storage?keep_last=1&rules=1",
    "/threads/thread/trip-planner/change/rewind?ref=3",
)


@pytest.fixture(scope="module")
def window():
    made = Browser()
    yield made
    made.close()


@pytest.fixture
def store(tmp_path):
    with backtrail.open(str(tmp_path / "agents.db"), durability="relaxed") as store:
        fill(store)
        yield store


@pytest.fixture
def browser(store, window):
    window.scheme("light")
    window.size(1600)
    with served(store) as address:
        window.sign_in(address)
        yield window
        window.driver.get("about:blank")  # ends the page's connections
        window.read_logs()
        errors, strangers = [*window.errors], window.strangers()
        window.errors.clear()
        window.requests.clear()
    assert not errors
    assert not strangers


def head_step(browser):
    """Return the step of the head that the graph shows."""
    return browser.text(".cp.head .step")


def test_every_page_fits_every_width_and_scheme(browser):
    colours = {}
    for scheme, width in (("light", 1600), ("dark", 400)):
        browser.scheme(scheme)
        browser.size(width)
        for path in PAGES:
            browser.open(path)
            browser.wait(lambda: browser.text("main h1, main h2"))
            wide = browser.js("return document.documentElement.scrollWidth")
            assert wide <= width, (path, wide)
            nameless = browser.js(
                "return [...document.querySelectorAll('a[href], button, input:not([type=hidden]), select, textarea')]"
                ".filter(e => e.checkVisibility() && !e.textContent.trim() && !e.ariaLabel && !e.labels?.length)"
                ".map(e => e.outerHTML)"
            )
            assert not nameless, path
        colours[scheme] = browser.js("return getComputedStyle(document.documentElement).backgroundColor")
    assert colours["light"] != colours["dark"]


def test_the_colour_scheme_can_be_chosen(browser):
    def colour():
        return browser.js("return getComputedStyle(document.documentElement).backgroundColor")

    light = colour()
    browser.click("#theme")
    dark = colour()
    assert dark != light
    browser.open("/storage")
    assert colour() == dark  # the choice stays
    browser.press("t")
    browser.press("t")
    assert colour() == light


def test_hostile_text_is_shown(browser):
    browser.open("/threads/thread/notes?path=title")
    assert "<script>alert(1)</script> ⟨U+001B⟩[31mred⟨U+202E⟩evil" in browser.text("#detail")
    browser.open("/")
    browser.click(
        ".list .name",
        browser.js(
            "return [...document.querySelectorAll('.name')].find(e => e.textContent.startsWith('odd')).innerText"
        ),
    )
    browser.wait(lambda: "/conversations/odd" in browser.path)
    browser.click("[data-up]")  # its id comes through the address unchanged
    browser.wait(lambda: HOSTILE[:8] in browser.text("h1"))


def test_a_page_follows_its_thread(browser, store):
    browser.open("/threads/thread/trip-planner")
    browser.wait(lambda: browser.all("#live:not([hidden]):not(.off)"))
    store.thread("trip-planner").set("budget", 111, label="from another process")
    browser.wait(lambda: head_step(browser) == "7")
    browser.wait(lambda: "111" in browser.text("#detail"))
    browser.open("/conversations/case-1")
    browser.wait(lambda: browser.all("#live:not([hidden]):not(.off)"))
    store.conversations.append("case-1", Message.assistant("Here is your invoice."))
    browser.wait(lambda: "Here is your invoice." in browser.text("main"))


def test_a_page_follows_its_thread_without_events(browser, store):
    browser.driver.execute_cdp_cmd("Network.enable", {})
    browser.driver.execute_cdp_cmd("Network.setBlockedURLs", {"urls": ["*/events*"]})
    try:
        browser.open("/threads/thread/trip-planner")
        browser.wait(lambda: browser.all("#live.off"))
        store.thread("trip-planner").set("budget", 111)
        browser.wait(lambda: head_step(browser) == "7")
    finally:
        browser.driver.execute_cdp_cmd("Network.setBlockedURLs", {"urls": []})
    browser.read_logs()
    assert all("/events" in each for each in browser.errors)
    browser.errors.clear()


def test_messages_are_found(browser):
    browser.press("/", "money arrive", "ENTER")
    browser.wait(lambda: browser.path.startswith("/search"))
    browser.wait(lambda: "When will the money arrive?" in browser.text("main"))
    browser.press("j", "ENTER")
    browser.wait(lambda: browser.path == "/conversations/order-4711?at=7")
    assert browser.all("#m7:target")


def test_states_open_by_path(browser):
    browser.open("/threads/thread/notes")
    browser.click("summary .k", "numbers")
    browser.wait(lambda: len(browser.all("details[open] .body > .tree > li")) == 100)
    browser.click("a[data-more]")
    browser.wait(lambda: len(browser.all("details[open] .body > .tree > li")) == 200)
    browser.click("summary .k", "text")
    browser.wait(lambda: "A note with a long text." in browser.text("#detail"))


def test_checkpoints_are_compared(browser):
    browser.open("/threads/thread/trip-planner")
    browser.wait(lambda: "three days in Porto" in browser.text(".diff"))
    browser.click("ol.window li:nth-child(3) .cp")
    browser.wait(lambda: "Step 5" in browser.text("#detail h2"))
    assert "ref=" in browser.path
    browser.press("j", "j", "d")  # compare with another one
    browser.wait(lambda: "against=" in browser.path)
    browser.wait(lambda: browser.text("#detail .diff"))
    browser.driver.back()
    browser.wait(lambda: "against=" not in browser.path)


def test_a_rewind_is_made_and_undone(browser, store):
    browser.open("/threads/thread/trip-planner?ref=3")
    browser.click(".action", "Rewind to here")
    browser.wait(lambda: "3 checkpoints go out of view" in browser.text("#dialog"))
    assert store.thread("trip-planner").load().step == 6  # nothing yet
    browser.click("#dialog .primary")
    browser.wait(lambda: "Undo takes it back" in browser.text("#toast"))
    assert store.thread("trip-planner").load().step == 3
    assert head_step(browser) == "3"
    browser.click("#toast a", "Undo")
    browser.wait(lambda: "3 checkpoints come back into view" in browser.text("#dialog"))
    browser.click("#dialog .primary")
    browser.wait(lambda: "Redo takes it back" in browser.text("#toast"))
    assert store.thread("trip-planner").load().step == 6


def test_a_fork_is_made_and_deleted(browser, store):
    browser.open("/conversations/order-4711")
    browser.click(".action", "Fork")
    browser.wait(lambda: browser.all("#dialog[open] input"))
    browser.js("document.querySelector('#dialog input').value = ''")
    browser.press("a/b fork", "ENTER")
    browser.wait(lambda: "The fork a/b fork was made." in browser.text("#toast"))
    assert browser.path == "/threads/conversation/a%2Fb%20fork"
    assert len(store.conversations.load("a/b fork").messages) == 9
    browser.click("#toast a")
    browser.wait(lambda: "This cannot be undone" in browser.text("#dialog"))
    browser.click("#dialog .primary")
    browser.wait(lambda: "was deleted" in browser.text("#toast"))
    assert store.conversations.get("a/b fork") is None


def test_ids_of_dots_have_pages(browser, store):
    browser.open("/threads/thread/trip-planner?ref=2")
    for name in ("..", ".", "~.."):
        browser.click(".action", "Fork")
        browser.wait(lambda: browser.all("#dialog[open] input"))
        browser.js("document.querySelector('#dialog input').value = ''")
        browser.press(name, "ENTER")
        browser.wait(lambda name=name: f"The fork {name} was made." in browser.text("#toast"))
        assert browser.path == f"/threads/thread/~{name}"
        assert browser.text("h1").split()[1:] == [name]
        browser.click(".action", "Tag")
        browser.wait(lambda: browser.all("#dialog[open] input"))
        browser.press(name, "ENTER")
        browser.wait(lambda name=name: f"has the tag {name}." in browser.text("#toast"))
        assert store.thread(name).load().tags == (name,)
        browser.click("#toast a")
        browser.wait(lambda name=name: f"loses the tag {name}." in browser.text("#dialog"))
        browser.click("#dialog .primary")
        browser.wait(lambda: "The tag was removed" in browser.text("#toast"))
        assert store.thread(name).load().tags == ()
        browser.open("/?kind=thread")
        browser.click(".list .name", name)
        browser.wait(lambda name=name: browser.path == f"/threads/thread/~{name}")


def test_a_checkpoint_is_tagged_and_labelled(browser, store):
    browser.open("/threads/thread/trip-planner?ref=2")
    browser.click(".action", "Tag")
    browser.wait(lambda: browser.all("#dialog[open] input"))
    browser.press("good & <new>", "ENTER")
    browser.wait(lambda: "has the tag good & <new>" in browser.text("#toast"))
    assert store.thread("trip-planner").load(2).tags == ("good & <new>",)
    browser.click("#toast a")
    browser.wait(lambda: "loses the tag good & <new>" in browser.text("#dialog"))
    browser.click("#dialog .primary")
    browser.wait(lambda: "The tag was removed" in browser.text("#toast"))
    assert store.thread("trip-planner").load(2).tags == ()
    browser.click("#toast a", "Tag it again")
    browser.wait(lambda: browser.all("#dialog[open] input"))
    browser.press("ENTER")
    browser.wait(lambda: "has the tag good & <new>" in browser.text("#toast"))
    assert store.thread("trip-planner").load(2).tags == ("good & <new>",)
    browser.click(".action", "Label")
    browser.wait(lambda: "saved again as step 7" in browser.text("#dialog"))
    browser.press("done", "ENTER")
    browser.wait(lambda: "The head has the label done. Undo takes it back." in browser.text("#toast"))
    assert store.thread("trip-planner").load().label == "done"
    browser.click("#toast a", "Undo")
    browser.wait(lambda: "The head moves from step 7 to step 6." in browser.text("#dialog"))
    browser.click("#dialog .primary")
    browser.wait(lambda: "Redo takes it back" in browser.text("#toast"))
    browser.click("#toast a", "Redo")
    browser.wait(lambda: "The head moves from step 6 to step 7." in browser.text("#dialog"))
    browser.click("#dialog .primary")
    browser.wait(lambda: "Undo takes it back" in browser.text("#toast"))
    assert store.thread("trip-planner").load().label == "done"


def test_a_change_of_an_older_page_is_refused(browser, store):
    browser.open("/threads/thread/trip-planner/change/undo")
    store.thread("trip-planner").set("budget", 1)
    browser.click(".primary")
    browser.wait(lambda: "load it again" in browser.text(".change .problem"))
    assert store.thread("trip-planner").load().get("budget") == 1
    browser.wait(lambda: browser.read_logs() or browser.errors)  # the console names the 409, maybe a moment later
    assert all("409" in each for each in browser.errors)
    browser.errors.clear()


def test_a_call_in_doubt_is_settled(browser, store):
    browser.open("/")
    browser.click(".attention .name", "refund-4711")
    browser.click(".action", "It was made…")
    browser.wait(lambda: browser.all("#dialog[open] textarea"))
    browser.js("document.querySelector('#dialog textarea').value = ''")
    browser.press("not json")
    browser.click("#dialog .primary")
    browser.wait(lambda: "must be JSON" in browser.text("#dialog .problem"))
    browser.js("document.querySelector('#dialog textarea').value = '\"rf_1\"'")
    browser.click("#dialog .primary")
    browser.wait(lambda: "The call is settled." in browser.text("#toast"))
    assert store.runs.load("refund-4711").in_doubt == ()
    assert "In doubt" not in browser.text("main")


def test_an_agent_is_restored_and_the_restore_undone(browser, store):
    browser.open("/agents/support")
    browser.click(".action", "Restore…")
    browser.wait(lambda: "refund_limit" in browser.text("#dialog"))
    browser.click("#dialog .primary")
    browser.wait(lambda: "The agent was restored." in browser.text("#toast"))
    assert store.agents.load("support").custom_state["policy"]["refund_limit"] == 100
    browser.click("#toast a")
    browser.wait(lambda: "refund_limit" in browser.text("#dialog"))
    browser.click("#dialog .primary")
    browser.wait(lambda: "The restore was undone." in browser.text("#toast"))
    assert store.agents.load("support").custom_state["policy"]["refund_limit"] == 250


def test_a_store_is_pruned_and_verified(browser, store):
    browser.open("/storage?keep_last=1&rules=1")
    browser.wait(lambda: "trip-planner" in browser.text(".usage"))
    count = store.stats().checkpoints
    browser.click(".action", "Prune…")
    browser.wait(lambda: "This cannot be undone" in browser.text("#dialog"))
    assert "of thread trip-planner" in browser.text("#dialog")
    browser.click("#dialog .primary")
    browser.wait(lambda: "were removed" in browser.text("#toast"))
    assert store.stats().checkpoints < count
    browser.click("button[data-job]")
    browser.wait(lambda: "All good" in browser.text("#job"))


def test_everything_works_by_keyboard(browser, store):
    browser.press("?")
    browser.wait(lambda: browser.all("#keys[open]"))
    browser.press("ESCAPE")
    browser.wait(lambda: not browser.all("#keys[open]"))
    browser.open("/?kind=thread")
    names = [each.text for each in browser.all(".list .name")]
    for _ in range(names.index("trip-planner") + 1):
        browser.press("j")
    focused = browser.js("const s = getComputedStyle(document.activeElement); return [s.outlineStyle, s.outlineWidth]")
    assert focused == ["solid", "2px"]
    browser.press("ENTER")
    browser.wait(lambda: browser.path == "/threads/thread/trip-planner")
    browser.wait(lambda: browser.all(".cp[aria-current]"))
    browser.press("j", "j", "j", "ENTER")
    browser.wait(lambda: "Step 4" in browser.text("#detail h2"))
    for _ in range(60):  # on to the button that rewinds
        if browser.js("return document.activeElement.textContent") == "Rewind to here":
            break
        browser.press("TAB")
    browser.press("ENTER")
    browser.wait(lambda: browser.all("#dialog[open] .primary"))
    browser.wait(lambda: browser.js("return document.activeElement.className") == "primary")
    browser.press("ENTER")
    browser.wait(lambda: "The head is step 4 again." in browser.text("#toast"))
    assert store.thread("trip-planner").load().step == 4
    browser.press("u")
    browser.wait(lambda: browser.path == "/")


# -- large ------------------------------------------------------------------------------------------------


@pytest.mark.torture
@pytest.mark.timeout(1800)
def test_a_large_thread_is_usable_at_once(window, tmp_path):
    """A thread of 50,000 checkpoints with forks, and a state of 10 MB: its pages stay small. Prints the times."""
    with backtrail.open(str(tmp_path / "large.db"), durability="relaxed") as store:
        make_large(store)
        with served(store) as address:
            window.size(1600)
            window.sign_in(address)
            timings = {
                "newest": opened(window, "/threads/thread/large"),
                "by label": opened(window, "/threads/thread/large?ref=mark"),
                "oldest": opened(window, "/threads/thread/large?ref=1"),
            }
            window.open("/threads/thread/large")
            begin = time.perf_counter()
            window.click("summary .k", "rows")
            window.wait(lambda: len(window.all("details[open] .body > .tree > li")) == 100)
            timings["10 MB by path"] = {"ms": round(1000 * (time.perf_counter() - begin)), "bytes": 0}
            down, up = scrolled(window, 120), scrolled(window, -120)
            sys.stderr.write(f"{timings}\ndown: {down}\nup: {up}\n")
            window.read_logs()
            assert not window.errors
            assert len(window.all(".cp")) < 5_000  # far windows are emptied
            assert all(each["bytes"] < 100_000 for each in timings.values())
            window.driver.get("about:blank")  # ends the page's connections


def make_large(store, checkpoints=50_000):
    """Make a thread with forks, and a state of 10 MB."""
    thread = store.thread("large")
    rows = [f"row {number} " + "x" * 180 for number in range(50_000)]
    thread.save({"rows": rows, "counter": 0, "note": "y" * 200_000})
    made = 1
    while made < checkpoints:
        with store.transaction():
            for _ in range(min(500, checkpoints - made)):
                made += 1
                if made % 97 == 0:
                    thread.rewind(f"@~{5 + made % 7}")
                thread.set("counter", made, label="mark" if made % 25_000 == 0 else None)


def opened(window, path):
    """Open a page; return the milliseconds until it answers, until it can be used, and until its graph is there."""
    window.open(path)
    window.wait(lambda: window.all(".cp[aria-current]"))
    return window.js(
        "const n = performance.getEntriesByType('navigation')[0];"
        "const g = performance.getEntriesByType('resource').find(e => e.name.includes('around='));"
        "return {answer: Math.round(n.responseStart), usable: Math.round(n.domContentLoadedEventEnd),"
        " graph: Math.round(g ? g.responseEnd : n.responseEnd), bytes: n.decodedBodySize}"
    )


def scrolled(window, by, seconds=4.0):
    """Scroll the graph by some pixels in each frame; return figures of the frames, and the long tasks, in ms."""
    window.js(
        "const by = arguments[0]; window.frames_ = []; window.tasks_ = []; window.stop_ = false;"
        "const seen = new PerformanceObserver(list => window.tasks_.push(...list.getEntries().map(e => e.duration)));"
        "seen.observe({type: 'longtask'}); let last = performance.now(); const box = document.querySelector('#graph');"
        "function step(now) { window.frames_.push(now - last); last = now; box.scrollTop += by;"
        " if (!window.stop_) requestAnimationFrame(step); else seen.disconnect(); } requestAnimationFrame(step)",
        by,
    )
    time.sleep(seconds)
    frames = sorted(window.js("window.stop_ = true; return window.frames_"))
    tasks = [round(each) for each in window.js("return window.tasks_")]
    middle, late = (round(frames[int(len(frames) * part)]) for part in (0.5, 0.99))
    return {"frames": len(frames), "median": middle, "99%": late, "slowest": round(frames[-1]), "long tasks": tasks}
