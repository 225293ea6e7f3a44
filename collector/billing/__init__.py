"""Billing: exact charges, invoices and exports from metered GPU time and dated prices.

Pure: no input or output, no clock. Integers and fractions; no floating point anywhere.
"""
