"""Maintenance of a store: garbage collection, retention, verification, repair, migration, counts."""
