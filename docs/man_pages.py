#!/usr/bin/env python3
r"""`python docs/man_pages.py --to DIRECTORY`: man pages of commands, settings files and metrics.

DIRECTORY is a `share/man`. Commands whose packages are not installed have no page. Readers of commands and
settings that the generator of the other documents uses too. Syntax: groff_man(7), with `\-` for each hyphen, and
`\:` where long names may be broken.
"""

from __future__ import annotations

import gzip
import json
import re
import textwrap
from collections.abc import Collection, Iterable, Iterator, Mapping
from inspect import cleandoc
from itertools import groupby
from pathlib import Path

import click
import msgspec

import railscope_agent.config
import railscope_collector.config
from railscope import __version__, catalog, cli, settings
from railscope.client.commands import ClientCommand

ROOT = Path(__file__).resolve().parent.parent
PROGRAMS: Mapping[str, tuple[type[msgspec.Struct], str]] = {
    "agent": (railscope_agent.config.AgentSettings, railscope_agent.config.PREFIX),
    "collector": (railscope_collector.config.CollectorSettings, railscope_collector.config.PREFIX),
}
SOURCES_OF_SETTINGS = (
    "A program reads its settings from a TOML file, from environment variables and from its flags. A flag "
    "overrides a variable, and a variable overrides the file. All commands of a program read the same file: "
    "the value of `--config`, else `/etc/railscope/agent.toml` or `/etc/railscope/collector.toml` if it "
    "exists. `railscope bill` reads the collector's file unless `--ledger` names another ledger. The variable "
    "`RAILSCOPE_CONFIGURATION` replaces `/etc/railscope`, as `make install CONFIGURATION=` does."
)
REJECTED_SETTINGS = (
    "An unknown key is an error that names the most similar setting. SIGHUP reloads the settings; "
    "if they are invalid, the program logs the error and keeps the previous ones."
)
EXIT_STATUS = (
    "An invalid setting is reported in one line on standard error, with exit status 2. An invalid argument "
    "is reported in the same way, after a line with the usage of the command."
)
CLIENT_EXIT_STATUS = "Exit status 3 for every error: the state of the cluster is unknown then."
_HELP = ("-h, --help", "Print the help of the command.")
_WIDTH = 78
_SPECIAL = {
    "|": r"|\:",
    "\\": r"\e",
    "-": r"\-",
    "'": r"\(aq",
    "`": r"\(ga",
    "^": r"\(ha",
    "~": r"\(ti",
}


# Commands and settings -------------------------------------------------------------------------


def commands(*, absent_modules: Collection[str] = ()) -> dict[str, click.Command]:
    """Return every command by its full name, groups before their members.

    A command that needs one of these modules is left out if the module is missing.
    """
    return dict(_walk("railscope", cli.root, absent_modules))


def _walk(
    name: str, command: click.Command, absent_modules: Collection[str]
) -> Iterator[tuple[str, click.Command]]:
    yield name, command
    if not isinstance(command, click.Group):
        return
    context = click.Context(command)
    for member in command.list_commands(context):
        try:
            found = command.get_command(context, member)
        except ModuleNotFoundError as error:
            if (error.name or "").partition(".")[0] not in absent_modules:
                raise
            continue
        if found is not None:
            yield from _walk(f"{name} {member}", found, absent_modules)


def usage(name: str, command: click.Command) -> str:
    """Return a command with its arguments."""
    context = click.Context(command)
    arguments = [param for param in command.params if isinstance(param, click.Argument)]
    parts = [argument.make_metavar(context) for argument in arguments]
    parts += ["COMMAND ..."] if isinstance(command, click.Group) else []
    return " ".join([name, *(["[OPTIONS]"] if options(command) else []), *parts])


def options(command: click.Command) -> list[click.Option]:
    """Return the options of a command, without --help."""
    return [param for param in command.params if isinstance(param, click.Option)]


