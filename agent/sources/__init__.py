"""Sources: one file per place the agent reads from."""
