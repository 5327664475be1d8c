"""Encrypt a store, read it with its key, rotate the key, and keep a backup that is of no use without the keyring."""

import tempfile
from pathlib import Path

import backtrail
from backtrail import Key


def main() -> None:
    """Write a secret, look for it in the files, and change the key."""
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        Key.generate().save(place / "agents.key")
        key = Key.from_file(place / "agents.key")

        with backtrail.open(place / "agents.db", key=key) as store:
            chat = store.thread("chat")
            chat.save({"messages": []})
            chat.append("messages", {"role": "user", "content": "my diagnosis is a secret"})
            print("found by search:", store.search("diagnosis")[0].snippet)
            store.backup(place / "backup.db")
            store.keys.backup(place / "keyring-copy.db")

        in_files = any(b"diagnosis" in path.read_bytes() for path in place.iterdir())
        print("in a file:", in_files)

        try:
            backtrail.open(place / "agents.db")
        except backtrail.Unavailable as error:
            print("without the key:", error.code)

        Key.generate().save(place / "new.key")
        with backtrail.open(place / "agents.db", key=key) as store:
            store.keys.rotate(Key.from_file(place / "new.key"))
        with backtrail.open(place / "agents.db", key=Key.from_file(place / "new.key")) as store:
            print("with the new key:", len(store.thread("chat").load().state["messages"]), "message")

        with backtrail.open(place / "backup.db", key=key, keyring=place / "keyring-copy.db") as backup:
            print("in the backup:", len(backup.thread("chat").load().state["messages"]), "message")


if __name__ == "__main__":
    main()
