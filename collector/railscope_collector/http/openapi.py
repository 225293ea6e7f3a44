"""OpenAPI document of /api/v1, generated from the table of resources."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from http import HTTPStatus
from typing import Any

import msgspec

from railscope import __version__
from railscope_collector.http.resource_server import Resource
from railscope_collector.http.route_table import READING_ROLES

_PARAMETER = re.compile(r"\{(\w+)\}")
_SCHEMAS = "#/components/schemas/"


class ApiError(msgspec.Struct, frozen=True):
    """Reason why a request failed."""

    error: str


@cache
def openapi_document(resources: Sequence[Resource[Any]]) -> bytes:
    """Return the document as JSON."""
    structs = [each.answer for each in resources if not isinstance(each.answer, tuple)]
    queries = [each for resource in resources for each in msgspec.structs.fields(resource.query)]
    kinds = [*structs, ApiError, *(each.type for each in queries)]
    found, components = msgspec.json.schema_components(kinds, ref_template=_SCHEMAS + "{name}")
    schemas = {str(kind): schema for kind, schema in zip(kinds, found, strict=True)}
    document = {
        "openapi": "3.1.0",
        "info": {
            "title": "Railscope collector",
            "version": __version__,
            "description": "Unknown keys may be added; null is a value that is not known.",
        },
        "paths": {each.route.path: {"get": _operation(each, schemas)} for each in resources},
        "components": {
            "schemas": components,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{"token": []}],
    }
    return msgspec.json.encode(document)


def _operation(resource: Resource[Any], schemas: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    fields = msgspec.structs.fields(resource.query)
    parameters = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
        for name in _PARAMETER.findall(resource.path)
    ] + [
        {
            "name": each.encode_name,
            "in": "query",
            "required": False,
            "schema": {**schemas[str(each.type)], "default": each.default},
        }
        for each in fields
    ]
    forms, content = resource.other_forms, {}
    if isinstance(resource.answer, tuple):
        forms = resource.answer
    else:
        content["application/json"] = {"schema": schemas[str(resource.answer)]}
    for form in forms:
        is_json = form == "application/json"
        content.setdefault(
            form.partition(";")[0], {"schema": {} if is_json else {"type": "string"}}
        )
    error = {"application/json": {"schema": {"$ref": f"{_SCHEMAS}ApiError"}}}
    roles = sorted(role.value for role in READING_ROLES if resource.route.admits(role))
    return {
        "operationId": resource.name,
        "description": f"Roles: {', '.join(roles)}. A tenant reads: {resource.tenants}.",
        "parameters": parameters,
        "responses": {
            "200": {"description": HTTPStatus.OK.phrase, "content": content},
            **{
                str(status.value): {"description": status.phrase, "content": error}
                for status in _errors(resource)
            },
        },
    }


def _errors(resource: Resource[Any]) -> Iterator[HTTPStatus]:
    """Yield the statuses of errors that a resource may answer."""
    yield from (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN, HTTPStatus.TOO_MANY_REQUESTS)
    # For a parameter that is unknown or invalid, and for a period.
    yield from (HTTPStatus.SERVICE_UNAVAILABLE, HTTPStatus.BAD_REQUEST)
    if "{" in resource.path or resource.may_lack_query:
        yield HTTPStatus.NOT_FOUND
