"""Terminal client: status, tables and a live view of a cluster, from the API of a collector or the metrics of an agent."""
