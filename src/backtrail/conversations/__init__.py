"""Conversations: messages in order, each conversation in a thread of its own."""
