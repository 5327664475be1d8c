"""Agents: their state, their checkpoints, and the scheduler that makes checkpoints by itself."""
