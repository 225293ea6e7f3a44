"""A statement as text, in aligned columns."""

from __future__ import annotations

from collections.abc import Sequence

from collector.billing.statement import Statement

_SUMMARY = ("what", "of", "state", "from", "to", "GPUs", "quantity", "", "unit price", "amount")
_CLAIMS = ("claim", "GPUs", "from", "to", "GPU-hours", "kWh", "amount")
_SUMMARY_RIGHT = {5, 6, 8, 9}
_CLAIMS_RIGHT = {1, 4, 5, 6}
_MAX_CLAIMS = 25


def text(statement: Statement) -> str:
    """The statement as text, limited to the most expensive claims."""
    invoice, summary = statement.invoice, statement.summary
    width = max(len(name) for name, _ in statement.facts)
    lines = [
        statement.title,
        *(f"  {name.ljust(width)}  {fact}" for name, fact in statement.facts),
        *(f"  ! {mark}" for mark in statement.marks),
        "",
        *(table([_SUMMARY, *summary], _SUMMARY_RIGHT) if summary else ["No charges."]),
        "",
        f"{statement.due}: {statement.total} {invoice.currency}",
    ]
    claims = statement.claims
    if claims:
        shown = claims[:_MAX_CLAIMS]
        lines += ["", "BY CLAIM, without corrections"]
        lines += table([_CLAIMS, *shown], _CLAIMS_RIGHT)
        if len(claims) > len(shown):
            lines.append(f"  and {len(claims) - len(shown):,} more, in the CSV and JSON forms")
    if statement.undecided:
        lines += ["", "NOT BILLED until somebody decides"]
        lines += [f"  {one}" for one in statement.undecided]
    return "\n".join(lines)


def table(rows: Sequence[Sequence[str]], right: set[int]) -> list[str]:
    """Rows in columns as wide as their widest cell; empty columns are left out."""
    sizes = [max(map(len, column)) for column in zip(*rows, strict=True)]
    used = [at for at in range(len(sizes)) if any(row[at] for row in rows[1:])]
    return [
        "  ".join(
            row[at].rjust(sizes[at]) if at in right else row[at].ljust(sizes[at]) for at in used
        ).rstrip()
        for row in rows
    ]
