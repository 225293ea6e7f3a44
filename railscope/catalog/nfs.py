"""Metrics of NFS mounts, by export, mount point and protocol of the transport."""

from railscope.catalog.declare import EntityKind, Kind, Metric, Rollup, Unit, per
from railscope.catalog.entities import NFS_EVENT, NFS_MOUNT, NFS_OPERATION, NODE

_FILE = "/proc/{1,self}/mountstats"
_MOUNTED = "Counts from when the file system was mounted."
_SUM = (Rollup.SUM,)


_NODE_EXPORTER = {
    "read_bytes": "read_bytes",
    "write_bytes": "write_bytes",
    "direct_read_bytes": "direct_read_bytes",
    "direct_write_bytes": "direct_write_bytes",
    "server_read_bytes": "total_read_bytes",
    "server_write_bytes": "total_write_bytes",
    "read_pages": "read_pages",
    "write_pages": "write_pages",
    "operations": "operations_requests",
    "transmissions": "operations_transmissions",
    "major_timeouts": "operations_major_timeouts",
    "sent_bytes": "operations_sent_bytes",
    "received_bytes": "operations_received_bytes",
    "queue_seconds": "operations_queue_time_seconds",
    "response_seconds": "operations_response_time_seconds",
    "execution_seconds": "operations_request_time_seconds",
}
"""Names of the same metrics in node_exporter, after node_mountstats_nfs_."""


def _counter(
    stem: str, help_: str, origin: str, unit: Unit = Unit.NONE, about: EntityKind = NFS_MOUNT
) -> Metric:
    what = f"{stem}_{unit}" if unit else stem
    other = _NODE_EXPORTER.get(what)
    names = {"node_exporter": f"node_mountstats_nfs_{other}_total"} if other else {}
    return Metric(
        f"railscope_nfs_{what}_total", Kind.COUNTER, about,
        unit=unit, scale=per(1000) if unit is Unit.SECONDS else per(1), rollups=_SUM,
        resets=_MOUNTED, help=help_, origin=f"{_FILE} {origin}", other_names=names,
    )  # fmt: skip


INFO = Metric(
    "railscope_nfs_mount_info",
    Kind.INFO,
    NFS_MOUNT,
    help="How the export is mounted: version, security, connections to the server.",
    origin=f"{_FILE} opts, sec, xprt",
)
AGE = Metric(
    "railscope_nfs_mount_age_seconds",
    Kind.GAUGE,
    NFS_MOUNT,
    unit=Unit.SECONDS,
    help="Time since the export was mounted.",
    origin=f"{_FILE} age (s)",
    other_names={"node_exporter": "node_mountstats_nfs_age_seconds_total"},
)
MOUNTS = Metric(
    "railscope_nfs_mounts",
    Kind.GAUGE,
    NODE,
    rollups=(Rollup.SUM, Rollup.MIN),
    help="NFS file systems that are mounted, each counted once.",
    origin=_FILE,
)
UNREAD = Metric(
    "railscope_nfs_unread_mounts",
    Kind.GAUGE,
    NODE,
    rollups=(Rollup.SUM,),
    help="NFS file systems without metrics: beyond the bound, or hidden from the agent.",
    origin=_FILE,
)

BYTES: tuple[Metric, ...] = (
    _counter("read", "Bytes programs read with read(2), cached or not.", "bytes, 1st", Unit.BYTES),
    _counter("write", "Bytes programs wrote with write(2).", "bytes, 2nd", Unit.BYTES),
    _counter("direct_read", "Bytes read with O_DIRECT.", "bytes, 3rd", Unit.BYTES),
    _counter("direct_write", "Bytes written with O_DIRECT.", "bytes, 4th", Unit.BYTES),
    _counter("server_read", "Bytes read from the server.", "bytes, 5th", Unit.BYTES),
    _counter("server_write", "Bytes written to the server.", "bytes, 6th", Unit.BYTES),
    _counter("read_pages", "Pages read into the page cache.", "bytes, 7th"),
    _counter("write_pages", "Pages written from the page cache.", "bytes, 8th"),
)
"""In the order of the eight numbers of the line."""

