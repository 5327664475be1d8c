"""What a run gives the first time, and what it gives again when it is resumed: the same, or a refusal."""

import asyncio
import collections
import dataclasses
import enum
import json
import os
import subprocess
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import openai
import pydantic
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import backtrail
from backtrail import CallError, Done, InDoubt, Invalid, Message, aio
from backtrail.models import Items


class Verdict(enum.Enum):
    ALLOW = "allow"
    DENY = "deny"


class Level(enum.IntEnum):
    LOW = 1


@dataclasses.dataclass(frozen=True)
class Reply:
    text: str
    verdict: Verdict


@dataclasses.dataclass
class Holder:
    reply: Any


class Pair(NamedTuple):
    left: Any
    right: Any


class Model(pydantic.BaseModel):
    name: str
    replies: list[Reply] = []


class Name(str):
    __slots__ = ()


CLASSES = [Verdict, Level, Reply, Holder, Pair, Model]


class Cut(Exception):  # noqa: N818
    pass


@pytest.fixture
def store():
    with backtrail.open("memory://") as store:
        yield store


def once(store, work, session="s", **options):
    """Work on the first iteration of a run, and return what comes of it."""
    with store.run(session, **options) as run:
        for _ in run.iterations():
            return work(run)
    return None


def twice(store, work, **options):
    """Work on an iteration that is cut short at its end, and again when it is resumed: return what both gave."""
    found = []

    def cut(run):
        found.append(work(run))
        raise Cut

    for _ in range(2):
        with pytest.raises(Cut):
            once(store, cut, **options)
    return found


def caught(expected, run, name, fn, *args):
    """Call a tool that fails, and return its exception."""
    with pytest.raises(expected) as raised:
        run.tool(name, fn, *args)
    return raised.value


def same(one, other):
    """Tell whether two values are equal, types and all; the tuples of messages are tuples."""
    one, other = (tuple(each) if type(each) is Items else each for each in (one, other))
    if type(one) is not type(other):
        return False
    if dataclasses.is_dataclass(one):
        return all(same(getattr(one, each.name), getattr(other, each.name)) for each in dataclasses.fields(one))
    if isinstance(one, (dict, pydantic.BaseModel)):
        return same(list(dict(one).items()), list(dict(other).items()))
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, (set, frozenset)):
        return sorted(map(repr, one)) == sorted(map(repr, other))
    return repr(one) == repr(other)  # nan, -0.0


# ---- results of any type --------------------------------------------------------------------------------------------

hashable = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=4),
    st.binary(max_size=4),
    st.sampled_from([Verdict.DENY, Level.LOW, Name("x"), Reply("no", Verdict.DENY), Pair(1, Name("y"))]),
)
values = st.recursive(
    st.one_of(
        hashable,
        st.builds(bytearray, st.binary(max_size=3)),
        st.builds(iter, st.lists(st.integers(), max_size=2)),
        st.builds(collections.OrderedDict),
        st.builds(lambda: threading.Lock()),  # noqa: PLW0108 - a function of its own each time
        st.builds(Message.user, st.text(max_size=4)),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(hashable, inner, max_size=3),
        st.sets(hashable, max_size=3),
        st.builds(Holder, inner),
        st.builds(Pair, inner, inner),
        st.builds(lambda replies: Model(name="m", replies=replies), st.just([Reply("a", Verdict.ALLOW)])),
        inner.map(lambda each: [each, each]),
    ),
    max_leaves=6,
)


@settings(max_examples=300, deadline=None)
@given(value=values, named=st.lists(st.sampled_from(CLASSES), unique=True))
def test_a_replayed_result_equals_the_first_or_both_are_refused(value, named):
    with backtrail.open("memory://") as store:
        calls = []

        def work(run):
            return run.tool("t", lambda: calls.append(1) or value)

        found = []

        def cut(run):
            found.append(work(run))
            raise Cut

        for _ in range(2):
            with suppress(Cut, Invalid, InDoubt):
                once(store, cut, types=named)
        assert calls == [1]
        assert not found or (len(found) == 2 and same(*found) and same(found[0], value))


@settings(max_examples=150, deadline=None)
@given(value=values, named=st.lists(st.sampled_from(CLASSES), unique=True))
def test_states_and_partial_results_come_back_equal_or_are_refused(value, named):
    with backtrail.open("memory://") as store:
        kept = False
        with suppress(Invalid), store.run("s", types=named) as run:
            for i in run.iterations():
                if i == 2:
                    kept = True
                    run.halt("look")
                assert same(run.partial(value), value)
                run.state["value"] = value
        if kept:
            with store.run("s", types=named) as run:
                assert same(run.state, {"value": value})
                assert same(run.partial_results, [value])


