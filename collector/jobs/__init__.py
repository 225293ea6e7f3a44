"""Job lists of schedulers: who had which GPUs when, what that is in GPU time, and whether it agrees.

    job                  a job, whichever scheduler it is of
    clustercockpit, sacct, kubernetes   the lists; `reading` sees which of them a text is
    tenants              whose an account or namespace is
    meter, report        the GPU time of every tenant, exactly
    ledger               a list as days of a ledger
    pairing, reconcile   R3: a ledger against jobs
    books                the same with files, in words
    command              `railscope bill import-jobs`

All is exact: what a list does not tell is not guessed, but said.
"""
