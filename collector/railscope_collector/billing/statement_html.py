"""A statement as HTML: one page without external resources, for screen, print and screen readers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from railscope_collector.billing import invoices
from railscope_collector.billing.statement import (
    TenantStatement,
)

_HTML_SUMMARY = (
    "Item", "Product", "State", "From", "To", "GPUs", "Quantity", "Unit", "Unit price", "Amount",
)  # fmt: skip
_HTML_CLAIMS = ("Claim", "GPUs", "From", "To", "GPU-hours", "kWh", "Amount")
_NUMBER_COLUMNS = {"GPUs", "Quantity", "Unit price", "Amount", "GPU-hours", "kWh"}
_MAX_HTML_CLAIMS = 500
_STYLE = """
:root { color-scheme: light; }
body { font: 15px/1.5 system-ui, sans-serif; color: #1b1f24; background: #fff;
  max-width: 76rem; margin: 2rem auto; padding: 0 1.5rem; }
h1 { font-size: 1.5rem; margin: 0 0 .25rem; } h2 { font-size: 1.1rem; margin: 2rem 0 .5rem; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .15rem 1.5rem; margin: 1rem 0; }
dt { color: #4a5560; } dd { margin: 0; overflow-wrap: anywhere; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-size: .9rem; }
caption { text-align: left; color: #4a5560; padding-bottom: .4rem; }
th, td { padding: .35rem .6rem; text-align: left; vertical-align: top; }
thead th { border-bottom: 2px solid #1b1f24; } tbody tr + tr > * { border-top: 1px solid #d5dae0; }
tbody th { font-weight: 500; }
.number { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
.total { font-size: 1.2rem; margin: 1rem 0; }
tfoot th, tfoot td { border-top: 2px solid #1b1f24; font-weight: 700; font-size: 1rem; }
.mark { border-left: 4px solid #a15c00; background: #fff6e6; padding: .5rem 1rem; margin: .5rem 0; }
.void { border-color: #a40e26; background: #ffedef; }
@media print { body { margin: 0; max-width: none; font-size: 10pt; } h2 { break-after: avoid; }
  tr { break-inside: avoid; } thead { display: table-header-group; }
  .scroll { overflow: visible; } @page { size: A4 landscape; margin: 14mm; } }
"""


def as_html(statement: TenantStatement) -> str:
    """The statement as an HTML page."""
    invoice = statement.invoice
    title = " ".join(statement.title.split())
    kind = "mark void" if invoice.status is invoices.InvoiceStatus.VOID else "mark"
    marks = "".join(
        f'<p class="{kind}" role="note">{escape(mark)}</p>\n' for mark in statement.marks
    )
    total = (
        f'<tfoot><tr><th scope="row" colspan="{len(_HTML_SUMMARY) - 1}">{escape(statement.total_label)}</th>'
        f'<td class="number">{statement.total} {escape(invoice.currency)}</td></tr></tfoot>'
    )
    caption = "Lines of one kind and price summed up; amounts in " + invoice.currency
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n<main>\n"
        f"<h1>{escape(title)}</h1>\n{marks}{_facts_html(statement.facts)}"
        f'<p class="total">{escape(statement.total_label)}: <b>{statement.total} {escape(invoice.currency)}</b></p>\n'
        "<h2>Charges</h2>\n"
        f"{_table(caption, _HTML_SUMMARY, statement.summary, total)}\n"
        f"{_claims_html(statement)}{_undecided_html(statement)}"
        f"<h2>Proof</h2>\n{_facts_html(statement.proof)}</main>\n</body>\n</html>\n"
    )


def _facts_html(facts: Iterable[tuple[str, str]]) -> str:
    rows = "".join(f"<dt>{escape(name)}</dt><dd>{escape(fact)}</dd>\n" for name, fact in facts)
    return f"<dl>\n{rows}</dl>\n"


def _claims_html(statement: TenantStatement) -> str:
    claims = statement.claims
    if not claims:
        return ""
    shown = claims[:_MAX_HTML_CLAIMS]
    caption = "Total of each claim without corrections, the most expensive first"
    if len(shown) < len(claims):
        caption += f". {len(claims) - len(shown):,} more are in the CSV and JSON forms"
    return f"<h2>By claim</h2>\n{_table(caption, _HTML_CLAIMS, shown)}\n"


def _undecided_html(statement: TenantStatement) -> str:
    if not statement.undecided:
        return ""
    items = "".join(f"<li>{escape(str(use))}</li>\n" for use in statement.undecided)
    return f"<h2>Not billed until decided</h2>\n<ul>\n{items}</ul>\n"


def _table(caption: str, head: Sequence[str], rows: Iterable[Sequence[str]], foot: str = "") -> str:
    heads = "".join(f'<th scope="col"{_class(name)}>{escape(name)}</th>' for name in head)
    body = "".join(f"<tr>{_cells(head, row)}</tr>\n" for row in rows)
    return (
        f'<div class="scroll" role="region" aria-label="{escape(caption)}" tabindex="0">\n<table>\n'
        f"<caption>{escape(caption)}</caption>\n<thead><tr>{heads}</tr></thead>\n"
        f"<tbody>\n{body}</tbody>\n{foot}\n</table>\n</div>"
    )


def _cells(head: Sequence[str], row: Sequence[str]) -> str:
    first, *rest = (escape(cell) for cell in row)
    named = zip(head[1:], rest, strict=True)
    return f'<th scope="row">{first}</th>' + "".join(
        f"<td{_class(name)}>{cell}</td>" for name, cell in named
    )


def _class(name: str) -> str:
    return ' class="number"' if name in _NUMBER_COLUMNS else ""
