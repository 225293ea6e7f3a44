"""GPUs and MIG devices of the node, shared by the sources and the claim providers."""
