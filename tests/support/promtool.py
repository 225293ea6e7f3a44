"""promtool: rules and queries, evaluated by the real engine of Prometheus."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest

Samples = Mapping[str, float]
"""Values by labels, as {node="n1"}."""


class QueryCase(NamedTuple):
    """Series by name, and the samples of queries over them after some minutes."""

    series: Mapping[str, str]
    expected: Iterable[tuple[str, Samples]]
    minutes: int
    interval: str = "1m"

    def document(self) -> dict[str, Any]:
        """Return the case in promtool's form."""
        return {
            "interval": self.interval,
            "input_series": [
                {"series": name, "values": text} for name, text in self.series.items()
            ],
            "promql_expr_test": [
                {
                    "expr": query,
                    "eval_time": f"{self.minutes}m",
                    "exp_samples": [
                        {"labels": at, "value": value} for at, value in samples.items()
                    ],
                }
                for query, samples in self.expected
            ],
        }


def promtool(*arguments: str) -> None:
    """Run promtool, which must find nothing wrong."""
    if not shutil.which("promtool"):
        pytest.skip("promtool is missing: install the Debian package prometheus")
    outcome = subprocess.run(["promtool", *arguments], capture_output=True, text=True, check=False)
    assert outcome.returncode == 0, outcome.stdout + outcome.stderr


def check_queries(directory: Path, queries: Iterable[str]) -> None:
    """Check that Prometheus understands queries."""
    rules = [{"record": f"query{number}", "expr": query} for number, query in enumerate(queries)]
    path = directory / "queries.yml"
    path.write_text(json.dumps({"groups": [{"name": "queries", "rules": rules}]}))
    promtool("check", "rules", str(path))


def evaluate(directory: Path, *cases: QueryCase) -> None:
    """Evaluate the queries of some cases."""
    path = directory / "cases.yml"
    path.write_text(
        json.dumps({"evaluation_interval": "1m", "tests": [case.document() for case in cases]})
    )
    promtool("test", "rules", str(path))
