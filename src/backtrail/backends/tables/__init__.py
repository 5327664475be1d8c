"""Tables in memory: what the memory backend and the file backend share."""
