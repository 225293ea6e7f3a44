"""Event streams that the agent follows, one module per source of events."""
