"""Settings of a NIC, one module per data source."""
