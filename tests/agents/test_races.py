"""Writes between two steps of an agent operation. Each case once lost data, or raised an unnecessary error."""

from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from unittest import mock

import pytest

import backtrail
from backtrail import Conflict, Invalid, Message, NotFound
from backtrail.agents.checkpoints import Manifests
from backtrail.engine import manifests
from backtrail.maintenance import verify
from backtrail.maintenance.readable import Reading
from backtrail.overlay import Overlay
from backtrail.thread import Handle
from tests.conformance.base import head
from tests.conformance.restore import begun, moved_on
from tests.support.places import in_memory
from tests.support.scene import agent, contents, conversation, names, usage, view
from tests.support.schemas import swept


@pytest.fixture(
    params=[
        "sqlite",
        "postgres",
        *(pytest.param(kind, marks=pytest.mark.torture) for kind in ("memory", "file")),
    ]
)
def stores(request, tmp_path):
    """The same store, opened twice: mine, and that of others."""
    opening = {
        "memory": in_memory,
        "sqlite": lambda: _given(partial(backtrail.open, tmp_path / "s.db", durability="relaxed")),
        "file": lambda: _given(partial(backtrail.open, (tmp_path / "s").as_uri(), durability="relaxed")),
        "postgres": partial(swept, durability="relaxed"),
    }[request.param]
    with opening() as opener, opener() as mine, opener() as other:
        yield mine, other


@contextmanager
def _given(opener):
    yield opener


@contextmanager
def meanwhile(owner, method, action, *, after=False, when=lambda *_, **__: True):
    """Let others act once, in a thread of their own, before (or after) the first call of a method in the block."""
    real, done = getattr(owner, method), []

    def act():
        if not done:
            done.append(True)
            with ThreadPoolExecutor(1) as others:
                others.submit(action).result()

    def hooked(*args, **options):
        here = when(*args, **options)
        if here and not after:
            act()
        answer = real(*args, **options)
        if here and after:
            act()
        return answer

    with mock.patch.object(owner, method, hooked):
        yield
    assert done


STEPS = [(Manifests, step) for step in ("_verify", "_agent_tip", "_move_heads", "_record_again")]
"""What a restore and an undo do, one after the other; then comes `Overlay.finish`."""
END = (Overlay, "finish")


def at_each(steps):
    return pytest.mark.parametrize("step", steps, ids=[method.strip("_") for _, method in steps])


def assert_held(store, made):
    """A checkpoint of the current heads can be restored exactly."""
    shown = view(store, "a")
    threads = [store.agents.thread("a"), *map(store.conversations.thread, shown[1])]
    assert (made.conversations, made.size_bytes) == (len(shown[1]), sum(head(thread).size for thread in threads))
    for name in shown[1]:
        store.conversations.append(name, Message.user("later"))
    store.agents.restore(made.id)
    assert view(store, "a") == shown


def assert_goes_on(store):
    """The next checkpoint is right, too, also behind a collection."""
    store.gc()
    assert_held(store, store.agents.checkpoint("a", "next"))
    assert store.verify().ok


def assert_gone(store):
    """Nothing of the agent is left, and nothing brings it back."""
    assert (view(store, "a"), store.agents.checkpoints("a")) == ((None, {}), [])
    store.gc()
    assert (usage(store).payload_bytes, usage(store).chunks) == (0, 0)


# ---- checkpoints ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("deleted", [False, True])
def test_overtaken_checkpoint_holds_the_present_when_written(stores, deleted):
    mine, other = stores
    made = begun(mine)
    mine.conversations.append("c", Message.user("mine"))
    if deleted:
        mine.agents.delete_checkpoint(made)

    def theirs():
        moved_on(other)
        other.conversations.append("c", Message.user("x" * 1000))
        other.agents.checkpoint("a", "theirs")

    with meanwhile(Manifests, "_agent_tip", theirs, after=True):
        made = mine.agents.checkpoint("a", "mine")
    assert names(mine.agents.checkpoints("a"))[:2] == ["mine", "theirs"]
    assert contents(mine, "c")[-1] == "x" * 1000
    assert_held(mine, made)
    assert_goes_on(mine)


def test_two_first_checkpoints_at_once_are_both_right(stores):
    mine, other = stores
    mine.agents.save(agent())
    mine.conversations.save(conversation("c", "one"))

    def theirs():
        other.conversations.append("c", Message.user("two"))
        other.conversations.save(conversation("d"))
        other.agents.checkpoint("a", "theirs")

    with meanwhile(Manifests, "_agent_tip", theirs, after=True):
        made = mine.agents.checkpoint("a", "mine")
    assert names(mine.agents.checkpoints("a")) == ["mine", "theirs"]
    assert_held(mine, made)
    mine.agents.restore(mine.agents.checkpoints("a")[1])
    assert (contents(mine, "c"), contents(mine, "d")) == (["one", "two"], [])
    assert_goes_on(mine)


