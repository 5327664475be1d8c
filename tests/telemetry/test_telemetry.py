"""Telemetry: what the SDK's in-memory exporter and reader get, and what they never get."""

import asyncio
import contextlib
import json
import os
import subprocess
import sys
import time

import pytest
from opentelemetry import metrics, trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import NonRecordingSpan, SpanContext, StatusCode, TraceFlags

import backtrail
from backtrail import AgentState, Conversation, Message, aio
from backtrail.backends import port
from backtrail.backends.port import Copyable
from backtrail.telemetry import TracedBackend
from backtrail.testing import BackendConformance
from backtrail.urls import backend_at
from tests.support.servers import server

EXPORTER = InMemorySpanExporter()
READER = InMemoryMetricReader()
SECRET = "the-secret-of-ada"


PROVIDER = TracerProvider()
PROVIDER.add_span_processor(SimpleSpanProcessor(EXPORTER))


@pytest.fixture(scope="session", autouse=True)
def meter_provider():
    """A process has one meter provider, for good."""
    metrics.set_meter_provider(MeterProvider(metric_readers=[READER]))


@pytest.fixture(autouse=True)
def nothing_before():
    EXPORTER.clear()


def spans(name=None):
    return [span for span in EXPORTER.get_finished_spans() if name is None or span.name == name]


def attributes(name):
    return [dict(span.attributes) for span in spans(name)]


@pytest.fixture
def store(tmp_path):
    with backtrail.open(tmp_path / "a.db", telemetry=PROVIDER, spans="all") as store:
        yield store


# -- spans ------------------------------------------------------------------------------------------


def test_append_is_one_span_with_its_ids(store):
    chat = store.thread("trip", agent="planner")
    chat.save({"messages": []})
    EXPORTER.clear()
    chat.append("messages", {"role": "user", "content": SECRET})
    (span,) = spans()
    assert span.name == "backtrail.commit"
    assert dict(span.attributes) == {
        "db.system.name": "sqlite",
        "db.operation.name": "commit",
        "gen_ai.conversation.id": "trip",
        "gen_ai.agent.id": "planner",
    }
    assert span.end_time >= span.start_time > 0


def test_new_threads_of_each_kind_are_named(store):
    store.agents.save(AgentState("planner", "Planner", "some-model"))
    store.conversations.save(Conversation("planner", id="lunch"))
    with store.run("work", agent="planner"):
        pass
    named = [{key: each[key] for key in each if not key.startswith("db.")} for each in attributes("backtrail.commit")]
    assert {"gen_ai.agent.id": "planner"} in named
    assert {"gen_ai.agent.id": "planner", "gen_ai.conversation.id": "lunch"} in named
    assert {"gen_ai.agent.id": "planner", "backtrail.run.id": "work"} in named


def test_second_process_names_threads_that_it_read(tmp_path):
    with backtrail.open(tmp_path / "a.db") as other:
        other.thread("trip").save({"n": 1})
    with backtrail.open(tmp_path / "a.db", telemetry=PROVIDER, spans="all") as store:
        assert store.thread("trip").load().state == {"n": 1}
    assert {each.get("gen_ai.conversation.id") for each in attributes("backtrail.read")} == {"trip"}


def test_spans_belong_to_the_span_around_them(store):
    with PROVIDER.get_tracer("test").start_as_current_span("turn") as turn:
        store.thread("trip").save({"n": 1})
    made = [span for span in spans() if span.name != "turn"]
    assert made
    assert {span.parent.span_id for span in made} == {turn.get_span_context().span_id}


def test_spans_of_coroutines_belong_to_the_task(tmp_path):
    async def work(name):
        with PROVIDER.get_tracer("test").start_as_current_span(name):
            await store.thread(name).save({"n": 1})

    async def both():
        nonlocal store
        async with aio.open(tmp_path / "a.db", telemetry=PROVIDER, spans="all") as store:
            await asyncio.gather(work("one"), work("two"))

    store = None
    asyncio.run(both())
    parents = {span.context.span_id: span.name for span in spans() if span.name in ("one", "two")}
    commits = spans("backtrail.commit")
    assert {span.attributes["gen_ai.conversation.id"]: parents[span.parent.span_id] for span in commits} == {
        "one": "one",
        "two": "two",
    }
    assert spans("backtrail.group")


