"""The table of the names of dcgm-exporter that the agent serves."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from railscope_agent.endpoint.dcgm_table import (
    DCGM_METRICS,
    EACH,
    DcgmFormula,
    DcgmMetric,
    FormulaTerm,
)

HEAD = ("name", "type", "meaning", "metric", "metric of a MIG instance", "remark")


def rows() -> Iterator[tuple[str, ...]]:
    """Yield a row of the table for each name."""
    yield from map(_row, DCGM_METRICS)


def _row(row: DcgmMetric) -> tuple[str, ...]:
    return (
        f"`{row.name}`",
        str(row.kind),
        row.sentence,
        ", else ".join(map(_formula, row.gpu)),
        _formula(row.mig) if row.mig else "",
        row.remark,
    )


def _formula(formula: DcgmFormula) -> str:
    dividend = _sum(formula.terms)
    return f"{dividend} / ({_sum(formula.denominator)})" if formula.denominator else dividend


def _sum(terms: Iterable[FormulaTerm]) -> str:
    first, *following = terms
    rest = (f" {'-' if term.weight < 0 else '+'} {_term(term)}" for term in following)
    return _term(first) + "".join(rest)


def _term(term: FormulaTerm) -> str:
    about = term.metric.about.labels
    parts = dict(zip(about[len(about) - len(term.part) :], term.part, strict=True))
    labels = ",".join(f'{label}="{part}"' for label, part in parts.items() if part != EACH)
    over = [label for label, part in parts.items() if part == EACH]
    text = f"`{term.metric.name}{{{labels}}}`" if labels else f"`{term.metric.name}`"
    if over:
        text = f"sum of {text} over `{over[0]}`"
    if term.weights:
        weights = ", ".join(f"{part} {weight}" for part, weight in term.weights.items())
        text = f"{text} ({weights})"
    return text
