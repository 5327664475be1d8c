"""The PostgreSQL backend: a store in one schema of a database."""
