"""`backtrail doctor`: what is installed, and whether a store is healthy."""

from importlib import metadata

import apsw
import pytest

import backtrail
from tests.support.commands import good, run
from tests.support.servers import server


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("BACKTRAIL_URL", raising=False)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    return tmp_path


@pytest.fixture
def store(place):
    with backtrail.open("agents.db") as store:
        store.thread("trip").save({"n": 1})
        store.thread("other").save({"n": 2})
    return place / "agents.db"


def test_versions_are_those_that_are_installed():
    found = good("doctor", "--json").json
    assert found["backtrail"] == metadata.version("backtrail")
    assert found["sqlite"] == apsw.sqlite_lib_version()
    assert found["packages"]["apsw"] == metadata.version("apsw")
    assert found["extras"]["postgres"] == {"psycopg": metadata.version("psycopg")}
    assert not {"test", "lint", "bench", "docs", "dist"} & set(found["extras"])


def test_missing_extra_is_named_with_its_command(monkeypatch):
    real = metadata.version

    def version(name):
        if name == "psycopg":
            raise metadata.PackageNotFoundError(name)
        return real(name)

    monkeypatch.setattr(metadata, "version", version)
    assert "postgres" in next(line for line in good("doctor").out.splitlines() if line.startswith("missing"))
    assert good("doctor", "--json").json["extras"]["postgres"] == {"psycopg": None}


def test_healthy_store(store):
    found = good("doctor", "agents.db", "--json").json
    assert found["ok"]
    assert found["store"]["contents"]["threads"] == 2
    assert found["store"]["states_read"] == 2
    assert "healthy" in good("doctor", "agents.db").out


def test_store_option_names_the_store_too(store):
    assert good("doctor", "--store", "agents.db", "--json").json["store"]["states_read"] == 2


def test_own_store_need_not_exist(place):
    assert "does not exist yet" in good("doctor").out
    assert list(place.iterdir()) == []


def test_named_store_must_exist(place):
    done = run("doctor", "no.db", "--json")
    assert (done.code, done.json["ok"], done.json["store"]["exists"]) == (3, False, False)
    assert list(place.iterdir()) == []


def test_other_file_is_not_a_store(place):
    (place / "plain.db").write_bytes(b"not a database at all" * 400)
    done = run("doctor", "plain.db")
    assert done.code == 1
    assert "plain.db" in done.err


def test_damaged_state_is_found(store):
    connection = apsw.Connection(str(store))
    connection.execute("UPDATE row SET payload = CAST('x' || payload AS BLOB) WHERE key >> 32 = 1")
    connection.close()
    done = run("doctor", "agents.db", "--json")
    assert (done.code, done.json["ok"], done.json["store"]["damaged"]) == (5, False, True)
    assert done.json["store"]["states_read"] == 1
    assert "trip" in done.json["store"]["problems"][0]
    assert "verify" in run("doctor", "agents.db").err


def test_readable_by_others_is_a_note(store):
    assert good("doctor", "agents.db", "--json").json["store"]["notes"] == []
    store.chmod(0o644)
    assert "other users" in good("doctor", "agents.db").out


def test_server_version_is_shown_and_the_password_is_not():
    with backtrail.open(server().url, schema="doctor") as store:
        store.thread("trip").save({"n": 1})
    done = good("doctor", server().url, "--schema", "doctor", "--json")
    server().execute("DROP SCHEMA doctor CASCADE")
    assert any(note.startswith("PostgreSQL ") for note in done.json["store"]["notes"])
    assert done.json["store"]["states_read"] == 1


def test_unreachable_server_is_a_problem_without_the_password():
    done = run("doctor", "postgresql://me:s3cret-Zq7@127.0.0.1:1/db?connect_timeout=1")
    assert done.code == 1
    assert "s3cret" not in done.out + done.err
