"""Witness of the audit log of the collector: the newest checkpoint, verified, kept and cosigned."""
