"""The engine: what rows and chunks mean. Pure logic; it knows backends only by their port."""
