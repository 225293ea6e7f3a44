"""Commands and settings of the programs, for the generated documents and their tests."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import groupby

import click
import msgspec

import railscope_agent.config
import railscope_collector.config
from railscope import cli, settings

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


def commands() -> dict[str, click.Command]:
    """Return every command by its full name, groups before their members."""
    return dict(_walk("railscope", cli.root))


def _walk(name: str, command: click.Command) -> Iterator[tuple[str, click.Command]]:
    yield name, command
    if not isinstance(command, click.Group):
        return
    context = click.Context(command)
    for member in command.list_commands(context):
        found = command.get_command(context, member)
        if found is not None:
            yield from _walk(f"{name} {member}", found)


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
