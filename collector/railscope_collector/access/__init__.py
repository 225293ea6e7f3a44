"""Access control of the collector: credentials, roles and their scope, the audit of access."""
