"""The official validator of FOCUS, run on a file. See tests/setup_validator.sh.

Its exit status is not the result: it is 0 even if rules fail. The result is the line `Total: … | Fail: …` and
the line of each rule.
"""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

DIRECTORY = Path(__file__).parents[2] / ".venv-validator"
VERSION = "1.2.0.1"
# The check requires that no invoice has an id: one branch of an "or" with a true other branch.
ARTEFACT = "InvoiceId-C-004-C"
_TOTAL = re.compile(r"^Total: (\d+) \| Pass: (\d+) \| Fail: (\d+) \| Skipped: (\d+)$", re.MULTILINE)
_RULE = re.compile(r"^\S+ (\S+): (PASS|FAIL|SKIPPED)\b", re.MULTILINE)


@dataclass(frozen=True)
class RuleOutcome:
    """Result of every rule: PASS, FAIL or SKIPPED."""

    rules: Mapping[str, str]

    @property
    def failing(self) -> set[str]:
        return {rule for rule, outcome in self.rules.items() if outcome == "FAIL"}

    @property
    def failing_composites(self) -> set[str]:
        """The failed rules for a whole column or dataset: the criterion of tests."""
        return {rule for rule in self.failing if "-000-" in rule}

    def of_column(self, column: str) -> str:
        """Return the result of a column as a whole."""
        (found,) = (
            outcome
            for rule, outcome in self.rules.items()
            if rule.startswith(f"{column}-") and "-000-" in rule
        )
        return found


def validate(file: Path, criteria: Iterable[str], rules: Path | None = None) -> RuleOutcome:
    """Run the validator without a network. `rules`: a directory of rules instead of its own."""
    command = [
        str(_python()), "-m", "focus_validator.main", "--data-file", str(file), "--block-download",
        "--validate-version", VERSION, "--applicability-criteria", ",".join(criteria),
        *(["--rule-set-path", str(rules)] if rules else []),
    ]  # fmt: skip
    ran = subprocess.run(
        command,
        cwd=packages(),  # it searches its rules beside itself
        env={"PATH": "/usr/bin:/bin", "LC_ALL": "C.UTF-8"},
        capture_output=True,
        text=True,
        check=False,
    )
    total = _TOTAL.search(ran.stdout)
    assert total, f"the validator said no total:\n{ran.stdout}\n{ran.stderr}"
    found = dict(_RULE.findall(ran.stdout[: ran.stdout.find("--- Failures ---")]))
    counted = [list(found.values()).count(outcome) for outcome in ("PASS", "FAIL", "SKIPPED")]
    assert [len(found), *counted] == [int(number) for number in total.groups()]
    return RuleOutcome(found)


def packages() -> Path:
    """Return the installation directory of the validator."""
    (found,) = _python().parents[1].glob("lib/python3*/site-packages")
    return found


def readable_rules(directory: Path) -> set[str]:
    """Write the validator's rules so that it applies all their conditions; return the changed rules.

    The validator does not read conditions written as {"AND": …}: it then applies a rule for some
    rows to every row.
    """
    (path,) = (packages() / "focus_validator/rules").glob(f"model-{VERSION}.json")
    model = json.loads(path.read_text())
    changed = set()
    for name, rule in model["ModelRules"].items():
        criteria = rule["ValidationCriteria"]
        parts = criteria["Condition"].get("AND")
        if parts is not None:
            items = parts if isinstance(parts, list) else [parts]
            criteria["Condition"] = {"CheckFunction": "AND", "Items": items}
            changed.add(name)
    (directory / path.name).write_text(json.dumps(model))
    return changed


def _python() -> Path:
    if not (DIRECTORY / ".ready").is_file():
        pytest.skip(f"{DIRECTORY} is missing: run `make validator`, which says why")
    return DIRECTORY / "bin/python"
