"""Maintain a store: prune by a policy, collect garbage, verify, and copy it to another backend."""

import tempfile
from pathlib import Path

import backtrail
from backtrail import Policy


def main() -> None:
    """Fill a store, prune it, and copy it to plain files."""
    with tempfile.TemporaryDirectory() as place, backtrail.open(f"{place}/agents.db") as store:
        thread = store.thread("trip")
        thread.save({"messages": []})
        for n in range(200):
            thread.append("messages", {"role": "user", "content": f"message {n}"}, label="booked" if n == 100 else None)

        policy = Policy(keep_last=5)
        plan = store.prune(policy, dry_run=True)
        print(f"{len(plan.removed)} of 201 checkpoints would go; these stay:")
        for _, name, reasons in plan.kept:
            print(f"  {name}: {', '.join(reasons)}")
        store.prune(policy)
        print(f"{store.gc().rows} rows are gone for good")
        print(f"all is well: {store.verify().ok}")

        report = store.export(Path(place, "agents.bt"))
        print(f"exported {report.checkpoints} checkpoints")
        with backtrail.open(f"file://{place}/files") as files:
            files.import_(Path(place, "agents.bt"))
            same = files.thread("trip").load().root == thread.load().root
            print(f"the same, in plain files: {same}")


if __name__ == "__main__":
    main()
