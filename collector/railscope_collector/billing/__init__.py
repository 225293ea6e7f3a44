"""Billing: exact charges, invoices and exports from metered GPU time and dated prices.

`charges`, `price_book`, `usage`, `claim_minimums`, `rating`, `invoices` and `focus_rows` are pure: no input or output, no
clock. Integers and fractions; no floating point anywhere.
"""

from __future__ import annotations


class BillingError(Exception):
    """Base of the errors of billing; the message contains reason and remedy."""
