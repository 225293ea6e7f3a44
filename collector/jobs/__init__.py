"""Job lists of schedulers: allocation of GPUs to jobs, its GPU time, and its reconciliation.

    job                  a job of any scheduler
    clustercockpit, sacct, kubernetes, alibaba   the list formats; `reading` detects the format
    tenants              tenant of an account or namespace
    meter, report        the GPU time of every tenant, exactly
    lists, ledger        import of a list into the days of a ledger
    pairing, reconcile   R3: comparison of a ledger with jobs
    books                R3 with files of scheduler records, and its report

All is exact: missing data are reported, never guessed.
"""
