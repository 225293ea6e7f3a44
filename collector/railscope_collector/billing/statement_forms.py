"""Forms of a statement: text and HTML for people, CSV and JSON line by line for programs.

In CSV and JSON, amounts are strings with the decimals of the currency; `exact` is the amount before
rounding, as a fraction. In CSV, text that a spreadsheet would interpret as a formula starts with an
apostrophe. HTML is one page without external resources, for screen, print and screen readers.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from fractions import Fraction
from html import escape

import msgspec

from railscope.timestamps import format_timestamp
from railscope.untrusted_text import escape_formula
from railscope_collector.billing import charges, invoices
from railscope_collector.billing.statement import TenantStatement, source_day, unit_price
from railscope_collector.jobs.job_report import format_table
from railscope_collector.metering.units import period_name

_SUMMARY = (
    "item", "product", "state", "from", "to", "GPUs", "quantity", "unit", "unit price", "amount",
)  # fmt: skip
_CLAIMS = ("claim", "GPUs", "from", "to", "GPU-hours", "kWh", "amount")
_NUMBERS = {"GPUs", "quantity", "unit price", "amount", "GPU-hours", "kWh"}
_MAX_CLAIMS, _MAX_HTML_CLAIMS = 25, 500

# Text --------------------------------------------------------------------------------------------


def as_text(statement: TenantStatement) -> str:
    """The statement as text in aligned columns, limited to the most expensive claims."""
    summary, claims = statement.summary, statement.claims
    lines = [
        statement.title,
        *_fact_lines(statement.facts),
        *(f"  ! {mark}" for mark in statement.marks),
        "",
        f"{statement.total_label}: {statement.total} {statement.invoice.currency}",
        "",
        *(_text_table(_SUMMARY, summary) if summary else ["No charges."]),
    ]
    if claims:
        shown = claims[:_MAX_CLAIMS]
        lines += ["", "BY CLAIM, without corrections", *_text_table(_CLAIMS, shown)]
        if len(claims) > len(shown):
            lines.append(f"  and {len(claims) - len(shown):,} more, in the CSV and JSON forms")
    if statement.undecided:
        lines += ["", "NOT BILLED until decided", *(f"  {use}" for use in statement.undecided)]
    if statement.proof:
        lines += ["", "PROOF", *_fact_lines(statement.proof)]
    return "\n".join(lines)


def _fact_lines(facts: Sequence[tuple[str, str]]) -> Iterator[str]:
    width = max(len(name) for name, _ in facts)
    return (f"  {name.ljust(width)}  {fact}" for name, fact in facts)


def _text_table(names: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    return format_table([names, *rows], {names.index(name) for name in _NUMBERS & {*names}})


# HTML --------------------------------------------------------------------------------------------

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
    invoice, claims = statement.invoice, statement.claims
    title = escape(" ".join(statement.title.split()))
    kind = "mark void" if invoice.status is invoices.InvoiceStatus.VOID else "mark"
    label, total = (
        escape(text) for text in (statement.total_label, f"{statement.total} {invoice.currency}")
    )
    foot = (
        f'<tfoot><tr><th scope="row" colspan="{len(_SUMMARY) - 1}">{label}</th>'
        f'<td class="number">{total}</td></tr></tfoot>'
    )
    parts = [
        *(f'<p class="{kind}" role="note">{escape(mark)}</p>\n' for mark in statement.marks),
        _html_facts(statement.facts),
        f'<p class="total">{label}: <b>{total}</b></p>\n<h2>Charges</h2>\n',
        _html_table(
            f"Lines of one kind and price summed up; amounts in {invoice.currency}",
            _SUMMARY,
            statement.summary,
            foot,
        ),
    ]
    if claims:
        caption = "Total of each claim without corrections, the most expensive first"
        if len(claims) > _MAX_HTML_CLAIMS:
            rest = len(claims) - _MAX_HTML_CLAIMS
            caption += f". {rest:,} more are in the CSV and JSON forms"
        table = _html_table(caption, _CLAIMS, claims[:_MAX_HTML_CLAIMS])
        parts.append(f"<h2>By claim</h2>\n{table}")
    if statement.undecided:
        items = "".join(f"<li>{escape(str(use))}</li>\n" for use in statement.undecided)
        parts.append(f"<h2>Not billed until decided</h2>\n<ul>\n{items}</ul>\n")
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{title}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n<main>\n"
        f"<h1>{title}</h1>\n{''.join(parts)}"
        f"<h2>Proof</h2>\n{_html_facts(statement.proof)}</main>\n</body>\n</html>\n"
    )


def _html_facts(facts: Iterable[tuple[str, str]]) -> str:
    rows = "".join(f"<dt>{escape(name)}</dt><dd>{escape(fact)}</dd>\n" for name, fact in facts)
    return f"<dl>\n{rows}</dl>\n"


def _html_table(
    caption: str, names: Sequence[str], rows: Iterable[Sequence[str]], foot: str = ""
) -> str:
    classes = [' class="number"' if name in _NUMBERS else "" for name in names]
    heads = "".join(
        f'<th scope="col"{kind}>{name.capitalize() if name.islower() else name}</th>'
        for name, kind in zip(names, classes, strict=True)
    )
    body = "".join(
        f'<tr><th scope="row">{escape(first)}</th>'
        + "".join(
            f"<td{kind}>{escape(cell)}</td>" for cell, kind in zip(rest, classes[1:], strict=True)
        )
        + "</tr>\n"
        for first, *rest in rows
    )
    return (
        f'<div class="scroll" role="region" aria-label="{escape(caption)}" tabindex="0">\n<table>\n'
        f"<caption>{escape(caption)}</caption>\n<thead><tr>{heads}</tr></thead>\n"
        f"<tbody>\n{body}</tbody>\n{foot}\n</table>\n</div>\n"
    )


# CSV and JSON ------------------------------------------------------------------------------------

_EXACT_PLACES = 12
_NUMBER_FIELDS = {"quantity", "unit_price", "amount", "unrounded"}


class StatementLine(msgspec.Struct, frozen=True):
    """One charge, as text."""

    charge: str
    kind: str
    sku: str
    mig_profile: str
    resource: str
    claim: str
    state: str
    start: str
    end: str
    quantity: str
    unit: str
    unit_price: str
    amount: str
    exact: str
    ledger_revision: str
    price_version: int
    corrects: str
    note: str


class StatementDocument(msgspec.Struct, frozen=True):
    """A statement as JSON."""

    invoice: str
    status: str
    tenant: str
    billed_by: str
    period: str
    start: str
    end: str
    currency: str
    total: str
    issued: str | None
    replaces: str | None
    content_hash: str
    observed: str | None
    audit_record: int | None
    audit_checkpoint_size: int | None
    roots: dict[str, str]
    marks: list[str]
    lines: list[StatementLine]
    undecided: list[dict[str, str]]


def as_json(statement: TenantStatement) -> bytes:
    """The statement as JSON."""
    return msgspec.json.format(msgspec.json.encode(statement_document(statement)), indent=2) + b"\n"


def statement_document(statement: TenantStatement) -> StatementDocument:
    """The statement as a structure for JSON."""
    invoice, period = statement.invoice, statement.invoice.period
    places = charges.currency_exponent(invoice.currency)
    observed = statement.coverage
    return StatementDocument(
        invoice=statement.invoice_id,
        status=statement.status,
        tenant=invoice.tenant,
        billed_by=statement.seller,
        period=period_name(period),
        start=format_timestamp(period.start_ns),
        end=format_timestamp(period.end_ns),
        currency=invoice.currency,
        total=charges.plain_decimal(invoice.payable, places),
        issued=None if invoice.issued_ns is None else format_timestamp(invoice.issued_ns),
        replaces=invoice.replaces or None,
        content_hash=invoice.content_hash,
        observed=None if observed is None else charges.plain_decimal(observed, _EXACT_PLACES),
        audit_record=statement.audit.leaf if statement.audit else None,
        audit_checkpoint_size=statement.audit.checkpoint_size if statement.audit else None,
        roots=dict(statement.roots),
        marks=list(statement.marks),
        lines=[_line(line, statement, places) for line in sorted(invoice.lines, key=_place)],
        undecided=[
            {
                "resource": use.resource,
                "claim": use.claim,
                "start": format_timestamp(use.start_ns),
                "end": format_timestamp(use.end_ns),
                "gpu_hours": charges.plain_decimal(use.gpu_hours, _EXACT_PLACES),
                "reason": use.reason,
            }
            for use in statement.undecided
        ],
    )


def as_csv(statement: TenantStatement) -> bytes:
    """The statement as CSV, one charge per row; each row repeats the invoice fields."""
    whole = statement_document(statement)
    repeated = ("invoice", "status", "tenant", "period", "currency")
    head = {name: getattr(whole, name) for name in repeated}
    names = [*head, *StatementLine.__struct_fields__, "unrounded"]
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, names, lineterminator="\r\n", strict=True)
    writer.writeheader()
    for line in whole.lines:
        cells = head | {k: str(v) for k, v in msgspec.structs.asdict(line).items()}
        cells["unrounded"] = charges.plain_decimal(Fraction(line.exact), _EXACT_PLACES)
        writer.writerow({name: _escape_cell(name, cell) for name, cell in cells.items()})
    return text.getvalue().encode()


def _line(line: invoices.InvoiceLine, statement: TenantStatement, places: int) -> StatementLine:
    charge, unit = line.charge, line.charge.unit
    key = source_day(charge)
    revision = statement.revisions.get(key) if key else None
    return StatementLine(
        charge=charge.charge_id,
        kind=charge.kind.value,
        sku=charge.sku,
        mig_profile=charge.mig_profile,
        resource=charge.resource,
        claim=charge.claim,
        state=str(charge.state),
        start=format_timestamp(charge.service_t0_ns),
        end=format_timestamp(charge.service_t1_ns),
        quantity=charges.plain_decimal(charge.quantity / unit.size, _EXACT_PLACES) if unit else "",
        unit=unit.label if unit else "",
        unit_price=unit_price(charge.price_nano).replace(",", "") if unit else "",
        amount=charges.plain_decimal(Fraction(line.minor, 10**places), places),
        exact=str(charge.amount),
        ledger_revision=f"{key.gpu}/{key.day}/{revision}" if key and revision else "",
        price_version=charge.price_version,
        corrects=charge.corrects,
        note=charge.note,
    )


def _place(line: invoices.InvoiceLine) -> tuple[int, str, str, str, str]:
    charge = line.charge
    return (
        charge.service_t0_ns,
        charge.resource,
        charge.claim,
        charge.kind.value,
        charge.charge_id,
    )


def _escape_cell(name: str, cell: str) -> str:
    if name == "exact":
        return f"'{cell}"  # a spreadsheet would interpret 7/3 as the seventh of March
    return cell if name in _NUMBER_FIELDS else escape_formula(cell)


STATEMENT_FORMATS: Mapping[str, Callable[[TenantStatement], bytes]] = {
    "text": lambda statement: f"{as_text(statement)}\n".encode(),
    "html": lambda statement: as_html(statement).encode(),
    "csv": as_csv,
    "json": as_json,
}
