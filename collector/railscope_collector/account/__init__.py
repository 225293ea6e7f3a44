"""Account of GPU time: finalized days from the ledger, and the open days.

account_sums    GPU time by day, state and tenant; amounts of counters
held_now        what holds a GPU at a time
live_account    the account, and the holders of all GPUs
account_cells   cells of views, JSON, and quotas of tenants with their use
"""
