"""No file of an encrypted store has anything in plain that users wrote: 50 canaries, in every place that is sealed."""

import tempfile
from unittest import mock

import pytest

import backtrail
from backtrail import AgentState, Conversation, Message
from tests.support.sealing import KEY
from tests.support.servers import server

CANARIES = [f"canary{n:02d}{'qzxjvkw'[n % 7]}bird" for n in range(50)]


def fill(store):
    """Write each canary in another place: texts, metadata, arguments and results of tools, keys of dicts, bytes."""
    left = iter(CANARIES)
    thread = store.thread("t")
    thread.save({"text": next(left), next(left): 1, "bytes": next(left).encode()}, metadata={"note": next(left)})
    thread.set("list", [next(left)])
    for _ in range(5):
        thread.append("list", {"deep": [next(left)]})
    thread.set("long", [f"{next(left)} {n} " * 50 for n in range(10)] + ["filler " * 100] * 200)
    thread.rewind("@~1")
    thread.fork("fork").save({"text": next(left)})
    agent = AgentState("a", next(left), "type", system_prompt=next(left), custom_state={"plan": next(left)})
    store.agents.save(agent)
    for n in range(5):
        said = [Message.user(next(left)), Message.assistant(next(left))]
        store.conversations.save(Conversation("a", id=f"c{n}", title=next(left), messages=said, tags=[f"tag {n}"]))
    store.agents.checkpoint("a", "name", description=next(left))
    with store.run("run", agent="a", state={"text": next(left)}) as run:
        for _ in run.iterations():
            run.tool("search", lambda query: next(left) + query, next(left))
            run.message(Message.user(next(left)))
            break
    store.thread("gone").save({"text": next(left)})
    store.thread("gone").delete()
    for each in left:
        store.thread("rest").save({"messages": [{"role": "user", "content": each}]})
    assert store.search(CANARIES[-1])
    assert store.search(CANARIES[-1][:-4] + "*")
    assert store.search(CANARIES[-1][2:-4], contains=True)


def found(folder, *, plain=CANARIES):
    """The canaries that are in files, in either byte order, and those files."""
    forms = {each: (each.encode(), each.encode("utf-16-le"), each.encode().hex().encode()) for each in plain}
    return [
        (each, path.name)
        for path in folder.rglob("*")
        if path.is_file()
        for content in [path.read_bytes()]
        for each, written in forms.items()
        if any(form in content for form in written)
    ]


@pytest.mark.parametrize("kind", ["sqlite", "file"])
def test_no_canary_is_in_any_file(tmp_path, kind):
    place = tmp_path / "store"
    url = place.as_uri() if kind == "file" else place
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    with mock.patch.object(tempfile, "tempdir", str(scratch)):
        with backtrail.open(url, key=KEY, compression=False) as store:
            fill(store)
            assert found(tmp_path) == []  # with the write-ahead log
            store.backup(tmp_path / "backup")
            store.verify()
            store.gc()
            store.keys.rotate(backtrail.Key(bytes(32)))
            assert found(tmp_path) == []
        assert found(tmp_path) == []
        assert len([*tmp_path.rglob("*")]) >= 3


def test_canaries_are_found_in_a_plain_store(tmp_path):
    """The search for canaries finds them where they are."""
    with backtrail.open(tmp_path / "store", compression=False) as store:
        fill(store)
        assert {each for each, _ in found(tmp_path)} == set(CANARIES)


def test_no_canary_is_in_the_tables_of_postgres():
    schema = "canaries"
    try:
        with backtrail.open(server().url, schema=schema, key=KEY, compression=False) as store:
            fill(store)
            store._backend.below.check(None)
        text = ""
        for name in (schema, f"{schema}_keys"):
            tables = server().execute(
                "SELECT relname FROM pg_class WHERE relnamespace = %s::regnamespace AND relkind IN ('r', 'p')", (name,)
            )
            assert tables
            for (table,) in tables:
                text += repr(server().execute(f'SELECT * FROM "{name}"."{table}"'))
                text += repr(server().execute(f'SELECT t::text FROM "{name}"."{table}" t'))
        written = [each for each in CANARIES if each in text or each.encode().hex() in text]
        assert written == []
        assert len(text) > 10_000
    finally:
        server().drop_schema(schema)
        server().drop_schema(f"{schema}_keys")


def test_keys_are_in_no_file_in_plain(tmp_path):
    with backtrail.open(tmp_path / "store", key=KEY) as store:
        store.thread("t").save({"n": 1})
        keyring = store._backend.keyring
        secrets = [bytes(range(32)), *keyring.store.secrets.values()]
        record = store._backend.find_thread("thread", "t")
        last, keys = keyring._records([record.uid])[record.uid].content
        secrets += [keyring._unwrapped(record.uid, *key) for key in keys]
        assert (last, len(secrets)) == (1, 3)
        for path in tmp_path.rglob("*"):
            content = path.read_bytes()
            assert not any(secret in content or secret.hex().encode() in content for secret in secrets)
