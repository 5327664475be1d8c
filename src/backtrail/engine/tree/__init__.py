"""States as trees of nodes: encoded, decoded, edited, scanned for changes, compared."""
