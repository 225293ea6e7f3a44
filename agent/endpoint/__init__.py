"""HTTP endpoint of the agent: metrics, health, and claims."""
