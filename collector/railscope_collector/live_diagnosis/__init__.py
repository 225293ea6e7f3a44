"""Diagnosis of what a collector receives, in a process of its own: `railscope diagnose --follow`, and how the collector runs it.

Errors derive from `DiagnosisExchangeError`.
"""


class DiagnosisExchangeError(ValueError):
    """A message between the collector and the process of its diagnosis that cannot be read; the text states the problem."""
