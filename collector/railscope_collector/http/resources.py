"""Table of the resources of the API.

The route, its roles, the parsing of the query, the entity tag and the OpenAPI document follow from a row. A page of the
same name has its path, roles and query. `railscope/client/columns.py` states how a list looks in a terminal.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from aiohttp import web

from railscope import api
from railscope.api import audit, billing, inventory, status, switches, tenants
from railscope_collector.billing import statement_forms
from railscope_collector.http import (
    audit_api,
    billing_api,
    gpus_api,
    incidents_api,
    nodes_api,
    openapi,
    read_api,
    route_table,
    switches_api,
)
from railscope_collector.http.list_query import NoQuery, WholeQuery
from railscope_collector.http.resource_server import Change, Resource, ResourceRequest
from railscope_collector.http.route_table import AUDIT, BILLING, RUNNING, TenantScope


@dataclass(frozen=True, slots=True)
class CollectorApis:
    """Functions of all resources."""

    views: read_api.ViewApi
    billing: billing_api.BillingApi
    audit: audit_api.AuditApi
    switches: switches_api.SwitchesApi


def _openapi(_: CollectorApis, __: ResourceRequest) -> web.Response:
    body = openapi.openapi_document(tuple(RESOURCES))
    return web.Response(body=body, content_type="application/json")


_VIEWS, _INCIDENTS, _PROGRESS = Change
_BOTH = (_VIEWS, _INCIDENTS)
_NOTHING, _SAME, _OWN, _NAMED = TenantScope
_MEDIA = tuple(billing_api.MEDIA.values())
RESOURCES: Collection[Resource[CollectorApis]] = (
    Resource("openapi", "openapi.json", dict[str, Any], RUNNING | BILLING, _SAME, NoQuery,
             _openapi, is_local=True),
    Resource("status", "status", status.Status, RUNNING, _OWN, NoQuery,
             lambda apis, asked: apis.views.status_now(asked.credential)),
    Resource("cluster", "cluster", api.MetricList, RUNNING, _NOTHING, NoQuery,
             lambda apis, _: apis.views.cluster_values(), (_VIEWS,)),
    Resource("rails", "rails", api.RailList, RUNNING, _NOTHING, nodes_api.RailsQuery,
             lambda apis, asked: apis.views.nodes.rail_list(asked.query.sort), _BOTH),
    Resource("nodes", "nodes", api.NodeList, RUNNING, _NOTHING, nodes_api.NodesQuery,
             lambda apis, asked: apis.views.nodes.node_list(asked.query), _BOTH),
    Resource("node", "nodes/{node}", api.NodeDetail, RUNNING, _NOTHING, nodes_api.NodeQuery,
             lambda apis, asked: apis.views.nodes.node_detail(asked.parts["node"], asked.query.stream)),
    Resource("gpus", "gpus", api.GpuList, RUNNING, _OWN, gpus_api.GpusQuery,
             lambda apis, asked: apis.views.gpus.gpu_list(asked), _BOTH),
    Resource("switches", "switches", switches.SwitchList, RUNNING, _NOTHING, switches_api.SwitchesQuery,
             lambda apis, asked: apis.switches.switch_list(asked)),
    Resource("switch", "switches/{switch}", switches.SwitchDetail, RUNNING, _NOTHING, WholeQuery,
             lambda apis, asked: apis.switches.switch_detail(asked)),
    Resource("switch_port", "switches/{switch}/ports/{port}", switches.SwitchPortDetail, RUNNING, _NOTHING, NoQuery,
             lambda apis, asked: apis.switches.port_detail(asked)),
    Resource("links", "links", switches.LinkList, RUNNING, _NOTHING, NoQuery,
             lambda apis, _: apis.switches.link_list()),
    Resource("inventory", "inventory", inventory.Inventory, RUNNING, _NOTHING, NoQuery,
             lambda apis, _: apis.views.inventory()),
    Resource("events", "events", api.EventList, RUNNING, _NOTHING, read_api.EventsQuery,
             lambda apis, asked: apis.views.event_list(asked.query.node)),
    Resource("incidents", "incidents", api.IncidentList, RUNNING, _OWN, incidents_api.IncidentsQuery,
             lambda apis, asked: apis.views.listed_incidents.incident_list(asked), (_INCIDENTS, _PROGRESS)),
    Resource("incident", "incidents/{incident}", api.IncidentDetail, RUNNING, _OWN, NoQuery,
             lambda apis, asked: apis.views.listed_incidents.incident_detail(asked)),
    Resource("jobs", "jobs", api.JobList, RUNNING, _OWN, incidents_api.JobsQuery,
             lambda apis, asked: apis.views.jobs_api.job_list(asked), _BOTH),
    Resource("job", "jobs/{tenant}/{source}/{workload}", api.Job, RUNNING, _NAMED, NoQuery,
             lambda apis, asked: apis.views.jobs_api.job_detail(asked)),
    Resource("tenants", "tenants", tenants.TenantList, RUNNING | BILLING, _OWN, read_api.TenantsQuery,
             lambda apis, asked: apis.views.tenant_list(asked), _BOTH),
    Resource("account", "account", tenants.Account, RUNNING | BILLING, _OWN, NoQuery,
             lambda apis, asked: apis.views.account(asked), (_VIEWS,)),
    Resource("statements", "statements", billing.StatementList, BILLING, _OWN, billing_api.StatementsQuery,
             lambda apis, asked: apis.billing.statement_list(asked), is_local=True),
    Resource("statement", "statements/{tenant}/{period}", statement_forms.StatementDocument, BILLING, _NAMED, billing_api.FormQuery,
             lambda apis, asked: apis.billing.statement(asked), other_forms=_MEDIA, is_local=True),
    Resource("export", "exports/{period}", _MEDIA, BILLING, _OWN, billing_api.ExportQuery,
             lambda apis, asked: apis.billing.export(asked), is_local=True),
    Resource("audit", "audit", audit.AuditEntries, AUDIT, _OWN, audit_api.AuditQuery,
             lambda apis, asked: apis.audit.entry_list(asked), is_local=True),
    Resource("audit_entry", "audit/entries/{index}", ("text/plain",), AUDIT, _OWN, NoQuery,
             lambda apis, asked: apis.audit.entry(asked), is_local=True),
    Resource("audit_checkpoint", "audit/checkpoint", ("text/plain",), route_table.NOT_A_TENANT, _SAME, NoQuery,
             lambda apis, asked: apis.audit.checkpoint(asked), is_local=True),
    Resource("audit_consistency", "audit/consistency", audit.ConsistencyProof, route_table.NOT_A_TENANT, _SAME, audit_api.ConsistencyQuery,
             lambda apis, asked: apis.audit.consistency(asked), is_local=True, may_lack_query=True),
)  # fmt: skip
RESOURCES_BY_NAME = {each.name: each for each in RESOURCES}
ROUTES = (*route_table.MACHINE_ROUTES, *(each.route for each in RESOURCES))
"""Routes of the collector except those of the console."""