# ---- classes --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "value", [Verdict.DENY, Reply("no", Verdict.DENY), Pair(1, 2), Model(name="m")], ids=lambda v: type(v).__name__
)
def test_unnamed_class_is_refused_until_it_is_named(store, value):
    calls = []

    def work(run):
        return run.tool("judge", lambda: calls.append(1) or value)

    for _ in range(2):
        with pytest.raises(Invalid, match=rf"types=\[{type(value).__name__}\]") as refusal:
            once(store, work)
        assert refusal.value.details["path"] == "result"
    found = once(store, work, types=[type(value)])
    assert same(found, value)
    assert calls == [1]
    assert store.runs.load("s").status.name == "completed"


def test_a_named_class_brings_the_classes_of_its_annotations(store):
    reply = Reply("no", Verdict.DENY)
    assert twice(store, lambda run: run.tool("judge", lambda: reply), types=[Reply]) == [reply, reply]


def test_classes_of_the_store_need_no_naming():
    with backtrail.open("memory://", types=[Verdict]) as store:
        found = twice(store, lambda run: run.tool("judge", lambda: Verdict.DENY))
        assert [each is Verdict.DENY for each in found] == [True, True]


def test_the_first_time_gives_a_copy_as_a_replay_does(store):
    live = [[1], [2]]

    def work(run):
        found = run.tool("t", lambda: [live, live])
        live[0].append(9)
        found[0].append("mine")
        return found[1]

    first, second = twice(store, work)
    assert first == second == [[1], [2]]
    live[:] = []


def test_unstorable_result_leaves_call_in_doubt(store):
    calls = []

    def lock():
        calls.append(1)
        return threading.Lock()

    with pytest.raises(Invalid, match=r"settle\('s', '1\.1', result="):
        once(store, lambda run: run.tool("t", lock))
    assert [call.id for call in store.runs.load("s").in_doubt] == ["1.1"]
    assert store.runs.load("s").tool_calls == ()
    with pytest.raises(InDoubt):
        once(store, lambda run: run.tool("t", lock))
    assert calls == [1]
    store.runs.settle("s", "1.1", result="done")
    assert once(store, lambda run: run.tool("t", lock)) == "done"


def test_pure_call_with_unstorable_result_is_called_again(store):
    results = [iter(()), 7]
    with pytest.raises(Invalid):
        once(store, lambda run: run.tool("t", lambda: results.pop(0), policy="pure"))
    assert once(store, lambda run: run.tool("t", lambda: results.pop(0), policy="pure")) == 7


def test_caught_refusal_does_not_end_the_iteration(store):
    def work(run):
        with suppress(Invalid):
            run.tool("t", lambda: iter(()))

    with pytest.raises(InDoubt):
        once(store, work)


def test_what_verify_and_settle_say_is_refused_or_given_alike(store):
    def killed():
        raise KeyboardInterrupt

    def work(run, verify=None):
        return run.tool("t", killed, verify=verify)

    with suppress(KeyboardInterrupt):
        once(store, work)
    with pytest.raises(Invalid, match="Verdict"):
        once(store, lambda run: work(run, lambda call: Done(Verdict.DENY)))
    assert once(store, work, types=[Verdict]) is Verdict.DENY
    with suppress(KeyboardInterrupt):
        once(store, work, "settled")
    store.runs.settle("settled", "1.1", result=Verdict.DENY)
    with pytest.raises(Invalid, match="Verdict"):
        once(store, work, "settled")
    assert once(store, work, "settled", types=[Verdict]) is Verdict.DENY


def test_arguments_of_unnamed_classes_are_refused_before_the_call(store):
    calls = []
    with pytest.raises(Invalid, match=r"arguments\.args\[0\].*types=\[Verdict\]"):
        once(store, lambda run: run.tool("t", calls.append, Verdict.DENY))
    assert calls == []
    once(store, lambda run: run.tool("t", calls.append, Verdict.DENY), "s", types=[Verdict])
    assert calls == [Verdict.DENY]


def test_state_of_unnamed_class_is_refused_first(store):
    with pytest.raises(Invalid, match=r"state.*types=\[Reply\]"):
        once(store, lambda run: None, state=Reply("no", Verdict.DENY))
    assert "s" not in store.runs


