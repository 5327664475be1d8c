"""What proves that a store keeps its promises: for backtrail's own tests, and for whoever writes a backend.

- `conformance.StoreConformance`: a test class; a backend's test file derives from it and says how to open a store.
- `machine.ThreadMachine`: random histories, held against a plain model after every step.
- `chunks.small_chunks`: makes small states have as many chunks as large ones.
- `exact.same`: whether two values are equal to the last type, nan and order of keys.

It needs the `test` extra (pytest and hypothesis).
"""
