"""The command line: the library made visible. `main` says what always holds for every command."""
