"""Shipping: frames to the spool, envelopes to the collector, and what it acknowledged."""
