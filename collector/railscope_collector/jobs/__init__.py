"""Job lists of schedulers: allocation of GPUs to jobs, its GPU time, and its reconciliation.

    job_list, bad_lines  jobs of any scheduler, and the lines of a list that are none
    gpu_models, account_tenants  models of GPUs, and tenants of accounts, from files
    job_list_reader      detects the format of a list; reads those of sacct
    clustercockpit, kubernetes   the other list formats
    job_metering, job_report   the GPU time of every tenant, exactly, and its report
    imported_lists, job_list_import   import of a list into the days of a ledger
    job_reconciliation   R3: comparison of a ledger with jobs
    scheduler_records    R3 with files of scheduler records, and its report

All is exact: missing data are reported, never guessed.
"""

from __future__ import annotations


class JobsError(Exception):
    """Base of the errors of job lists and of their import and reconciliation."""
