"""Account of GPU time: finalized days from the ledger, and the open days.

account_sums    GPU time by day, state and tenant; amounts of counters
live_account    all GPUs, refreshed in slices; the open days of one GPU
account_cells   cells of views, JSON, and quotas of tenants with their use
"""
