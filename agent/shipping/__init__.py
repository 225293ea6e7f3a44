"""Shipping: frames are packed into envelopes, spooled, and sent until the collector acknowledges them."""