def test_nothing_is_made_inside_of_a_span_that_is_not_recorded(store):
    around = NonRecordingSpan(SpanContext(1, 1, is_remote=False, trace_flags=TraceFlags(0)))
    with trace.use_span(around):
        store.thread("trip").save({"n": 1})
    assert spans() == []


def test_search_list_and_stats_are_spans(store):
    store.thread("trip").save({"messages": [{"role": "user", "content": "Lisbon"}]})
    EXPORTER.clear()
    list(store.search("lisbon"))
    list(store.threads())
    store.stats()
    assert {"backtrail.search", "backtrail.list", "backtrail.stats"} <= {span.name for span in spans()}


def test_quick_reads_and_writes_are_counted_only(tmp_path):
    with backtrail.open(tmp_path / "a.db", telemetry=PROVIDER) as store:
        store.thread("trip").save({"messages": []})
        before = sums("backtrail.operation.count")["sqlite", "commit"]
        EXPORTER.clear()
        later = time.time_ns() + 10**12  # a call that ends before it began is quick on the busiest machine
        store._backend._ended("commit", later, 0)
        store._backend._ended("commit", later, 0, port.Stale())
        assert sums("backtrail.operation.count")["sqlite", "commit"] == before + 1
        assert spans() == []
        store._backend._ended("commit", time.time_ns() - 10**9, 0)
        store.stats()
    assert [span.name for span in spans()] == ["backtrail.commit", "backtrail.stats"]


def test_all_spans_require_telemetry(tmp_path):
    for options in ({"spans": "all"}, {"telemetry": PROVIDER, "spans": "many"}):
        with pytest.raises(backtrail.Invalid, match="spans"):
            backtrail.open(tmp_path / "a.db", **options)


def test_failed_calls_have_a_code_and_no_text(tmp_path):
    backtrail.open(tmp_path / "a.db").close()
    with backtrail.open(tmp_path / "a.db", read_only=True, telemetry=PROVIDER) as store, pytest.raises(backtrail.Error):
        store.thread("trip").save({"n": SECRET})
    (span,) = [span for span in spans("backtrail.commit") if span.status.status_code is StatusCode.ERROR]
    assert span.attributes["error.type"] == "unavailable.read_only"
    assert span.status.description is None
    assert not span.events


def test_lost_races_are_no_errors(tmp_path):
    with (
        backtrail.open(tmp_path / "a.db", telemetry=PROVIDER, spans="all") as store,
        backtrail.open(tmp_path / "a.db") as other,
    ):
        thread = store.thread("trip")
        thread.save({"n": []})
        other.thread("trip").append("n", 1)
        EXPORTER.clear()
        thread.append("n", 2)
        assert store.thread("trip").load().state == {"n": [1, 2]}
    kinds = [(span.attributes.get("error.type"), span.status.status_code) for span in spans("backtrail.commit")]
    assert kinds == [("Stale", StatusCode.UNSET), (None, StatusCode.UNSET)]


def test_no_content_is_in_any_span(store):
    chat = store.thread("trip", agent="planner")
    chat.save({"messages": [{"role": "user", "content": SECRET}]}, label=f"label-{SECRET}", tags=[f"tag-{SECRET}"])
    chat.set(f"key-{SECRET}", SECRET)
    chat.fork("other", at=f"label-{SECRET}")
    chat.rewind(f"label-{SECRET}")
    list(store.search(SECRET))
    store.agents.save(AgentState("planner", SECRET, "model"))
    store.agents.checkpoint("planner", SECRET, description=SECRET)
    store.conversations.save(Conversation("planner", id="lunch", title=SECRET))
    store.conversations.append("lunch", Message.user(SECRET))
    with pytest.raises(backtrail.Error):
        chat.load(SECRET)
    store.verify()
    store.gc()
    assert len(spans()) > 10
    assert not [span.name for span in spans() if SECRET in span.to_json()]


# -- metrics ----------------------------------------------------------------------------------------


