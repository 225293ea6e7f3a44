"""Account of GPU time: finalized days from the ledger, and the open days.

account_sums    GPU time by day, state and tenant; amounts of counters
gpu_account     the open days of one GPU
finalized_sums  the ledger's sums of GPUs in the account
live_account    all GPUs, refreshed in slices
account_cells   cells of views, JSON, and quotas of tenants with their use
"""
