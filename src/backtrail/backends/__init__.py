"""Backends: places to keep rows and chunks. `port` says what each of them promises."""