def test_newest_checkpoint_is_deleted_beside_a_newer_one(stores):
    mine, other = stores
    made = begun(mine)

    def theirs():
        moved_on(other)
        other.agents.checkpoint("a", "theirs")

    with meanwhile(Manifests, "_record_again", theirs):
        assert mine.agents.delete_checkpoint(made) is True
    assert names(mine.agents.checkpoints("a")) == ["theirs"]
    assert_held(mine, mine.agents.checkpoint("a", "mine"))
    mine.agents.restore(mine.agents.checkpoints("a")[1])
    assert contents(mine, "c") == ["c one", "c two"]
    assert_goes_on(mine)


# ---- restores and undos ---------------------------------------------------------------------------------------------


@at_each([(Manifests, "_record_again"), END])
def test_undo_beside_a_checkpoint_still_goes_back(stores, step):
    mine, other = stores
    made = begun(mine)
    moved_on(mine)
    before = view(mine, "a")
    mine.agents.restore(made)
    with meanwhile(*step, lambda: other.agents.checkpoint("a", "theirs")):
        mine.agents.undo("a")
    assert view(mine, "a") == before
    assert_goes_on(mine)


@at_each([*STEPS, END])
def test_undo_after_a_move_conflicts_and_names_the_thread(stores, step):
    mine, other = stores
    made = begun(mine)
    moved_on(mine)
    mine.agents.restore(made)

    def theirs():
        other.conversations.save(conversation("new", "hello"))
        other.agents.checkpoint("a", "theirs")

    with meanwhile(*step, theirs), suppress(Conflict):
        mine.agents.undo("a")
    assert contents(mine, "new") == ["hello"]
    with pytest.raises(Conflict) as caught:
        mine.agents.undo("a")
    assert caught.value.details["conversations"] == ["new"]
    assert_goes_on(mine)


@pytest.mark.parametrize("collect", [False, True])
@pytest.mark.parametrize("newest", [False, True])
@at_each([*STEPS, END])
def test_restore_of_a_checkpoint_deleted_meanwhile_changes_nothing(stores, step, newest, collect):
    mine, other = stores
    made = begun(mine)
    if not newest:
        mine.agents.checkpoint("a", "second")
    moved_on(mine)
    before = view(mine, "a")

    def theirs():
        other.agents.delete_checkpoint(made)
        if collect:
            other.gc()

    with meanwhile(*step, theirs), pytest.raises(NotFound) as caught:
        mine.agents.restore(made)
    assert caught.value.code == "not_found.checkpoint"
    assert view(mine, "a") == before
    with pytest.raises(Invalid):
        mine.agents.undo("a")
    assert_goes_on(mine)


@at_each([*STEPS, END])
def test_overtaken_restore_in_a_transaction_is_a_conflict(stores, step):
    mine, other = stores
    made = begun(mine)
    mine.agents.checkpoint("a", "second")
    moved_on(mine)
    before = view(mine, "a")
    delete = partial(other.agents.delete_checkpoint, made)
    with meanwhile(*step, delete), pytest.raises((NotFound, Conflict)), mine.transaction():
        mine.agents.restore(made)
    assert view(mine, "a") == before
    assert_goes_on(mine)


@at_each([*STEPS, END])
def test_second_undo_of_one_restore_has_nothing_to_undo(stores, step):
    mine, other = stores
    made = begun(mine)
    moved_on(mine)
    before = view(mine, "a")
    mine.agents.restore(made)

    def theirs():
        other.agents.undo("a")
        other.gc()

    after = step == (Manifests, "_agent_tip")
    with meanwhile(*step, theirs, after=after), pytest.raises(Invalid) as caught:
        mine.agents.undo("a")
    assert caught.value.code == "invalid.undo"
    assert view(mine, "a") == before
    assert_goes_on(mine)


def test_load_at_a_checkpoint_deleted_meanwhile_is_not_found(stores):
    mine, other = stores
    made = begun(mine)
    moved_on(mine)

    def theirs():
        other.agents.delete_checkpoint(made)
        other.gc()

    with meanwhile(Handle, "_held", theirs), pytest.raises(NotFound) as caught:
        mine.conversations.load("d", at=made)
    assert caught.value.code == "not_found.checkpoint"


