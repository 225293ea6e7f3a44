"""Checks JSON of a dashboard against Grafana's schema.

The types of the Foundation SDK are generated from Grafana's CUE schemas (kinds/dashboard and the
panelcfg.cue and dataquery.cue of each plugin), but their own parser accepts unknown fields and
wrong values. Here JSON is compared with the types' annotations, field by field.
"""

from __future__ import annotations

import inspect
import re
import types
import typing
from collections.abc import Iterator, Mapping
from enum import Enum
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Literal, Union

from grafana_foundation_sdk.cog.variants import Dataquery
from grafana_foundation_sdk.models import dashboard, prometheus, units

PLUGIN_FIELDS = {dashboard.AnnotationQuery: {"titleFormat", "textFormat", "tagKeys"}}
"""Fields that a data source adds: packages/grafana-prometheus/src/types.ts, PromQuery."""
DATA_LINK = {"title", "url"}
"""Fields of a cell link, packages/grafana-data/src/types/dataLink.ts; the schema has a dashboard link."""
UNITS = {unit for unit in vars(units).values() if isinstance(unit, str)}
_SCALARS: Mapping[object, tuple[type, ...]] = {
    str: (str,), bool: (bool,), int: (int,), float: (int, float),
}  # fmt: skip

Found = Iterator[str]


def mistakes(document: Mapping[str, Any]) -> list[str]:
    """Return the violations of Grafana's schema, each with its path; empty if there are none."""
    return list(_object(dict(document), dashboard.Dashboard, "dashboard"))


@cache
def _fields(kind: type) -> Mapping[str, Any]:
    """Return the type of each field by its name in JSON."""
    hints = typing.get_type_hints(kind)
    writing = inspect.getsource(kind.to_json)  # type: ignore[attr-defined]
    attributes = dict(re.findall(r'"(\w+)"(?:\] =|:) self\.(\w+)', writing))
    return {name: hints[attribute] for name, attribute in attributes.items()}


def _value(value: Any, hint: Any, way: str) -> Found:
    if typing.get_origin(hint):
        yield from _made_of(value, typing.get_origin(hint), typing.get_args(hint), way)
    elif hint is Dataquery:
        yield from _object(value, prometheus.Dataquery, way)
    elif inspect.isclass(hint) and issubclass(hint, Enum):
        yield from _among(value, [one.value for one in hint], way)
    elif hint in _SCALARS:
        if type(value) not in _SCALARS[hint]:
            yield f"{way}: {value!r} is no {hint.__name__}"
    elif hasattr(hint, "from_json"):
        yield from _object(value, hint, way)
    elif hint not in {object, Any}:
        yield f"{way}: there is no rule for {hint}"


def _made_of(value: Any, origin: object, parts: tuple[Any, ...], way: str) -> Found:
    if origin in {Union, types.UnionType}:
        yield from _one_of(value, list(parts), way)
    elif origin is Literal:
        yield from _among(value, parts, way)
    elif origin is list:
        yield from _each(value, parts[0], way)
    elif origin is dict:
        yield from _each_named(value, parts[1], way)
    else:
        yield f"{way}: there is no rule for {origin}"


def _one_of(value: Any, hints: list[Any], way: str) -> Found:
    """A value fits a union if it fits any part; a dashboard's panels carry their own kind."""
    if value is None and type(None) in hints:
        return
    if set(hints) == {dashboard.Panel, dashboard.RowPanel}:
        hints = [dashboard.RowPanel if value.get("type") == "row" else dashboard.Panel]
    found = [list(_value(value, hint, way)) for hint in hints if hint is not type(None)]
    yield from min(found, key=len)


def _among(value: Any, allowed: typing.Collection[Any], way: str) -> Found:
    if value not in allowed:
        yield f"{way}: {value!r} is none of {list(allowed)}"


def _each(value: Any, hint: Any, way: str) -> Found:
    if not isinstance(value, list):
        yield f"{way}: {value!r} is no list"
        return
    for position, one in enumerate(value):
        yield from _value(one, hint, f"{way}[{position}]")


def _each_named(value: Any, hint: Any, way: str) -> Found:
    if not isinstance(value, dict):
        yield f"{way}: {value!r} is no object"
        return
    for name, one in value.items():
        yield from _value(one, hint, f"{way}.{name}")


def _object(value: Any, kind: type, way: str) -> Found:
    if not isinstance(value, dict):
        yield f"{way}: {value!r} is no {kind.__name__}"
        return
    fields = _fields(kind)
    for name in value.keys() - fields.keys() - PLUGIN_FIELDS.get(kind, set()):
        yield f"{way}: {kind.__name__} has no field {name!r}"
    for name, hint in fields.items():
        if name in value:
            yield from _value(value[name], hint, f"{way}.{name}")
        elif type(None) not in typing.get_args(hint) and hint is not object:
            yield f"{way}: {kind.__name__} needs {name!r}"
    if kind is dashboard.Panel:
        yield from _plugin(value, way)


def _plugin(panel: dict[str, Any], way: str) -> Found:
    """Check a panel's options, field configuration and overrides against its plugin."""
    module = f"grafana_foundation_sdk.models.{str(panel['type']).replace('-', '')}"
    if find_spec(module) is None:
        yield f"{way}.type: there is no panel {panel['type']!r}"
        return
    plugin = import_module(module)
    if "options" in panel:
        yield from _object(panel["options"], plugin.Options, f"{way}.options")
    drawn = _fields(plugin.FieldConfig) if hasattr(plugin, "FieldConfig") else {}
    defaults = panel["fieldConfig"]["defaults"]
    for name, value in defaults.get("custom", {}).items():
        yield from _drawing(name, value, drawn, f"{way}.fieldConfig.defaults.custom")
    yield from _among(defaults.get("unit", "short"), UNITS, f"{way}.fieldConfig.defaults.unit")
    for exception in panel["fieldConfig"]["overrides"]:
        for one in exception["properties"]:
            yield from _exception(one["id"], one.get("value"), drawn, f"{way}.overrides")


def _exception(name: str, value: Any, drawn: Mapping[str, Any], way: str) -> Found:
    if name.startswith("custom."):
        yield from _drawing(name.removeprefix("custom."), value, drawn, way)
    elif name == "unit":
        yield from _among(value, UNITS, f"{way}.unit")
    elif name == "links":
        yield from (f"{way}: {link!r} is no link" for link in value if link.keys() != DATA_LINK)
    else:
        yield from _drawing(name, value, _fields(dashboard.FieldConfig), way)


def _drawing(name: str, value: Any, fields: Mapping[str, Any], way: str) -> Found:
    if name not in fields:
        yield f"{way}: there is no {name!r}"
    else:
        yield from _value(value, fields[name], f"{way}.{name}")