def option_names(option: click.Option) -> str:
    """Return an option with its value: `--format table|json`."""
    names = "/".join([*option.opts, *option.secondary_opts])
    return names if option.is_flag else f"{names} {_value(option)}"


def option_default(option: click.Option) -> str:
    """Return the default of an option; empty if it is not shown."""
    return f"{option.default}" if option.show_default and not option.is_flag else ""


def _value(option: click.Option) -> str:
    if isinstance(option.type, click.Choice):
        return "|".join(map(str, option.type.choices))
    return option.type.name.split(" ")[0].upper()


def setting_sections(
    kind: type[msgspec.Struct],
) -> Iterator[tuple[str, list[tuple[str, settings.SettingField]]]]:
    """Yield the settings by section, those outside a section first."""
    ordered = sorted(settings.fields(kind), key=lambda entry: "." in entry[0])
    for section, entries in groupby(ordered, key=lambda entry: entry[0].rpartition(".")[0]):
        yield section, list(entries)


def variable(prefix: str, key: str) -> str:
    """Return the environment variable of a setting."""
    return prefix + key.upper().replace(".", "__")


# Pages -----------------------------------------------------------------------------------------


def pages(*, absent_modules: Collection[str] = ()) -> dict[str, str]:
    """Return all pages by file name."""
    found = commands(absent_modules=absent_modules)
    return {
        **{f"{_page_name(name)}.1": _command_page(name, found) for name in found},
        **{f"railscope-{program}.toml.5": _settings_page(program) for program in PROGRAMS},
        "railscope-metrics.7": _metrics_page(),
    }


def _page_name(command: str) -> str:
    return command.replace(" ", "-")


def _command_page(name: str, found: Mapping[str, click.Command]) -> str:
    command = found[name]
    first, *further = re.split(r"\n\s*\n", cleandoc(command.help or ""))
    summary = " ".join(first.split()).removesuffix(".")
    lines = _head(_page_name(name), 1, summary)
    lines += [
        ".SH SYNOPSIS",
        f"\\fB{_escape(name)}\\fR{_escape(usage(name, command)[len(name) :])}",
    ]
    if further:
        lines += [".SH DESCRIPTION"]
        for number, paragraph in enumerate(further):
            lines += [*([".PP"] if number else []), *_text(paragraph)]
    lines += [".SH OPTIONS"]
    for option in options(command):
        default = f" Default: `{text}`." if (text := option_default(option)) else ""
        lines += _entry(option_names(option), f"{option.help or ''}{default}")
    lines += _entry(*_HELP)
    members = [other for other in found if other.rpartition(" ")[0] == name]
    if members:
        lines += [".SH COMMANDS"]
    for member in members:
        lines += _entry(
            member, f"{found[member].get_short_help_str(200)} See `{_page_name(member)}`(1)."
        )
    if name == "railscope":
        lines += [
            ".SH ENVIRONMENT",
            *_entry(settings.CONFIGURATION_VARIABLE, "Directory of the settings files."),
        ]
    if isinstance(command, ClientCommand):
        lines += [".SH EXIT STATUS", *_text(CLIENT_EXIT_STATUS)]
    elif type(command) is click.Command or isinstance(command, click.Group):
        lines += [".SH EXIT STATUS", *_text(EXIT_STATUS)]
    parent = [f"{_page_name(name.rpartition(' ')[0])}(1)"] if " " in name else []
    return _page(
        lines,
        [
            *parent,
            *(f"railscope-{program}.toml(5)" for program in PROGRAMS),
            "railscope-metrics(7)",
        ],
    )


def _settings_page(program: str) -> str:
    kind, prefix = PROGRAMS[program]
    lines = _head(f"railscope-{program}.toml", 5, f"settings of railscope {program}")
    lines += [".SH DESCRIPTION", *_text(SOURCES_OF_SETTINGS), ".PP", *_text(REJECTED_SETTINGS)]
    lines += [".SH SETTINGS"]
    for section, entries in setting_sections(kind):
        lines += [f".SS [{_escape(section)}]"] if section else []
        for key, entry in entries:
            default = json.dumps(entry.default, ensure_ascii=False)
            lines += _entry(key.rpartition(".")[2], entry.description)
            lines += [
                ".br",
                *_text(
                    f"Type {entry.type}, default `{default}`, variable `{variable(prefix, key)}`."
                ),
            ]
    lines += [
        ".SH FILES",
        *_entry(
            f"/etc/railscope/{program}.toml", "Settings, unless `--config` names another file."
        ),
    ]
    return _page(lines, [f"railscope-{program}(1)"])


