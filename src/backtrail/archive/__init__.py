"""Archives: export, import, and backups of stores."""
