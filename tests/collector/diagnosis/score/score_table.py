"""Table of a score: precision, recall and delay by class, healthy runs, and the ranks and paths that incidents name."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from tests.collector.diagnosis.score.scoring import FaultOutcome, RunOutcome, ScoreGoal, goal_of

_CONFIDENCE, _TAIL = 1.96, 0.025
"""Quantile of the normal distribution, and probability beyond each end, of an interval of 95%."""
# More halvings than a float has digits.
_BISECTIONS = 60


def wilson_interval(successes: float, trials: float) -> tuple[float, float]:
    """Return the interval of a share; 0 to 1 without trials."""
    if not trials:
        return 0.0, 1.0
    share, square = successes / trials, _CONFIDENCE**2
    center = (share + square / (2 * trials)) / (1 + square / trials)
    spread = math.sqrt(max(share * (1 - share), 0.0) / trials + square / (4 * trials**2))
    spread *= _CONFIDENCE / (1 + square / trials)
    return max(center - spread, 0.0), min(center + spread, 1.0)


def poisson_interval(count: int, exposure: float) -> tuple[float, float]:
    """Return the exact interval of the rate of events that are independent of each other, per unit of the exposure."""
    lower, upper = _poisson_mean(count - 1, 1 - _TAIL), _poisson_mean(count, _TAIL)
    return lower / exposure, upper / exposure


def _poisson_mean(count: int, probability: float) -> float:
    """Return the mean with which at most `count` events have a probability; 0 for a count below 0."""
    lower, upper = 0.0, 2.0 * max(count, 0) + 20.0
    for _ in range(_BISECTIONS):
        mean = (lower + upper) / 2
        # By logarithms: powers and factorials of large counts exceed the range of a float.
        logarithms = (k * math.log(mean) - mean - math.lgamma(k + 1) for k in range(count + 1))
        if sum(map(math.exp, logarithms)) > probability:
            lower = mean
        else:
            upper = mean
    return lower


@dataclass(slots=True)
class ClassScore:
    """Sums over the runs of one class, or over all."""

    faults: list[FaultOutcome] = field(default_factory=list)
    false_positives: int = 0

    @property
    def delays(self) -> list[float]:
        """Delays of all detected faults in seconds."""
        return sorted(
            fault.delay_seconds for fault in self.faults if fault.delay_seconds is not None
        )

    def cells(self, name: str, goal: ScoreGoal) -> list[str]:
        """Return the cells of a row of the table."""
        delays, count = self.delays, len(self.faults)
        first = sum(fault.ranked_first for fault in self.faults)
        return [
            name,
            str(count),
            _share(len(delays), len(delays) + self.false_positives),
            _share(len(delays), count),
            f"{statistics.median(delays):.0f}" if delays else "-",
            f"{delays[math.ceil(0.9 * len(delays)) - 1]:.0f}" if delays else "-",
            _share(first, count),
            f"{goal.precision:.2f}/{goal.recall:.2f}/{goal.deadline_seconds:.0f} s",
        ]


def _share(successes: int, trials: int) -> str:
    if not trials:
        return "-"
    lower, upper = wilson_interval(successes, trials)
    return f"{successes / trials:.3f} ({lower:.2f}-{upper:.2f})"


_HEADER = ["class", "faults", "precision", "recall", "median s", "p90 s", "cause first", "goal"]
_OVERALL = ScoreGoal(0.97, 0.95, 60.0)


def table(outcomes: Sequence[RunOutcome]) -> Iterator[str]:
    """Yield the lines of the table: each class, all classes, and the false positives of healthy runs."""
    scores: dict[str, ClassScore] = {}
    total = ClassScore()
    false = Counter(name for outcome in outcomes for name in outcome.false_classes)
    for fault in (fault for outcome in outcomes for fault in outcome.faults):
        scores.setdefault(fault.incident_class, ClassScore()).faults.append(fault)
        total.faults.append(fault)
    for name, count in false.items():
        score = scores.setdefault(name, ClassScore())
        score.false_positives, total.false_positives = count, total.false_positives + count
    rows = [_HEADER, *(scores[name].cells(name, goal_of(name)) for name in sorted(scores))]
    rows.append(total.cells("all", _OVERALL))
    widths = [max(len(row[column]) for row in rows) for column in range(len(_HEADER))]
    for row in rows:
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
    yield from _form_lines(total.faults)
    yield from _rank_lines(outcomes)
    yield from _healthy_lines(
        [outcome for outcome in outcomes if not (outcome.faults or outcome.problem)]
    )
    failed = sum(bool(outcome.problem) for outcome in outcomes)
    if failed:
        yield f"failed: {failed} of {len(outcomes)} runs; their faults count as missed"


def _rank_lines(outcomes: Sequence[RunOutcome]) -> Iterator[str]:
    """Yield the share of faults whose rank or path is named, by class, and the number of ranks that are named without a fault."""
    if not any(outcome.has_collectives for outcome in outcomes):
        return
    named: dict[str, list[bool]] = {}
    for fault in (fault for outcome in outcomes for fault in outcome.faults):
        for label, is_named in (("rank", fault.is_rank_named), ("path", fault.is_path_named)):
            if is_named is not None:
                named.setdefault(f"{label} named, {fault.incident_class}", []).append(is_named)
    for label, of_class in sorted(named.items()):
        yield f"{label}: {_share(sum(of_class), len(of_class))} of {len(of_class)}"
    runs = sum(bool(outcome.false_ranks) for outcome in outcomes)
    yield f"ranks named without a fault: in {runs} of {len(outcomes)} runs"


def _form_lines(faults: Sequence[FaultOutcome]) -> Iterator[str]:
    """Yield the recall of each form of scenarios."""
    names = sorted({form for fault in faults for form in fault.forms}, key=_numbers_first)
    for name in names:
        having = [fault for fault in faults if name in fault.forms]
        found = sum(fault.delay_seconds is not None for fault in having)
        yield f"recall, {name}: {_share(found, len(having))} of {len(having)}"


def _numbers_first(form: str) -> tuple[str, float, str]:
    """Return a sort key: words of a form before its number, numbers by their value."""
    words = [word for word in form.split() if not word[0].isdecimal()]
    numbers = [float(word.rstrip("%")) for word in form.split() if word[0].isdecimal()]
    return " ".join(words[:1]), min(numbers, default=0.0), form


def _healthy_lines(outcomes: Sequence[RunOutcome]) -> Iterator[str]:
    hours = sum(outcome.node_hours for outcome in outcomes)
    if hours:
        count = sum(len(outcome.false_classes) for outcome in outcomes)
        lower, upper = (1000 * end for end in poisson_interval(count, hours))
        yield (
            f"healthy: {len(outcomes)} runs, {hours:.1f} node-hours, {count} false positives:"
            f" {1000 * count / hours:.1f} ({lower:.1f}-{upper:.1f}) per 1,000 node-hours, goal 1.0"
        )
