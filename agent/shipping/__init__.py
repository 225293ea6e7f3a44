"""Shipping: frames are packed into envelopes, spooled, and sent until the collector acknowledges them."""

from __future__ import annotations


class ShippingError(Exception):
    """Base of the errors of shipping: an invalid link to the collector, an invalid response."""
