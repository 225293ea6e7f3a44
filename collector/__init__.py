"""The collector: receives frames of all nodes, serves cluster, rail and tenant views."""
