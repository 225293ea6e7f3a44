"""Who may ask the collector for what: credentials, roles, the table of routes, the gate before them."""
