"""Error classes form one tree per package, whose base the package documents."""

from __future__ import annotations

import importlib
import pkgutil
from collections import defaultdict
from collections.abc import Iterator, Mapping

PACKAGES = (
    "railscope",
    "railscope_agent",
    "railscope_collector",
    "railscope_simulator",
    "railscope_dashboards",
    "bench",
)
NO_ERRORS: Mapping[str, str] = {
    "railscope_agent.health.health_facts.AbsentFact": "an absent fact, with its reason; not an error",
    "railscope_agent.sampling.worker_thread.CallAbandonedError": "a BaseException: no source may catch it",
}


def product_errors() -> Iterator[type[BaseException]]:
    for name in PACKAGES:
        package = importlib.import_module(name)
        for found in pkgutil.walk_packages(package.__path__, f"{name}."):
            if not found.name.endswith("__main__"):
                importlib.import_module(found.name)
    waiting = [BaseException]
    seen = set()
    while waiting:
        for kind in type.__subclasses__(waiting.pop()):
            if kind not in seen:
                seen.add(kind)
                waiting.append(kind)
                if kind.__module__.partition(".")[0] in PACKAGES:
                    yield kind


def home(kind: type[BaseException]) -> str:
    """Package whose tree contains an error: of the second level, except where all share one tree."""
    name = kind.__module__
    package = (
        name if hasattr(importlib.import_module(name), "__path__") else name.rpartition(".")[0]
    )
    depth = 1 if package.startswith(("railscope_simulator", "railscope_dashboards", "bench")) else 2
    return ".".join(package.split(".")[:depth])


def test_every_error_derives_from_the_documented_base_of_its_package() -> None:
    packages = defaultdict(set)
    for kind in product_errors():
        if f"{kind.__module__}.{kind.__qualname__}" not in NO_ERRORS:
            packages[home(kind)].add(kind)
    assert len(packages) > 15
    problems = []
    for name, kinds in sorted(packages.items()):
        bases = [base for base in kinds if all(issubclass(kind, base) for kind in kinds)]
        if len(bases) != 1:
            problems.append(f"{name}: no common base of {sorted(kind.__name__ for kind in kinds)}")
        elif len(kinds) > 1 and not hasattr(importlib.import_module(name), bases[0].__name__):
            problems.append(f"{name}: {bases[0].__name__} is not in its __init__")
        problems += [
            f"{name}: {kind.__name__} has no docstring" for kind in kinds if not kind.__doc__
        ]
    assert not problems


def test_every_exception_of_the_rule_exists() -> None:
    found = {f"{kind.__module__}.{kind.__qualname__}" for kind in product_errors()}
    assert NO_ERRORS.keys() <= found
