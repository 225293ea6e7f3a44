"""Account of GPU time: finalized days from the ledger, and the open days.

tally    sums by day, state and tenant
gpu      one GPU's open days, computed when its facts change and extended in between
amounts  amounts of counters on the open days
cells    cells of views, and JSON
live     all GPUs, refreshed in slices
quotas   quotas of tenants, and their use
"""
