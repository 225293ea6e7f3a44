"""A statement as text in aligned columns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from railscope_collector.billing.statement import (
    TenantStatement,
)
from railscope_collector.jobs.job_report import format_table

_SUMMARY = (
    "item", "product", "state", "from", "to", "GPUs", "quantity", "unit", "unit price", "amount",
)  # fmt: skip
_CLAIMS = ("claim", "GPUs", "from", "to", "GPU-hours", "kWh", "amount")
_SUMMARY_RIGHT = {5, 6, 8, 9}
_CLAIMS_RIGHT = {1, 4, 5, 6}
_MAX_CLAIMS = 25


def as_text(statement: TenantStatement) -> str:
    """The statement as text, limited to the most expensive claims."""
    invoice, summary = statement.invoice, statement.summary
    lines = [
        statement.title,
        *_fact_lines(statement.facts),
        *(f"  ! {mark}" for mark in statement.marks),
        "",
        f"{statement.total_label}: {statement.total} {invoice.currency}",
        "",
        *(format_table([_SUMMARY, *summary], _SUMMARY_RIGHT) if summary else ["No charges."]),
    ]
    claims = statement.claims
    if claims:
        shown = claims[:_MAX_CLAIMS]
        lines += ["", "BY CLAIM, without corrections"]
        lines += format_table([_CLAIMS, *shown], _CLAIMS_RIGHT)
        if len(claims) > len(shown):
            lines.append(f"  and {len(claims) - len(shown):,} more, in the CSV and JSON forms")
    if statement.undecided:
        lines += ["", "NOT BILLED until decided"]
        lines += [f"  {use}" for use in statement.undecided]
    if statement.proof:
        lines += ["", "PROOF", *_fact_lines(statement.proof)]
    return "\n".join(lines)


def _fact_lines(facts: Sequence[tuple[str, str]]) -> Iterator[str]:
    width = max(len(name) for name, _ in facts)
    return (f"  {name.ljust(width)}  {fact}" for name, fact in facts)
