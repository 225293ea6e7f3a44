"""The GPUs and MIG devices of the node, as the sources and the claim providers share them."""
