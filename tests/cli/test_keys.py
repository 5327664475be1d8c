"""Keys in commands: from a file or from the environment, never from an argument."""

from pathlib import Path

import pytest

import backtrail
from backtrail import Key
from backtrail.sealed import keyring
from tests.support.commands import bad, good


@pytest.fixture(autouse=True)
def _place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(keyring, "FRESH", 0.0)
    for name in ("KEY", "KEY_FILE", "URL", "PASSPHRASE", "PASSPHRASE_FILE"):
        monkeypatch.delenv(f"BACKTRAIL_{name}", raising=False)
    Key.generate().save("a.key")
    with backtrail.open("s.db", key=Key.from_file("a.key")) as store:
        store.thread("trip").save({"n": 1})


STORE = ("--store", "s.db")
KEYED = (*STORE, "--key-file", "a.key")


def threads(*options):
    return [row["id"] for row in good("threads", "--jsonl", *options).rows]


def test_key_comes_from_a_file_or_the_environment(monkeypatch):
    assert threads(*KEYED) == ["trip"]
    assert good("--key-file", "a.key", "threads", "--jsonl", *STORE).rows
    monkeypatch.setenv("BACKTRAIL_KEY_FILE", "a.key")
    assert threads(*STORE) == ["trip"]
    monkeypatch.delenv("BACKTRAIL_KEY_FILE")
    monkeypatch.setenv("BACKTRAIL_KEY", Path("a.key").read_text())
    assert threads(*STORE) == ["trip"]


def test_missing_and_wrong_keys_are_one_line(monkeypatch):
    assert "--key-file" in bad(1, "threads", *STORE)
    assert "no such key file" in bad(3, "threads", *STORE, "--key-file", "none.key")
    good("keys", "init", "b.key")
    assert "wrapped by key" in bad(1, "threads", *STORE, "--key-file", "b.key")
    assert "is empty" in bad(2, "threads", *STORE, "--key-file", "")
    monkeypatch.setenv("BACKTRAIL_KEY", "secret-but-wrong")
    assert "secret-but-wrong" not in bad(2, "threads", *STORE)


def test_plain_store_with_a_key_is_refused():
    with backtrail.open("plain.db") as store:
        store.thread("t").save({"n": 1})
    assert "not encrypted" in bad(1, "threads", "--store", "plain.db", "--key-file", "a.key")


def test_init_makes_a_key_and_replaces_none():
    good("keys", "init", "new.key")
    before = Key.from_file("new.key").id
    assert "exists already" in bad(1, "keys", "init", "new.key")
    assert Key.from_file("new.key").id == before
    bad(2, "keys", "init")


def test_status_counts_keys():
    status = good("keys", "status", "--json", *KEYED).json
    assert (status["threads"], status["wrapped_by"]) == (1, Key.from_file("a.key").id)
    bad(2, "keys", "status", "file", *KEYED)
    bad(2, "keys", "status", "--data", *KEYED)


def test_rotate_changes_the_key_and_the_data():
    good("keys", "init", "b.key")
    bad(2, "keys", "rotate", *KEYED)
    good("keys", "rotate", "b.key", *KEYED)
    bad(1, "threads", *KEYED)
    assert threads(*STORE, "--key-file", "b.key") == ["trip"]
    assert good("keys", "rotate", "--data", "--json", *STORE, "--key-file", "b.key").json["rows"] == 1
    assert threads(*STORE, "--key-file", "b.key") == ["trip"]


def test_keyring_is_backed_up_and_named():
    good("backup", "copy.db", *KEYED)
    good("keys", "backup", "keyring.db", *KEYED)
    bad(2, "keys", "backup", *KEYED)
    assert "keyring" in bad(1, "threads", "--store", "copy.db", "--key-file", "a.key")
    assert threads("--store", "copy.db", "--key-file", "a.key", "--keyring", "keyring.db") == ["trip"]


