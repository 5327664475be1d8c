"""Full-text search over messages: the index, queries, and the text that is indexed."""