def test_messages_with_unnamed_classes_are_refused_however_they_come(store):
    message = Message("user", "hello", metadata={"verdict": Verdict.DENY})
    with pytest.raises(Invalid, match=r"types=\[Verdict\]"):
        once(store, lambda run: None, messages=[message])
    assert "s" not in store.runs
    with pytest.raises(Invalid, match=r"types=\[Verdict\]"):
        once(store, lambda run: run.message(message))
    found = twice(store, lambda run: run.message(message).metadata, session="named", types=[Verdict])
    assert [each["verdict"] for each in found] == [Verdict.DENY] * 2


def test_results_in_asyncio_are_given_or_refused_alike(tmp_path):
    calls = []

    async def judge():
        calls.append(1)
        return Reply("no", Verdict.DENY)

    async def main():
        async with aio.open(f"sqlite:///{tmp_path}/s.db") as store:
            for named in ((), (Reply,), (Reply,)):
                with pytest.raises(Cut) if named else pytest.raises(Invalid, match=r"types=\[Reply\]"):
                    async with store.run("s", types=named) as run:
                        async for _ in run.iterations():
                            assert await run.tool("judge", judge) == Reply("no", Verdict.DENY)
                            raise Cut
            with pytest.raises(Limited) as raised:
                async with store.run("t", errors=[Limited]) as run:
                    async for _ in run.iterations():
                        await run.tool("t", limited)
            with pytest.raises(Limited) as raised:
                async with store.run("t", errors=[Limited]) as run:
                    async for _ in run.iterations():
                        await run.tool("t", limited)
            assert "replayed" in raised.value.__notes__[0]

    async def limited():
        raise Limited(5)

    asyncio.run(main())
    assert calls == [1]


def test_run_resumed_without_its_classes_stays_unchanged(store):
    def halt(run):
        run.halt("later")

    once(store, halt, state=Reply("no", Verdict.DENY), types=[Reply])
    with pytest.raises(Invalid, match=r"types=\[Reply\]"):
        once(store, halt)
    found = store.runs.load("s")
    assert (str(found.status), found.owner) == ("halted(later)", None)
    with store.run("s", types=[Reply]) as run:
        assert run.state == Reply("no", Verdict.DENY)


def test_what_is_no_list_of_classes_is_refused(store):
    with pytest.raises(Invalid, match=r"types=\[Verdict\]"):
        store.run("s", types=Verdict)


# ---- exceptions -----------------------------------------------------------------------------------------------------


class Limited(Exception):  # noqa: N818
    """Its constructor takes something else than what it says."""

    def __init__(self, retry_after, *, headers=None):
        super().__init__(f"retry after {retry_after} s")
        self.retry_after = retry_after
        self.headers = headers
        self.code = "slow_down"


class Lost(OSError):  # noqa: N818
    def __init__(self, host):
        super().__init__(111, f"{host} refused")
        self.host = host


def rate_limit():
    request = httpx.Request("POST", "https://example.test", headers={"Authorization": "Bearer sk-secret"})
    response = httpx.Response(429, request=request)
    return openai.RateLimitError("slowly", response=response, body={"code": "limit"})


def bad_json():
    try:
        json.loads("{")
    except json.JSONDecodeError as error:
        return error


def http_error():
    request = httpx.Request("GET", "https://example.test", headers={"Authorization": "Bearer sk-secret"})
    return httpx.HTTPStatusError("bad", request=request, response=httpx.Response(500, request=request))


RAISED = {type(each).__name__: each for each in (rate_limit(), bad_json(), http_error(), Limited(5), Lost("here"))}


@pytest.mark.parametrize("error", RAISED.values(), ids=RAISED)
def test_a_named_exception_comes_back_whatever_its_constructor_takes(store, error):
    def fail():
        raise error

    first, again = twice(store, lambda run: caught(type(error), run, "fail", fail), errors=[type(error)])
    assert first is error
    assert again is not error
    assert (type(again), again.args, str(again)) == (type(error), error.args, str(error))


def test_named_exception_keeps_numbers_and_named_attributes(store):
    def fail():
        raise Limited(5, headers={"Authorization": "Bearer sk-secret"})

    def work(run):
        return caught(Limited, run, "fail", fail)

    plain = twice(store, work, errors=[Limited])[1]
    assert (plain.retry_after, hasattr(plain, "code"), hasattr(plain, "headers")) == (5, False, False)
    told = twice(store, work, session="told", errors={Limited: ["code"]})[1]
    assert (told.retry_after, told.code, hasattr(told, "headers")) == (5, "slow_down", False)


