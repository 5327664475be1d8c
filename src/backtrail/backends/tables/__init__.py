"""Tables in memory: the code that the memory backend and the file backend share."""
