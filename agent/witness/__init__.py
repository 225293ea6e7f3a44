"""Witness of the collector's audit log: the newest checkpoint, verified, stored and cosigned."""
