#!/usr/bin/env python3
"""Write the reference documents and the sample settings, or check that they are up to date.

A document is generated from the sources of the programs: the catalog, settings types, commands,
rules and dashboards.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict
from inspect import cleandoc
from itertools import groupby
from pathlib import Path
from typing import Any

import click
import dcgm_page
import health_page
import msgspec
import yaml
from click.testing import CliRunner

import agent.config
import collector.config
from railscope import settings
from railscope.catalog import reference, xids
from railscope.cli import root as railscope

ROOT = Path(__file__).resolve().parent.parent
RULES = ROOT / "alerts" / "rules"
BOARDS = ROOT / "dashboards" / "generated"
_XIDS = re.compile(r'(xid[=!]~)"[^"]*"')
MADE = "Made by `python docs/generate.py`; change what it is made from instead."
PROGRAMS: Mapping[str, tuple[type[msgspec.Struct], str]] = {
    "agent": (agent.config.AgentSettings, agent.config.PREFIX),
    "collector": (collector.config.CollectorSettings, collector.config.PREFIX),
}


# Settings --------------------------------------------------------------------------------------


def configuration() -> str:
    """Describe every setting of both programs."""
    lines = [
        "# Settings",
        "",
        MADE,
        "",
        "A program takes its settings from a TOML file, then from the environment, then from its",
        "flags; the later wins. All commands of a program read the same file: the one that `--config`",
        "names, else `/etc/railscope/agent.toml` or `/etc/railscope/collector.toml`, if it exists",
        "(`railscope bill` reads the collector's, unless `--ledger` names another ledger). The variable",
        "`RAILSCOPE_CONFIGURATION` names another directory than `/etc/railscope`, as for",
        "`make install CONFIGURATION=`. An unknown key is an error that names the",
        "nearest known one. [agent.toml](../deploy/agent.toml) and",
        "[collector.toml](../deploy/collector.toml) show every default. SIGHUP makes a program read",
        "its settings again; where they are wrong it says so and stays with the old ones.",
        "",
    ]
    for name, (kind, prefix) in PROGRAMS.items():
        lines += [f"## railscope {name}", ""]
        ordered = sorted(settings.fields(kind), key=lambda entry: "." in entry[0])
        for section, entries in groupby(ordered, key=lambda entry: entry[0].rpartition(".")[0]):
            lines += [f"### [{section}]", ""] if section else []
            lines += _table(
                ("key", "type", "default", "meaning", "environment variable"),
                (_setting(key, entry, prefix) for key, entry in entries),
            )
    return _page(lines)


def variable(prefix: str, key: str) -> str:
    """Return the environment variable of a setting."""
    return prefix + key.upper().replace(".", "__")


def _setting(key: str, entry: settings.Field, prefix: str) -> tuple[str, ...]:
    name, default = key.rpartition(".")[2], json.dumps(entry.default)
    return (
        f"`{name}`",
        entry.type,
        f"`{default}`",
        entry.description,
        f"`{variable(prefix, key)}`",
    )


def _sample(program: str) -> Callable[[], str]:
    """Return the sample settings, as printed by the program's own command."""

    def printed() -> str:
        return CliRunner().invoke(railscope, [program, "sample-config"]).stdout

    return printed


# Commands --------------------------------------------------------------------------------------


def commands() -> dict[str, click.Command]:
    """Return every command by its full name, groups before their members."""
    return dict(_walk("railscope", railscope))


def _walk(name: str, command: click.Command) -> Iterator[tuple[str, click.Command]]:
    yield name, command
    if isinstance(command, click.Group):
        context = click.Context(command)
        for member in command.list_commands(context):
            found = command.get_command(context, member)
            if found is not None:
                yield from _walk(f"{name} {member}", found)


def command_line() -> str:
    """Describe every command with its arguments and options."""
    lines = ["# Command line", "", MADE, ""]
    for name, command in commands().items():
        options = [param for param in command.params if isinstance(param, click.Option)]
        words = [param.human_readable_name for param in command.params if param not in options]
        words += ["COMMAND ..."] if isinstance(command, click.Group) else []
        usage = " ".join([name, *(["[OPTIONS]"] if options else []), *words])
        lines += [f"## {name}", "", "```text", usage, "```", ""]
        lines += [*cleandoc(command.help or "").splitlines(), ""]
        if options:
            lines += _table(("option", "meaning", "default"), map(_option, options))
    lines += [
        "A wrong setting is one line on standard error and exit status 2; so is a wrong argument,",
        "after a line on how the command is used.",
    ]
    return _page(lines)


