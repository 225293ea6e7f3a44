"""Each alert over the cases of promtool, and over the same cases with the nodes split over two collectors."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
import yaml
from support.alert_rules import CASES, minutes

from railscope.catalog import Metric, Rollup, account, collector, incidents, rollups

INSTANCES = ("c0:9470", "c1:9470")
OF_COLLECTORS = {
    metric.name
    for module in (account, collector, incidents)
    for metric in vars(module).values()
    if isinstance(metric, Metric) and not metric.name.startswith("railscope_rdma_")
} | rollups().keys()
LOWEST = {"railscope_job_start_time_seconds"}
EQUAL = {"railscope_tenant_quota_gpu_time_seconds", "railscope_tenant_quota_gpus"}
"""Metrics of a whole collector that are not sums over nodes; files of administrators are equal."""
OF_ONE_COLLECTOR = {"instance", "incident", "job"}
PER_COLLECTOR = {
    "RailscopeDiagnosisFailing": "Its subject is a collector: the description names the instance.",
    "RailscopeIncidentReach": "No receiver gets it: it inhibits symptoms.",
}
OF_COLLECTOR_METRICS = [
    path
    for path in CASES
    if path.stem != "recorded_test"
    and "exp_labels" in path.read_text()
    and any(f"{name}{{" in path.read_text() for name in OF_COLLECTORS)
]
"""The others have series of agents only, or expect no alert."""
_SERIES = re.compile(r"(?P<name>\w+)(?:\{(?P<labels>.*)\})?")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
_GOT = re.compile(r"time: [\dhms]+,\s+exp: .*\s+got: (.*)")
_ALERT = re.compile(r"\{([^{}]*)\} 1E\+00")


def split_series(series: str, values: str) -> Iterator[tuple[str, str]]:
    """Yield a series as two collectors expose it, each for its nodes."""
    found = _SERIES.fullmatch(series)
    assert found, series
    name, labels = found["name"], dict(_LABEL.findall(found["labels"] or ""))

    def at(number: int, factor: float = 1, **more: str) -> tuple[str, str]:
        given = labels | more | {"instance": INSTANCES[number]}
        text = ",".join(f'{label}="{value}"' for label, value in given.items())
        return f"{name}{{{text}}}", scaled(values, factor)

    if name not in OF_COLLECTORS:
        yield series, values
        return
    derived = rollups().get(name)
    owner = sum(labels.get("node", "").encode()) % 2
    if "incident" in labels and not labels.get("node"):
        yield at(0)
        yield at(1, incident=f"{labels['incident']}-c1")
    elif name in EQUAL or name == "railscope_diagnosis_age_seconds":
        yield at(0)
        yield at(1)
    elif "node" in labels:
        yield at(owner)
        if name == "railscope_inventory_node" and labels["state"] != "unexpected":
            yield at(1 - owner, state="missing")
    elif derived and derived.rollup in {Rollup.MAX, Rollup.MIN}:
        yield at(0)
        yield at(1, 0 if derived.rollup is Rollup.MAX else 2)
    elif derived or (
        name.startswith(("railscope_tenant_", "railscope_job_")) and name not in LOWEST
    ):
        yield at(0, 0.5)
        yield at(1, 0.5)
    else:
        yield at(0)


def scaled(values: str, factor: float) -> str:
    """Multiply samples in promtool's notation."""

    def multiply(term: str) -> str:
        if term.startswith(("_", "stale")):
            return term
        numbers, _, times = term.partition("x")
        parts = re.findall(r"[+-]?[\d.]+(?:e[+-]?\d+)?", numbers)
        product = "".join(f"{float(part) * factor:+}" for part in parts).removeprefix("+")
        return f"{product}x{times}" if times else product

    return values if factor == 1 else " ".join(map(multiply, values.split()))


def split_group(series: Mapping[str, str]) -> dict[str, str]:
    """Return the series of a case at two collectors; those of several collectors stay as they are."""
    known = {found[1] for each in series if (found := re.search(r'instance="([^"]*)"', each))}
    if len(known) > 1:
        return dict(series)
    return {name: values for each in series.items() for name, values in split_series(*each)}


Alerts = Counter[frozenset[tuple[str, str]]]


def firing_alerts(path: Path, case: Path, *, is_split: bool) -> Iterator[tuple[str, Alerts]]:
    """Yield the firing alerts of all groups of a file at the times of its cases."""
    document = yaml.load(path.read_text(), yaml.CBaseLoader)  # noqa: S506 - 0x30 is a string here
    rules = [str((path.parent / rule).resolve()) for rule in document["rule_files"]]
    places: list[tuple[str, str]] = []
    tests = []
    for group in document["tests"]:
        times = sorted(
            {case["eval_time"] for case in group.get("alert_rule_test", ())}, key=minutes
        )
        places += ((group["name"], time) for time in times)
        series = {each["series"]: each["values"] for each in group.get("input_series", ())}
        inputs = split_group(series) if is_split else series
        tests.append({
            "interval": group["interval"],
            "input_series": [{"series": name, "values": text} for name, text in inputs.items()],
            "promql_expr_test": [
                {"expr": 'ALERTS{alertstate="firing"} or vector(-1)', "eval_time": time, "exp_samples": []}
                for time in times
            ],
        })  # fmt: skip
    case.write_text(yaml.safe_dump(document | {"rule_files": rules, "tests": tests}))
    command = ["promtool", "test", "rules", str(case)]
    outcome = subprocess.run(command, capture_output=True, text=True, check=False)
    results = _GOT.findall(outcome.stdout + outcome.stderr)
    assert len(results) == len(places), outcome.stdout[:3000] + outcome.stderr[:3000]
    for (name, time), alerts in zip(places, results, strict=True):
        found: Alerts = Counter()
        for text in _ALERT.findall(alerts):
            labels = dict(_LABEL.findall(text))
            key = frozenset(each for each in labels.items() if each[0] not in OF_ONE_COLLECTOR)
            found[key] = 1 if labels["alertname"] in PER_COLLECTOR else found[key] + 1
        yield f"{name}: {time}", found


@pytest.mark.thorough
@pytest.mark.parametrize("path", OF_COLLECTOR_METRICS, ids=lambda path: path.stem)
def test_an_alert_fires_once_whatever_collectors_have_its_nodes(path: Path, tmp_path: Path) -> None:
    if not shutil.which("promtool"):
        pytest.skip("promtool is missing: install the Debian package prometheus")
    expected = dict(firing_alerts(path, tmp_path / "one.yml", is_split=False))
    assert any(expected.values())
    assert dict(firing_alerts(path, tmp_path / "two.yml", is_split=True)) == expected