def test_copies_are_encrypted_or_plain_as_the_caller_says(monkeypatch):
    good("keys", "init", "b.key")
    assert "--to-plain" in bad(2, "copy", "s.db", "x.db", "--key-file", "a.key")
    good("copy", "s.db", "plain.db", "--key-file", "a.key", "--to-plain")
    assert threads("--store", "plain.db") == ["trip"]
    good("copy", "s.db", "b.db", "--key-file", "a.key", "--to-key-file", "b.key", "--to-keyring", "b-keys.db")
    assert threads("--store", "b.db", "--key-file", "b.key", "--keyring", "b-keys.db") == ["trip"]
    monkeypatch.setenv("BACKTRAIL_KEY_FILE", "a.key")
    good("copy", "s.db", "c.db", "--to-key-file", "b.key")
    good("copy", "plain.db", "d.db", "--to-key-file", "b.key")
    for name in ("c.db", "d.db"):
        assert threads("--store", name, "--key-file", "b.key") == ["trip"]


def is_sealed(name):
    return Path(name).read_bytes().startswith(b"backtrail sealed export 1\n")


def test_export_has_the_key_of_its_store_unless_it_is_plain():
    good("export", "all", *KEYED)
    good("export", "plain", "--plain", *KEYED)
    assert (is_sealed("all"), is_sealed("plain")) == (True, False)
    assert "--from-key-file" in bad(1, "import", "all", "--store", "new.db")
    assert not Path("new.db").exists()
    good("import", "all", "--store", "new.db", "--key-file", "a.key")
    assert threads("--store", "new.db", "--key-file", "a.key") == ["trip"]
    good("import", "plain", "--store", "other.db")
    good("import", "plain", "--store", "third.db", "--key-file", "a.key")  # into an encrypted store
    assert "not encrypted" in bad(1, "import", "plain", "--store", "x.db", "--from-key-file", "a.key")


def test_export_and_import_take_a_key_of_the_file():
    good("keys", "init", "b.key")
    bad(2, "export", "all", "--to-key-file", "b.key", "--plain", *KEYED)
    good("export", "all", "--to-key-file", "b.key", *KEYED)
    assert "encrypted by key" in bad(1, "import", "all", "--store", "new.db", "--key-file", "a.key")
    good("import", "all", "--store", "plain.db", "--from-key-file", "b.key")
    assert threads("--store", "plain.db") == ["trip"]
    good("export", "again", "--key-file", "b.key", "--store", "plain.db")  # of a plain store
    assert is_sealed("again")
    good("import", "again", "--key-file", "b.key", "--store", "plain.db")


def test_export_and_import_take_a_passphrase(monkeypatch):
    monkeypatch.setattr("backtrail.archive.envelope.SCRYPT_COST", 4)
    Path("words").write_text("correct horse\n")
    assert "chmod 600" in bad(1, "export", "all", "--passphrase-file", "words", *KEYED)
    Path("words").chmod(0o600)
    good("export", "all", "--passphrase-file", "words", *KEYED)
    assert "--passphrase-file" in bad(1, "import", "all", *KEYED)
    good("import", "all", "--passphrase-file", "words", *KEYED)
    monkeypatch.setenv("BACKTRAIL_PASSPHRASE", "correct horse")
    good("import", "all", "--store", "plain.db")
    good("export", "next", "--since", "all", "--store", "plain.db")
    assert is_sealed("next")
    monkeypatch.setenv("BACKTRAIL_PASSPHRASE", "secret-but-wrong")
    assert "secret-but-wrong" not in bad(1, "import", "all", "--store", "plain.db")
    monkeypatch.setenv("BACKTRAIL_PASSPHRASE_FILE", "words")
    good("import", "next", "--store", "plain.db")


def test_servers_take_the_key():
    good("serve", "--dry-run", "--token", "example-token", *KEYED)
    good("mcp", "--dry-run", *KEYED)
    bad(1, "serve", "--dry-run", *STORE)
