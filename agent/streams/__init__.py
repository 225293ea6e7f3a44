"""Streams: what the agent follows, one file per place; they yield events."""