def sums(name):
    data = READER.get_metrics_data()
    found = [
        metric
        for resource in data.resource_metrics
        for scope in resource.scope_metrics
        if scope.scope.name == "backtrail"
        for metric in scope.metrics
        if metric.name == name
    ]
    points = [point for point in found[0].data.data_points if "error.type" not in point.attributes]
    return {(each.attributes["db.system.name"], each.attributes["db.operation.name"]): each.value for each in points}


def test_metrics_count_calls_and_seconds(store):
    store.thread("trip").save({"n": []})
    before, spent = sums("backtrail.operation.count"), sums("backtrail.operation.time")
    for n in range(5):
        store.thread("trip").append("n", n)
    after = sums("backtrail.operation.count")
    assert after["sqlite", "commit"] - before["sqlite", "commit"] == 5
    assert sums("backtrail.operation.time")["sqlite", "commit"] > spent["sqlite", "commit"]


def test_metrics_have_no_ids(store):
    store.thread("trip", agent="planner").save({"n": []})
    data = json.loads(READER.get_metrics_data().to_json())
    assert "trip" not in json.dumps(data)
    assert "planner" not in json.dumps(data)


# -- the backend ------------------------------------------------------------------------------------


class TestTracedSqlite(BackendConformance):
    """A backend with telemetry is a backend."""

    def open_backend(self, folder):
        below = backend_at(str(folder / "a.db"), durability="relaxed", read_only=False, schema=None)
        return contextlib.closing(TracedBackend(below, every=True))


@pytest.mark.parametrize("kind", ["sqlite", "file", "memory", "postgresql"])
def test_system_is_named(kind, tmp_path):
    url = {"sqlite": str(tmp_path / "a.db"), "file": f"file://{tmp_path}/d", "memory": "memory://"}.get(kind)
    with backtrail.open(
        url or server().url, schema=None if url else "telemetry", telemetry=PROVIDER, spans="all"
    ) as store:
        store.thread("trip").save({"n": 1})
    if not url:
        server().execute("DROP SCHEMA telemetry CASCADE")
    assert {each["db.system.name"] for each in attributes("backtrail.commit")} == {kind}


def test_store_with_telemetry_can_be_backed_up(store, tmp_path):
    store.thread("trip").save({"n": 1})
    assert isinstance(store._backend, Copyable)
    store.backup(tmp_path / "b.db")
    with backtrail.open(tmp_path / "b.db") as copy:
        assert copy.thread("trip").load().state == {"n": 1}
    assert spans("backtrail.backup")


def test_memory_store_with_telemetry_is_not_copyable():
    with backtrail.open("memory://", telemetry=PROVIDER, spans="all") as store:
        assert not isinstance(store._backend, Copyable)


def test_child_of_fork_counts(store):
    store.thread("trip").save({"n": []})
    pid = os.fork()
    if pid == 0:
        store.thread("trip").append("n", 1)
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
    assert store.thread("trip").load().state == {"n": [1]}


# -- off --------------------------------------------------------------------------------------------


def test_store_without_telemetry_makes_no_span_and_loads_nothing(tmp_path):
    code = (
        "import sys, backtrail\n"
        "with backtrail.open('a.db') as store: store.thread('t').save({'n': 1})\n"
        "print([name for name in sys.modules if name.startswith('opentelemetry') or name == 'backtrail.telemetry'])"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_true_means_the_provider_of_the_process(tmp_path, monkeypatch):
    monkeypatch.setattr(trace, "get_tracer_provider", lambda: PROVIDER)
    with backtrail.open(tmp_path / "a.db", telemetry=True, spans="all") as store:
        store.thread("trip").save({"n": 1})
    assert spans("backtrail.commit")


def test_missing_package_is_named_and_the_store_is_closed(tmp_path, monkeypatch):
    monkeypatch.delitem(sys.modules, "backtrail.telemetry")
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    with pytest.raises(backtrail.Unavailable, match=r"pip install 'backtrail\[telemetry\]'") as caught:
        backtrail.open(tmp_path / "a.db", telemetry=PROVIDER, spans="all")
    assert caught.value.code == "unavailable.extra"