EVENT = _counter(
    "events",
    "Happenings on the mount, such as a server that asked to come back later (jukebox_delay).",
    "events",
    about=NFS_EVENT,
)

OPERATION: dict[str, Metric] = {
    "operations": _counter("operations", "Requests made.", "per-op, 1st", about=NFS_OPERATION),
    "transmissions": _counter(
        "transmissions", "Requests sent, each repetition counted.", "per-op, 2nd",
        about=NFS_OPERATION,
    ),
    "timeouts": _counter(
        "major_timeouts", "Requests that timed out for good.", "per-op, 3rd", about=NFS_OPERATION
    ),
    "sent": _counter(
        "sent", "Bytes of requests, headers included.", "per-op, 4th", Unit.BYTES, NFS_OPERATION
    ),
    "received": _counter(
        "received", "Bytes of replies, headers included.", "per-op, 5th", Unit.BYTES,
        NFS_OPERATION,
    ),
    "queue": _counter(
        "queue", "Time requests waited to be sent.", "per-op, 6th (ms)", Unit.SECONDS,
        NFS_OPERATION,
    ),
    "response": _counter(
        "response", "Time from sending a request to its reply.", "per-op, 7th (ms)",
        Unit.SECONDS, NFS_OPERATION,
    ),
    "execution": _counter(
        "execution", "Time from making a request to its end.", "per-op, 8th (ms)", Unit.SECONDS,
        NFS_OPERATION,
    ),
    "errors": _counter(
        "operation", "Requests that ended with an error.", "per-op, 9th (Linux 5.3)", Unit.ERRORS,
        NFS_OPERATION,
    ),
}  # fmt: skip
"""In the order of the numbers of a line."""

TRANSPORT: dict[str, Metric] = {
    "connects": _counter(
        "transport_connects", "Connections made to the server.", "xprt connect_count"
    ),
    "sends": _counter("transport_requests", "Requests sent by the transport.", "xprt sends"),
    "receives": _counter("transport_replies", "Replies received by the transport.", "xprt recvs"),
    "bad_xids": _counter(
        "transport_unknown_replies", "Replies to no request that is known.", "xprt bad_xids"
    ),
    "in_flight": _counter(
        "transport_in_flight",
        "Sum over all sends of the requests in flight; per request sent, their mean.",
        "xprt req_u",
    ),
    "backlog": _counter(
        "transport_backlog",
        "Sum over all sends of the requests without a slot; per request sent, their mean.",
        "xprt bklog_u",
    ),
}
RDMA: dict[str, Metric] = {
    "requested": _counter(
        "rdma_request", "Bytes the server moved from here by RDMA.", "xprt total_rdma_request",
        Unit.BYTES,
    ),
    "replied": _counter(
        "rdma_reply", "Bytes the server moved to here by RDMA.", "xprt total_rdma_reply",
        Unit.BYTES,
    ),
    "copied": _counter(
        "rdma_copied",
        "Bytes of requests and replies that had to be copied, not moved by RDMA.",
        "xprt pullup_copy_count + fixup_copy_count",
        Unit.BYTES,
    ),
    "failed_marshals": _counter(
        "rdma_failed_marshals", "Requests that could not be put together.",
        "xprt failed_marshal_count",
    ),
    "bad_replies": _counter(
        "rdma_bad_replies", "Replies that could not be understood.", "xprt bad_reply_count"
    ),
    "recycled": _counter(
        "rdma_recycled_regions", "Memory regions that had to be made anew.",
        "xprt mrs_recycled (mrs_recovered)",
    ),
    "orphaned": _counter(
        "rdma_orphaned_regions", "Memory regions that were given up.", "xprt mrs_orphaned"
    ),
    "no_context": _counter(
        "rdma_send_queue_full", "Times no place was left in the send queue.",
        "xprt empty_sendctx_q",
    ),
    "reply_waits": _counter(
        "rdma_reply_waits", "Replies that waited for their request to be sent.",
        "xprt reply_waits_for_send",
    ),
}  # fmt: skip
_TABLES = (*OPERATION.values(), *TRANSPORT.values(), *RDMA.values())
