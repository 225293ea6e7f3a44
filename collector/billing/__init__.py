"""Billing: from metered GPU time and dated prices to charges, invoices and exports, exactly.

Pure: no input or output, no clock. Integers and fractions; no floating point anywhere.
"""
