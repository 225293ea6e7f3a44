"""The agent: samples a node and exports the readings to Prometheus and the collector."""