# ---- collections ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("what", ["keep", "undo", "delete"])
@pytest.mark.parametrize("method", ["newest", "rows"])
def test_gc_beside_deleted_checkpoints_loses_nothing(stores, what, method):
    mine, other = stores
    made = begun(mine)
    moved_on(mine)
    mine.agents.restore(made)
    before = view(mine, "a")
    if what == "undo":
        theirs = partial(other.agents.undo, "a")
    else:
        last = mine.agents.checkpoint("a", "last", kind="automatic")
        newer = partial(other.agents.checkpoint, "a", "newer", kind="automatic", keep=1)
        theirs = newer if what == "keep" else partial(other.agents.delete_checkpoint, last)
    backend = mine._backend
    no = backend.find_thread(manifests.SPACE, "a").no
    with meanwhile(backend, method, theirs, after=True, when=lambda thread, *_, **__: thread == no):
        mine.gc()
    assert_goes_on(mine)
    mine.agents.restore(made)
    assert view(mine, "a") == before


def test_head_collected_during_a_read_is_no_damage(stores):
    mine, other = stores
    thread = other.thread("t")
    first = thread.save({"n": 1})
    thread.save({"n": 2})
    thread.rewind(first)

    def theirs():
        thread.save({"n": 3})
        thread.prune(keep_last=1)
        other.gc()
        assert other._backend.rows(1, [(1, 1)]) == []

    with meanwhile(mine._backend, "newest", theirs, after=True):
        assert head(mine.thread("t")).state == {"n": 3}


# ---- deleting -------------------------------------------------------------------------------------------------------


def live(store, *, again):
    """Let there be an agent that has no checkpoint; `again`: it is one that was deleted with those that it had."""
    if again:
        begun(store)
        store.agents.delete("a")
        store.gc()
    store.agents.save(agent())
    store.conversations.save(conversation("c", "a secret"))


@pytest.mark.parametrize("again", [False, True])
def test_agent_deleted_beside_its_first_checkpoint_is_gone(stores, again):
    mine, other = stores
    live(mine, again=again)
    made = []
    with meanwhile(*END, lambda: made.append(other.agents.checkpoint("a", "theirs"))):
        assert mine.agents.delete("a") is True
    assert_gone(mine)
    with pytest.raises(NotFound):
        mine.agents.restore(made[0])
    assert_gone(mine)


@pytest.mark.parametrize("again", [False, True])
@at_each([(Manifests, "_record"), (Manifests, "_put"), END])
def test_first_checkpoint_beside_a_delete_is_refused(stores, step, again):
    mine, other = stores
    live(mine, again=again)
    with meanwhile(*step, lambda: other.agents.delete("a")), pytest.raises(NotFound) as caught:
        mine.agents.checkpoint("a", "mine")
    assert caught.value.code == "not_found.agent"
    assert_gone(mine)


@at_each([*STEPS, END])
@pytest.mark.parametrize("what", ["restore", "undo"])
def test_restore_beside_a_delete_brings_nothing_back(stores, step, what):
    mine, other = stores
    made = begun(mine)
    moved_on(mine)
    mine.agents.restore(made)

    def theirs():
        other.agents.delete("a")
        other.gc()

    with meanwhile(*step, theirs), pytest.raises((NotFound, Invalid)):
        mine.agents.restore(made) if what == "restore" else mine.agents.undo("a")
    assert_gone(mine)


@at_each([(Manifests, "_record_again"), END])
def test_checkpoint_deleted_beside_its_agent_is_gone(stores, step):
    mine, other = stores
    made = begun(mine)

    def theirs():
        other.agents.delete("a")
        other.gc()

    with meanwhile(*step, theirs):
        assert mine.agents.delete_checkpoint(made) is False
    assert_gone(mine)


# ---- looking whether all is well -------------------------------------------------------------------------------------


def test_writes_during_verify_are_no_damage(stores):
    mine, other = stores
    begun(mine)
    for name, touched in (("c", True), ("d", False)):
        more = partial(other.conversations.append, name, Message.user("more"))
        asked = partial(_asked, now=touched)
        with meanwhile(mine._backend, "tips", more, after=True, when=asked):
            assert mine.verify().ok


def _asked(_, *, touched, now):
    return touched is now


@pytest.mark.parametrize("deleted", ["checkpoint", "conversation"])
def test_gc_during_verify_is_no_damage(stores, deleted):
    """An older checkpoint is deleted, or what no checkpoint holds any more, while pointers are followed."""
    mine, other = stores
    made = begun(mine)
    if deleted == "checkpoint":
        moved_on(mine)
        mine.agents.checkpoint("a", "second")
    else:
        mine.agents.delete_checkpoint(made)

    def theirs():
        other.agents.delete_checkpoint(made) if deleted == "checkpoint" else other.conversations.delete("d")
        other.gc()

    with meanwhile(verify._ManifestCheck, "_follow", theirs):
        assert mine.verify().ok


def test_gc_of_unpinned_rows_during_verify_is_no_damage(stores):
    mine, other = stores
    made = begun(mine)
    mine.conversations.delete("d")
    mine.agents.delete_checkpoint(made)
    with meanwhile(Reading, "reason", other.gc, when=lambda _, row, __: row.hidden):
        assert mine.verify().ok
