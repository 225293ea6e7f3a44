"""The agent: reads one server and tells Prometheus and the collector what it found."""
