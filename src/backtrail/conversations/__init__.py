"""Conversations: messages in order. Each conversation has its own thread."""
