"""OpenAPI document of /api/v1, generated from the tables of routes and the structs of the answers."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from http import HTTPStatus
from typing import Any, NamedTuple, TypeAlias

import msgspec

from railscope import __version__, api
from railscope.api import audit, billing, inventory, status, switches, tenants
from railscope_collector.billing import statement_rows
from railscope_collector.console import (
    audit_pages,
    fleet_pages,
    history_pages,
    incident_pages,
    page_table,
    search_page,
)
from railscope_collector.http import billing_api, gpus_api, read_api, route_table
from railscope_collector.http.incidents_api import FILTERS

PREFIX = "/api/v1/"
_PARAMETER = re.compile(r"\{(\w+)\}")
_SCHEMAS = "#/components/schemas/"
Answer: TypeAlias = Any
"""Type of a JSON document, or the media types of an answer that is no JSON."""


class ApiError(msgspec.Struct, frozen=True):
    """Reason why a request failed."""

    error: str


class Operation(NamedTuple):
    """Query and answer of a route."""

    answer: Answer
    query: type[msgspec.Struct] | None = None
    names: Mapping[str, Sequence[str]] = {}
    """Further parameters of the query with their values, of which several select any; none for one text."""
    other_forms: Sequence[str] = ()
    """Media types beside JSON."""
    may_lack_query: bool = False
    """True if the query names a resource, which may not exist."""


def _one(*names: str) -> dict[str, Sequence[str]]:
    return dict.fromkeys(names, ())


_MEDIA = tuple(billing_api.MEDIA.values())
OPERATIONS: Mapping[str, Operation] = {
    "openapi": Operation(dict[str, Any]),
    "status": Operation(status.Status),
    "cluster": Operation(api.MetricList),
    "rails": Operation(api.RailList),
    "nodes": Operation(api.NodeList, read_api.NodesQuery),
    "node": Operation(api.NodeDetail, names=_one("stream")),
    "gpus": Operation(api.GpuList, gpus_api.GpusQuery),
    "switches": Operation(switches.SwitchList),
    "switch": Operation(switches.SwitchDetail),
    "switch_port": Operation(switches.SwitchPortDetail),
    "links": Operation(switches.LinkList),
    "inventory": Operation(inventory.Inventory),
    "events": Operation(api.EventList, names=_one("node")),
    "incidents": Operation(api.IncidentList, names=FILTERS),
    "incident": Operation(api.IncidentDetail),
    "jobs": Operation(api.JobList, names=_one("tenant")),
    "job": Operation(api.Job),
    "tenants": Operation(tenants.TenantList),
    "account": Operation(tenants.Account),
    "statements": Operation(billing.StatementList, names=_one("tenant")),
    "statement": Operation(
        statement_rows.StatementDocument, names=_one("format"), other_forms=_MEDIA
    ),
    "export": Operation(_MEDIA, names=_one("format", "tenant")),
    "audit": Operation(audit.AuditEntries, names=_one("from", "limit", "tenant")),
    "audit_entry": Operation(("text/plain",)),
    "audit_checkpoint": Operation(("text/plain",)),
    "audit_consistency": Operation(audit.ConsistencyProof, names=_one("old"), may_lack_query=True),
}
"""Operations of the routes of /api/v1 but those of pages."""
PAGES: Mapping[str, Answer] = {
    "overview": fleet_pages.OverviewModel,
    "incidents": api.IncidentList,
    "incident": api.IncidentDetail,
    "nodes": api.NodeList,
    "node": api.NodeDetail,
    "gpus": api.GpuList,
    "rails": api.RailList,
    "rail": api.RailDetail,
    "switches": switches.SwitchList,
    "switch": switches.SwitchDetail,
    "switch_port": switches.SwitchPortDetail,
    "jobs": api.JobList,
    "job": api.Job,
    "tenants": tenants.TenantList,
    "tenant": tenants.TenantDetail,
    "statements": billing.StatementList,
    "statement": billing.Statement,
    "billing": billing.ClosedPeriodList,
    "billing_period": billing.PeriodDetail,
    "reconciliation": billing.Reconciliation,
    "audit": audit_pages.AuditPage,
    "audit_record": audit.AuditEntries,
    "railscope": fleet_pages.OwnModel,
    "node_history": history_pages.NodeHistoryModel,
    "gpu": history_pages.GpuPageModel,
    "rail_history": history_pages.GroupPageModel,
    "job_history": history_pages.GroupPageModel,
    "runbook": incident_pages.RunbookModel,
    "search": search_page.SearchResults,
    "api": fleet_pages.ApiModel,
}
"""Documents of the pages."""


def _operations() -> Iterator[tuple[route_table.Route, Operation]]:
    """Yield all routes of /api/v1."""
    for route in route_table.ROUTES:
        if route.path.startswith(PREFIX):
            yield route, OPERATIONS[route.name]
    for page in page_table.PAGES:
        yield page.routes()[1], Operation(PAGES[page.name], page.query)


@cache
def openapi_document() -> bytes:
    """Return the document as JSON."""
    found = list(_operations())
    structs = [op.answer for _, op in found if not isinstance(op.answer, tuple)]
    queries = [each for _, op in found if op.query for each in msgspec.structs.fields(op.query)]
    kinds = [*structs, ApiError, *(each.type for each in queries)]
    schemas, components = msgspec.json.schema_components(kinds, ref_template=_SCHEMAS + "{name}")
    answers = dict(zip(map(str, structs), schemas, strict=False))
    of_queries = {
        str(each.type): schema
        for each, schema in zip(queries, schemas[len(structs) + 1 :], strict=True)
    }
    paths: dict[str, dict[str, Any]] = {}
    for route, operation in found:
        parameters = [_parameter(name, "path") for name in _PARAMETER.findall(route.path)]
        for each in msgspec.structs.fields(operation.query) if operation.query else ():
            schema = of_queries[str(each.type)] | {"default": each.default}
            parameters.append(_parameter(each.encode_name, "query", schema))
        for name, values in operation.names.items():
            several = {"type": "array", "items": {"type": "string", "enum": list(values)}}
            parameters.append(_parameter(name, "query", several if values else None))
        paths[route.path] = {"get": _operation(route, operation, parameters, answers)}
    document = {
        "openapi": "3.1.0",
        "info": {
            "title": "Railscope collector",
            "version": __version__,
            "description": "Unknown keys may be added; null is a value that is not known.",
        },
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{"token": []}],
    }
    return msgspec.json.encode(document)


def _parameter(name: str, place: str, schema: Mapping[str, Any] | None = None) -> dict[str, Any]:
    return {
        "name": name,
        "in": place,
        "required": place == "path",
        "schema": schema or {"type": "string"},
    }


def _operation(
    route: route_table.Route,
    operation: Operation,
    parameters: Sequence[Mapping[str, Any]],
    answers: Mapping[str, Mapping[str, Any]],
) -> dict[str, Any]:
    forms = operation.other_forms
    content: dict[str, Any] = {}
    if isinstance(operation.answer, tuple):
        forms = operation.answer
    else:
        content["application/json"] = {"schema": answers[str(operation.answer)]}
    for form in forms:
        is_json = form == "application/json"
        content.setdefault(
            form.partition(";")[0], {"schema": {} if is_json else {"type": "string"}}
        )
    error = {"application/json": {"schema": {"$ref": f"{_SCHEMAS}ApiError"}}}
    roles = sorted(role.value for role in route_table.READING_ROLES if route.admits(role))
    return {
        "operationId": route.name,
        "description": f"Roles: {', '.join(roles)}. A tenant reads: {route.tenants}.",
        "parameters": list(parameters),
        "responses": {
            "200": {"description": HTTPStatus.OK.phrase, "content": content},
            **{
                str(status.value): {"description": status.phrase, "content": error}
                for status in _errors(route, operation, parameters)
            },
        },
    }


def _errors(
    route: route_table.Route, operation: Operation, parameters: Sequence[Mapping[str, Any]]
) -> Iterator[HTTPStatus]:
    """Yield the statuses of errors that a route may answer."""
    yield from (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN, HTTPStatus.TOO_MANY_REQUESTS)
    yield HTTPStatus.SERVICE_UNAVAILABLE
    # A period has a form of its own; any other text may be a name.
    if any(each["in"] == "query" or each["name"] == "period" for each in parameters):
        yield HTTPStatus.BAD_REQUEST
    if "{" in route.path or operation.may_lack_query:
        yield HTTPStatus.NOT_FOUND
