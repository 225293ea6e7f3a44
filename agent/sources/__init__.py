"""Sources: one file per data source of the agent."""
