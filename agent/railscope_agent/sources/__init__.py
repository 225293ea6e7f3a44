"""Data sources of the agent, one module for each subsystem of the node."""
