"""Settings of a NIC, one module per interface they are read from."""
