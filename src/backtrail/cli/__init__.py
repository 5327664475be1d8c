"""The command line. `main` documents the rules of all commands."""
