"""Metrics in text form, as parsed by Prometheus."""

from __future__ import annotations

from prometheus_client import parser
from prometheus_client.openmetrics import parser as openmetrics_parser

Sample = tuple[str, frozenset[tuple[str, str]]]


def samples(page: str) -> dict[Sample, float]:
    """Return every sample by name and labels; fails if one occurs twice."""
    parse = (
        openmetrics_parser.text_string_to_metric_families
        if page.endswith("# EOF\n")
        else parser.text_string_to_metric_families
    )
    found: dict[Sample, float] = {}
    for family in parse(page):
        for sample in family.samples:
            label = (sample.name, frozenset(sample.labels.items()))
            assert label not in found, f"{label} comes twice"
            found[label] = sample.value
    return found


def sample(name: str, **labels: str) -> Sample:
    """Return the key of a sample in `samples`."""
    return name, frozenset(labels.items())
