"""Resources of the API: a row states all of one; the server answers requests for it with JSON and an entity tag."""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from http import HTTPStatus
from inspect import isawaitable
from typing import Any, Generic, TypeAlias, TypeVar

import msgspec
from aiohttp import web

from railscope.service import run_in_thread
from railscope_collector.access.credentials import Credential, Role
from railscope_collector.http import ResourceError, json_responses, list_query
from railscope_collector.http.route_table import Route, RouteHandlers, TenantScope

PREFIX = "/api/v1/"
_TAG_DIGITS = 20
ApisT = TypeVar("ApisT")


class Change(StrEnum):
    """Cause of a new version of a document."""

    VIEWS = "a refresh of the views, or their age"
    INCIDENTS = "an evaluation of the incidents"
    PROGRESS = "the age of the incidents, or a restart of the diagnosis"


Changes: TypeAlias = Mapping[Change, Callable[[], object]]
"""Functions that return a value which a change changes."""


@dataclass(frozen=True, slots=True)
class ResourceRequest:
    """Request of one resource: the credential of the reader, the parts of the path, and the query."""

    credential: Credential
    parts: Mapping[str, str] = field(default_factory=dict)
    query: Any = field(default_factory=list_query.NoQuery)
    """An instance of the resource's type of query."""
    address: str = ""
    is_head: bool = False
    """True if the answer has no body, so that nothing is delivered."""

    @property
    def part(self) -> slice:
        """The part of the list that is returned."""
        return slice(self.query.offset, self.query.offset + self.query.limit)

    @property
    def tenant(self) -> str | None:
        """The tenant whose data is returned; None for all."""
        return self.credential.tenant if self.credential.role is Role.TENANT else None

    @property
    def selected_tenant(self) -> str | None:
        """The same, or the tenant that the query selects."""
        return self.tenant or self.query.tenant or None


Document: TypeAlias = msgspec.Struct | web.Response
"""Content of a JSON response, or a response of another media type."""


@dataclass(frozen=True, slots=True)
class Resource(Generic[ApisT]):
    """One resource of the API."""

    name: str
    path: str
    """Below /api/v1. A page of the console has the same one below /."""
    answer: Any
    """Type of the JSON document, or the media types of an answer of other forms."""
    roles: frozenset[Role]
    tenants: TenantScope
    query: type[msgspec.Struct]
    make: Callable[[ApisT, ResourceRequest], Document | Awaitable[Document]]
    """Returns the document, off the loop unless it is awaitable. Raises ResourceError."""
    changes: tuple[Change, ...] = ()
    """Causes of a new version; without any, the entity tag is computed from the content except its time."""
    other_forms: tuple[str, ...] = ()
    """Media types beside JSON."""
    is_local: bool = False
    """True for data of one collector's own files and database; all others follow from the frames of all nodes."""
    may_lack_query: bool = False
    """True if the query names something that may not exist."""

    @property
    def route(self) -> Route:
        """The route of the API."""
        return Route(self.name, PREFIX + self.path, self.roles, self.tenants)

    async def document(self, apis: ApisT, request: ResourceRequest) -> Document:
        """Return the document. Raises ResourceError."""
        made = await run_in_thread(self.make, apis, request)
        return await made if isawaitable(made) else made


@dataclass(frozen=True, slots=True)
class ResourceServer(Generic[ApisT]):
    """Answers requests for the resources of a table."""

    resources: Collection[Resource[ApisT]]
    apis: ApisT
    changes: Changes

    def handlers(self) -> RouteHandlers:
        """Return the handlers by route name."""
        return {each.name: partial(self._answer, each) for each in self.resources}

    async def _answer(
        self, resource: Resource[ApisT], request: web.Request, credential: Credential
    ) -> web.Response:
        try:
            asked = ResourceRequest(
                credential,
                dict(request.match_info),
                list_query.parse_query(resource.query, request.query.items()),
                request.remote or "",
                request.method == "HEAD",
            )
            return await self._tagged(resource, asked, request.headers.get("If-None-Match", ""))
        except ResourceError as error:
            return json_responses.json_error(error.status, error.text, error.headers)

    async def _tagged(
        self, resource: Resource[ApisT], asked: ResourceRequest, known: str
    ) -> web.Response:
        """Return the document; status 304 without a body if the client has it."""
        version = [self.changes[each]() for each in resource.changes]
        version += [asked.credential.tenant, asked.query, asked.parts]
        tag = _tag(repr(version).encode(errors="replace"))
        if resource.changes and tag in known:
            return web.Response(status=HTTPStatus.NOT_MODIFIED, headers={"ETag": tag})
        made = await resource.document(self.apis, asked)
        if isinstance(made, web.Response):
            return made

        def encode() -> tuple[bytes, str]:
            content = msgspec.json.encode(made)
            has_time = "timestamp_ns" in made.__struct_fields__
            timeless = msgspec.structs.replace(made, timestamp_ns=0) if has_time else made
            return content, tag if resource.changes else _tag(msgspec.json.encode(timeless))

        body, tag_of_body = await run_in_thread(encode)
        if tag_of_body in known:
            return web.Response(status=HTTPStatus.NOT_MODIFIED, headers={"ETag": tag_of_body})
        headers = {"ETag": tag_of_body}
        return web.Response(body=body, content_type="application/json", headers=headers)


def _tag(content: bytes) -> str:
    """Return the entity tag of a content. It is weak, as responses may be compressed."""
    return f'W/"{hashlib.sha256(content).hexdigest()[:_TAG_DIGITS]}"'
