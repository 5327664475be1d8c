"""Backends: storage for threads, rows and chunks. `port` defines what each backend promises."""
