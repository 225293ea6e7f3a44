"""Job lists of schedulers: who had which GPUs when, and what that is in metered GPU time."""