def _option(option: click.Option) -> tuple[str, ...]:
    words = "/".join([*option.opts, *option.secondary_opts])
    if not option.is_flag:
        words += f" {_value(option)}"
    default = f"`{option.default}`" if option.show_default and not option.is_flag else ""
    return f"`{words}`", option.help or "", default


def _value(option: click.Option) -> str:
    if isinstance(option.type, click.Choice):
        return "|".join(map(str, option.type.choices))
    return option.type.name.split(" ")[0].upper()


# Alerts and dashboards -------------------------------------------------------------------------


def alerts() -> str:
    """Describe every alert with its rules."""
    lines = [
        "# Alerts",
        "",
        MADE,
        "",
        "`critical` wakes someone, `warning` makes a ticket, `info` is there to be looked at.",
        "An alert may have several rules. [alertmanager.yml](../deploy/alertmanager.yml) is an example of",
        "who hears of which, and of which alert makes another needless.",
        "",
        "Every alert leads to a board and a runbook at railscope.example. Say where yours are:",
        "",
        "```sh",
        "sed -i -e 's|https://railscope.example/d/|https://grafana.example.com/d/|' \\",
        "  -e 's|https://railscope.example/runbooks/\\(\\w*\\)|https://wiki.example.com/\\1|' rules/*.yml",
        "```",
        "",
    ]
    every = [rule for path in sorted(RULES.glob("*.yml")) for rule in _rules(path)]
    rules = [rule for rule in every if "alert" in rule]
    for name in sorted({rule["alert"] for rule in rules}):
        same = [rule for rule in rules if rule["alert"] == name]
        runbook = f"[What it means and what to do](../alerts/runbooks/{name}.md)"
        lines += [f"## {name}", "", f"{same[0]['annotations']['summary']} {runbook}.", ""]
        for rule in same:
            labels = {key: word for key, word in rule["labels"].items() if key != "severity"}
            told = "".join(f", {key} `{word}`" for key, word in labels.items())
            delay = "at once" if rule["for"].startswith("0") else f"after {rule['for']}"
            lines += [
                f"{rule['labels']['severity'].capitalize()}{told}, {delay}:",
                "",
                "```promql",
                rule["expr"].strip(),
                "```",
                "",
            ]
    lines += ["## Recorded series", "", "Worked out once for the rules above and for boards.", ""]
    for rule in (rule for rule in every if "record" in rule):
        lines += [f"`{rule['record']}`:", "", "```promql", rule["expr"].strip(), "```", ""]
    return _page(lines)


def _rules(path: Path) -> Iterator[dict[str, Any]]:
    for group in yaml.safe_load(path.read_text())["groups"]:
        yield from group["rules"]


def boards() -> str:
    """Describe every dashboard with its panels."""
    lines = [
        "# Boards",
        "",
        MADE,
        "",
        "Pictures are drawn from the boards' JSON and from what a Prometheus answers that scrapes seven",
        "simulated servers with faults: `make pictures` draws them again, and",
        "`python -m dashboards.pictures` draws boards of any Prometheus.",
        "",
    ]
    for path in sorted(BOARDS.glob("*.json")):
        board = json.loads(path.read_text())
        lines += [
            f"## {board['title']}",
            "",
            f"{board['description']} Generated as",
            f"[{path.name}](../dashboards/generated/{path.name}), with the uid `{board['uid']}`.",
            "",
            f"![{board['title']}](pictures/{path.stem}.png)",
            "",
        ]
        for row, panels in _sections(board["panels"]):
            lines += [f"### {row}", ""] if row != board["description"] else []
            lines += _table(("number", "panel", "what it shows"), map(_panel, panels))
    return _page(lines)


def _sections(panels: list[dict[str, Any]]) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    title, members = "", list[dict[str, Any]]()
    for panel in panels:
        if panel["type"] != "row":
            members.append(panel)
            continue
        if members:
            yield title, members
        title, members = panel["title"], []
    if members:
        yield title, members


def _panel(panel: dict[str, Any]) -> tuple[str, ...]:
    return str(panel["id"]), panel["title"], panel["description"].partition("\n")[0]


# Errors of GPUs and switches -------------------------------------------------------------------


