"""The collector: frames of all nodes in, cluster, rail and tenant views out."""
