"""The account of GPU time: what the ledger has settled, and the days that are still open.

tally    sums by day, state and tenant
gpu      one GPU's open days, worked out when its facts change and carried on in between
amounts  what counters counted on the open days
live     all GPUs, refreshed in slices
quotas   what tenants may use, and what they have used of it
"""
