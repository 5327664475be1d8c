"""Code that the SQLite and PostgreSQL backends share: reads, commit groups, statements in files, listeners."""
