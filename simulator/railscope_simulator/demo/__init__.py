"""Demo: a collector, this host's own agent and several simulated GPU nodes, as real processes."""
