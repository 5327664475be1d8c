"""Runs: loops that resume after a crash without repeating finished calls."""