def test_json_errors_come_back_with_their_numbers(store):
    def work(run):
        return caught(json.JSONDecodeError, run, "t", json.loads, "{")

    first, again = twice(store, work, errors=[json.JSONDecodeError])
    assert (str(again), again.pos, again.lineno, again.colno) == (str(first), first.pos, first.lineno, first.colno)
    told = twice(store, work, session="told", errors={json.JSONDecodeError: ["msg", "doc"]})[1]
    assert (told.msg, told.doc) == (first.msg, first.doc)


class Denied(Exception):  # noqa: N818
    """Says by `__reduce__` what its constructor takes."""

    made = 0

    def __init__(self, text, token):
        super().__init__(text)
        self.token = token
        Denied.made += 1

    def __reduce__(self):
        return Denied, (self.args[0], self.token)


@pytest.mark.parametrize("url", ["sqlite", "file"])
def test_constructor_arguments_of_an_exception_are_not_recorded(tmp_path, url):
    error = Denied("denied", "Bearer sk-secret")
    made = Denied.made

    def fail():
        raise error

    with backtrail.open(f"{url}:///{tmp_path / 'store'}", compression=False) as store:
        first, again = twice(store, lambda run: caught(Denied, run, "t", fail), errors=[Denied])
        document = '{"password": "sk-secret", bad'
        with pytest.raises(json.JSONDecodeError):
            once(store, lambda run: run.tool("t", lambda: json.loads(document)), "j", errors=[json.JSONDecodeError])
        store.export(tmp_path / "export")
    assert (str(again), vars(again).keys() & {"token"}, Denied.made) == (str(first), set(), made)
    files = [each for each in tmp_path.rglob("*") if each.is_file()]
    assert not [each for each in files if b"sk-secret" in each.read_bytes()]


class Speaking(Exception):  # noqa: N818
    """Its text is not that of its args."""

    def __init__(self, source, code):
        super().__init__("short")
        self.source = source
        self.code = code

    def __str__(self):
        return getattr(self, "source", "nothing")


@pytest.mark.parametrize(
    "error", [subprocess.CalledProcessError(2, ["ls"]), Speaking("too many", 429)], ids=["raises", "differs"]
)
def test_an_exception_with_another_text_is_a_call_error(store, error):
    def fail():
        raise error

    cls, text = type(error), str(error)
    with pytest.raises(cls):
        once(store, lambda run: run.tool("t", fail), errors=[cls])
    with pytest.raises(CallError) as raised:
        once(store, lambda run: run.tool("t", fail), errors=[cls])
    assert str(raised.value) == f"{cls.__name__}: {text}"


def test_a_named_attribute_makes_the_text_whole(store):
    def fail():
        raise subprocess.CalledProcessError(2, ["ls"], b"output")

    work = lambda run: caught(subprocess.CalledProcessError, run, "t", fail)  # noqa: E731
    first, again = twice(store, work, errors={subprocess.CalledProcessError: ["cmd"]})
    assert (str(again), again.returncode, again.cmd) == (str(first), 2, ["ls"])


def test_an_attribute_that_cannot_be_kept_leaves_the_others(store):
    error = Limited(5, headers=threading.Lock())

    def fail():
        raise error

    again = twice(store, lambda run: caught(Limited, run, "t", fail), errors={Limited: ["code", "headers"]})[1]
    assert (again.retry_after, again.code, again.args) == (5, "slow_down", error.args)


def test_args_that_cannot_be_kept_leave_the_numbers(store):
    error = type("Odd", (Exception,), {})(threading.Lock(), "x")
    error.code = 429

    def fail():
        raise error

    again = twice(store, lambda run: caught(type(error), run, "t", fail), errors=[type(error)])[1]
    assert (again.code, str(again)) == (429, str(error))


@pytest.mark.parametrize(
    "error", [FileNotFoundError(2, "gone", Path("a/b")), KeyError(threading.Lock())], ids=["os", "key"]
)
def test_pythons_own_exception_says_the_same_again(store, error):
    def fail():
        raise error

    again = twice(store, lambda run: caught(type(error), run, "t", fail))[1]
    assert getattr(again, "errno", None) == getattr(error, "errno", None)
    assert str(again) == str(error)


