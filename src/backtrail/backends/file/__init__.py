"""The file backend: tables in memory and a log of their changes in a directory."""