def _metrics_page() -> str:
    lines = _head("railscope-metrics", 7, "metrics and events of Railscope")
    about = "Metrics of agent and collector by subject, and events of agents. `railscope catalog` prints labels too."
    lines += [".SH DESCRIPTION", *_text(about)]
    by_subject = sorted(
        catalog.METRICS.values(), key=lambda metric: catalog.SUBJECT_OF[metric.name]
    )
    for subject, metrics in groupby(by_subject, key=lambda metric: catalog.SUBJECT_OF[metric.name]):
        lines += [f".SH {_escape(subject.upper())}"]
        for metric in metrics:
            lines += _entry(metric.name, f"{metric.kind}: {metric.help}")
    lines += [".SH EVENTS"]
    for event in catalog.EVENTS.values():
        lines += _entry(event.name, event.help)
    return _page(lines, ["railscope-catalog(1)"])


# Syntax ----------------------------------------------------------------------------------------


def _head(name: str, section: int, summary: str) -> list[str]:
    changelog = (ROOT / "CHANGELOG.md").read_text()
    dates = re.findall(rf"^## \[{re.escape(__version__)}\] - (\S+)$", changelog, re.MULTILINE)
    title = (
        f'.TH "{_escape(name.upper())}" {section} {dates[0]} "Railscope {__version__}" Railscope'
    )
    (line,) = _text(summary, width=0)
    return [
        r".\" Generated by docs/man_pages.py.",
        title,
        ".nh",
        ".ad l",
        ".SH NAME",
        f"{_escape(name)} \\- {line}",
    ]


def _page(lines: Iterable[str], see_also: Iterable[str]) -> str:
    named = ",\n".join(re.sub(r"(.*)(\(\d\))", r"\\fB\1\\fR\2", _escape(page)) for page in see_also)
    return "\n".join([*lines, ".SH SEE ALSO", named]) + "\n"


def _entry(term: str, text: str) -> list[str]:
    return [".TP", f"\\fB{_escape(term)}\\fR", *(_text(text) or [r"\&"])]


def _text(text: str, width: int = _WIDTH) -> list[str]:
    """Return a paragraph of text as lines; `code` is bold."""
    joined = " ".join(text.split())
    wrapped = (
        textwrap.wrap(joined, width, break_long_words=False, break_on_hyphens=False)
        if width
        else [joined]
    )
    bold = re.sub(r"`([^`]+)`", "\0\\1\1", "\n".join(wrapped))
    lines = _escape(bold).replace("\0", r"\fB").replace("\1", r"\fR").splitlines()
    return [rf"\&{line}" if line.startswith(".") else line for line in lines]


def _escape(text: str) -> str:
    escaped = "".join(
        _SPECIAL.get(letter) or (letter if letter.isascii() else rf"\[u{ord(letter):04X}]")
        for letter in text
    )
    return escaped.replace("__", r"__\:")


@click.command()
@click.option(
    "--to", "target", required=True, type=click.Path(path_type=Path), help="Directory share/man."
)
def main(*, target: Path) -> None:
    """Write the man pages, compressed, and remove those of commands that no longer exist."""
    written = set()
    for name, text in pages(absent_modules=cli.COLLECTOR_MODULES).items():
        path = target / f"man{name[-1]}" / f"{name}.gz"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(gzip.compress(text.encode(), mtime=0))
        written.add(path)
    for path in target.glob("man?/railscope*.gz"):
        if path not in written:
            path.unlink()


if __name__ == "__main__":
    main()