def test_an_oserror_of_ones_own_keeps_its_number(store):
    def fail():
        raise Lost("here")

    found = twice(store, lambda run: caught(Lost, run, "t", fail), errors=[Lost])
    assert [(each.errno, each.strerror) for each in found] == [(111, "here refused")] * 2


def test_exception_that_cannot_be_rebuilt_is_call_error(store):
    def fail():
        Model.model_validate({"name": 1})

    with pytest.raises(pydantic.ValidationError):
        once(store, lambda run: run.tool("t", fail), errors=[pydantic.ValidationError])
    with pytest.raises(CallError, match="ValidationError"):
        once(store, lambda run: run.tool("t", fail), errors=[pydantic.ValidationError])


def test_exception_named_later_comes_back_as_its_class(store):
    def fail():
        raise Limited(5)

    with pytest.raises(Limited):
        once(store, lambda run: run.tool("t", fail))
    with pytest.raises(CallError):
        once(store, lambda run: run.tool("t", fail))
    with pytest.raises(Limited, match="retry after 5 s"):
        once(store, lambda run: run.tool("t", fail), errors=[Limited])


def test_builtin_exception_with_odd_arguments_comes_back(store):
    def fail():
        raise ValueError(threading.Lock())

    for _ in range(2):
        with pytest.raises(ValueError, match="lock"):
            once(store, lambda run: run.tool("t", fail))


@pytest.mark.parametrize("errors", [(), [Limited], [openai.RateLimitError]], ids=["none", "own", "openai"])
@pytest.mark.parametrize("url", ["sqlite", "file"])
def test_no_header_of_an_exception_is_stored_or_exported(tmp_path, url, errors):
    path = tmp_path / "store"
    with backtrail.open(f"{url}:///{path}", compression=False) as store:
        for session, error in (
            ("a", Limited(5, headers={"Authorization": "Bearer sk-secret"})),
            ("b", rate_limit()),
            ("c", type("Api", (Exception,), {})("boom")),
        ):
            error.token = "Bearer sk-secret"

            def fail(error=error):
                raise error

            with pytest.raises(type(error)):
                once(store, lambda run, fail=fail: run.tool("t", fail), session, errors=errors)
        store.export(tmp_path / "export")
        kept = [checkpoint.state for name in "abc" for checkpoint in store.runs.steps(name)]
    assert "sk-secret" not in repr(kept)
    files = [each for each in tmp_path.rglob("*") if each.is_file()]
    assert not [each for each in files if b"sk-secret" in each.read_bytes()]


def test_a_replayed_exception_says_so_in_a_note(store):
    def pay(amount):
        raise ValueError("refused")

    found = twice(store, lambda run: caught(ValueError, run, "pay", pay, 90))
    assert not hasattr(found[0], "__notes__")
    (note,) = found[1].__notes__
    assert "pay(90)" in note
    assert "1.1" in note
    assert "retry=True" in note
    assert " UTC" in note


def test_a_call_error_has_the_note_too(store):
    class Odd(Exception):  # noqa: N818
        pass

    def fail():
        raise Odd("boom")

    with pytest.raises(Odd):
        once(store, lambda run: run.llm("m", fail))
    with pytest.raises(CallError) as raised:
        once(store, lambda run: run.llm("m", fail))
    assert "replayed" in raised.value.__notes__[0]


@pytest.mark.parametrize("names", ["code", 7, [7]])
def test_attributes_of_exceptions_are_a_list_of_names(store, names):
    with pytest.raises(Invalid):
        store.run("s", errors={Limited: names})


# ---- forks of the process -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("child", ["returns", "raises"])
def test_the_return_of_a_forked_child_is_not_recorded(tmp_path, child):
    with backtrail.open(f"sqlite:///{tmp_path}/s.db") as store:

        def forks():
            pid = os.fork()
            if pid == 0:
                if child == "raises":
                    raise ValueError("of the child")
                return "child"
            os.waitpid(pid, 0)
            return "parent"

        here = os.getpid()
        try:
            assert once(store, lambda run: run.tool("t", forks)) == "parent"
        except BaseException:
            if os.getpid() != here:  # the child: it must not go on as a test
                os._exit(1)
            raise
        finally:
            if os.getpid() != here:
                os._exit(0)
        found = store.runs.load("s")
        assert [call.result for call in found.tool_calls] == ["parent"]
        assert found.status.name == "completed"