def errors() -> str:
    """Describe every Xid and SXid, and the action for it."""
    lines = [
        "# Xids and SXids",
        "",
        MADE,
        "",
        "What the drivers of GPUs and NVSwitches report, from `railscope/catalog/xids.toml`. `immediate`",
        "and `investigate` are NVIDIA's words, `actions` ours, for a person or a scheduler. From mildest",
        f"to hardest: {', '.join(xids.ACTION_ORDER)}. For 94, 95, 144 to 150 and 154",
        "the text of the message decides too.",
        "",
    ]
    tables: Mapping[str, Mapping[int, Any]] = {
        "Xids": xids.xids(),
        "SXids": xids.sxids(),
        "Recovery actions": xids.RECOVERY_ACTIONS,
    }
    for title, table in tables.items():
        rows = [{"number": number} | asdict(entry) for number, entry in table.items()]
        lines += [f"## {title}", "", *_table(rows[0], (map(_cell, row.values()) for row in rows))]
    return _page(lines)


def _cell(value: Any) -> str:
    return ", ".join(value) if isinstance(value, tuple) else str(value)


# Documents -------------------------------------------------------------------------------------


def _metrics() -> str:
    return reference.render("md")


def _table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> list[str]:
    cells = [[cell.replace("|", "\\|") for cell in row] for row in (head, *rows)]
    lines = ["| " + " | ".join(row) + " |" for row in cells]
    return [lines[0], "|---" * len(cells[0]) + "|", *lines[1:], ""]


def _page(lines: Iterable[str]) -> str:
    return "\n".join(lines).rstrip("\n") + "\n"


def xid_rules() -> str:
    """Return the rules on GPUs, with the numbers of Xids in the classes of the catalog."""
    known = xids.xids()
    fatal = {
        n for n, xid in known.items() if xid.severity == "fatal" and "ignore" not in xid.actions
    } | {xids.CONTAINED}
    classes = {name: {n for n, xid in known.items() if xid.error_class == name}
               for name in xids.ERROR_CLASSES}  # fmt: skip
    by_rule = {
        ("RailscopeGpuXid", "critical"): fatal,
        ("RailscopeGpuXid", "warning"): fatal | classes["application"] | classes["record"],
        ("RailscopeGpuXid", "info"): classes["record"],
        ("RailscopeGpuApplicationError", "info"): classes["application"],
    }
    text = (RULES / "gpu.yml").read_text()
    for (name, severity), numbers in by_rule.items():
        written = "|".join(map(str, sorted(numbers)))
        rule = re.search(
            rf"- alert: {name}\n(?:(?!- alert:).)*?severity: {severity}\n", text, re.DOTALL
        )
        if rule is None:
            message = f"alerts/rules/gpu.yml: expected a rule {name} with severity {severity}"
            raise ValueError(message)
        text = text.replace(rule[0], _XIDS.sub(rf'\g<1>"{written}"', rule[0]))
    return text


FILES: Mapping[str, Callable[[], str]] = {
    "alerts/rules/gpu.yml": xid_rules,
    "docs/metrics.md": _metrics,
    "docs/configuration.md": configuration,
    "docs/cli.md": command_line,
    "docs/alerts.md": alerts,
    "docs/boards.md": boards,
    "docs/xids.md": errors,
    "docs/gpu-health.md": lambda: _page(health_page.lines(MADE, _table)),
    "docs/dcgm.md": lambda: _page(dcgm_page.lines(MADE, _table)),
    "deploy/agent.toml": _sample("agent"),
    "deploy/collector.toml": _sample("collector"),
}


@click.command()
@click.option("--check", is_flag=True, help="Write nothing; fail if a file would change.")
@click.option("--to", "directory", default=ROOT, type=click.Path(path_type=Path), help="Directory.")
def main(*, check: bool, directory: Path) -> None:
    """Write the reference documents and the sample settings."""
    stale = []
    for (
        name,
        make,
    ) in FILES.items():  # in order: a document may be made from an earlier file
        text = make()
        if _is(directory / name, text):
            continue
        stale.append(name)
        if not check:
            (directory / name).parent.mkdir(parents=True, exist_ok=True)
            (directory / name).write_text(text)
            click.echo(f"written {directory / name}")
    if check and stale:
        click.echo(f"out of date: {', '.join(stale)}; run python docs/generate.py", err=True)
        sys.exit(1)


def _is(path: Path, text: str) -> bool:
    return path.is_file() and path.read_text() == text


if __name__ == "__main__":
    main()
