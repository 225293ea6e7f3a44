"""Storage: GPUDirect, NFS mounts, Lustre and Ceph clients, health of NVMe drives."""

# fmt: off
from fractions import Fraction

from railscope.catalog import declare, entities

GDS_RESETS = "Counts from when the nvidia-fs module was loaded or the file was written to."
NFS_MOUNTED = "Counts from when the file system was mounted."
MOUNTED = "Counts from when the file system was mounted, or from when its statistics were cleared."
LIFETIME = "Counts over the life of the drive."
_GPUDIRECT = declare.MetricTable(entities.GPUDIRECT_MODULE)
_GDS = declare.MetricTable(entities.NODE, origin="/proc/driver/nvidia-fs/stats ", resets=GDS_RESETS)
_NFS = declare.MetricTable(entities.NFS_MOUNT, origin="/proc/{1,self}/mountstats ", resets=NFS_MOUNTED)
_NFS_OPERATION = declare.MetricTable(entities.NFS_OPERATION, origin="/proc/{1,self}/mountstats ", resets=NFS_MOUNTED)
_LUSTRE = declare.MetricTable(entities.LUSTRE_TARGET, origin="/sys/kernel/debug/lustre or /proc/fs/lustre, ", resets=MOUNTED)
_CEPH = declare.MetricTable(entities.CEPH_CLIENT, origin="/sys/kernel/debug/ceph/*/", resets=MOUNTED)
_NVME = declare.MetricTable(entities.NVME_DRIVE, resets=LIFETIME)
_SMART = declare.MetricTable(entities.NVME_DRIVE, origin="NVMe SMART / health log (page 0x02), ", resets=LIFETIME)

_FILE = "/proc/driver/nvidia-fs/stats"
GPUDIRECT_INFO = _GPUDIRECT.info("railscope_gpudirect_module_info", "A kernel module for GPUDirect. RDMA needs none where DMA-BUF is used.", "/sys/module/*/version, /sys/kernel/mm/memory_peers/*/version")
GPUDIRECT_LOADED = _GPUDIRECT.gauge("railscope_gpudirect_module_loaded", "1 if the module is loaded, 0 otherwise.", "/sys/module, /sys/kernel/mm/memory_peers")
GDS_OPERATIONS = _GDS.counter("railscope_gds_operations_total", "Requests made, where the module counts I/O (rw_stats_enabled).", "Batches, Reads, Writes: n", about=entities.GDS_OPERATION)
GDS_COMPLETED = _GDS.counter("railscope_gds_completed_operations_total", "Requests that succeeded, where the module counts I/O (rw_stats_enabled).", "Batches, Reads, Writes: ok", about=entities.GDS_OPERATION)
GDS_FAILED = _GDS.counter("railscope_gds_failed_operations_total", "Requests that failed.", "Batches, Reads, Writes, Mmap, Bar1-map: err", about=entities.GDS_OPERATION, detail=declare.BASIC)
GDS_STATE_FAILED = _GDS.counter("railscope_gds_state_errors_total", "Requests that found a buffer in a wrong state.", "Reads, Writes: io_state_err", about=entities.GDS_OPERATION)
GDS_READ = _GDS.counter("railscope_gds_read_bytes_total", "Bytes read into GPU memory, where the module counts I/O (rw_stats_enabled).", "Reads: readMiB", scale=declare.MEBI)
GDS_WRITTEN = _GDS.counter("railscope_gds_write_bytes_total", "Bytes written from GPU memory, where the module counts I/O (rw_stats_enabled).", "Writes: writeMiB", scale=declare.MEBI)
GDS_PAGE_CACHE = _GDS.counter("railscope_gds_page_cache_writes_total", "Writes that found pages in the page cache.", "Writes: pg-cache")
GDS_PAGE_CACHE_FAILED = _GDS.counter("railscope_gds_page_cache_write_failures_total", "Writes whose pages in the page cache could not be dropped.", "Writes: pg-cache-fail + pg-cache-eio")
GDS_ERRORS = _GDS.counter("railscope_gds_mapping_errors_total", "Failures of mapping a buffer for a transfer, by kind.", "Error: cpu-gpu-pages, sg-ext, dma-map, dma-ref", about=entities.GDS_ERROR)
GDS_IN_FLIGHT = _GDS.gauge("railscope_gds_operations_in_flight", "Requests in flight.", "Ops: Read, Write, BatchIO", about=entities.GDS_OPERATION)
GDS_PROCESSES = _GDS.gauge("railscope_gds_processes", "Processes that use GPUDirect Storage.", "Active Process")
GDS_SHADOW = _GDS.gauge("railscope_gds_shadow_buffer_bytes", "Memory of shadow buffers in use.", "Active Shadow-Buffer (MiB)", scale=declare.MEBI)
GDS_MAPPINGS = _GDS.gauge("railscope_gds_bar1_mappings", "Mappings of GPU memory in use.", "Bar1-map: active")
GDS_REGISTERED = _GDS.gauge("railscope_gds_gpu_registered_bytes", "Memory of the GPU that is pinned for transfers.", "GPU: Registered_MiB", about=entities.GPU, scale=declare.MEBI)
GDS_CACHED = _GDS.gauge("railscope_gds_gpu_bounce_buffer_bytes", "Memory of the GPU that serves as bounce buffers.", "GPU: Cache_MiB", about=entities.GPU, scale=declare.MEBI)
GDS_MAX_PINNED = _GDS.gauge("railscope_gds_gpu_max_pinned_bytes", "Maximum memory of the GPU that was pinned at a time.", "GPU: max_pinned_MiB", about=entities.GPU, scale=declare.MEBI)
GDS_CROSS_ROOT = _GDS.gauge("railscope_gds_gpu_cross_root_port_ratio", "Share of the GPU's transfers that left its PCIe root port, where peer statistics are on.", "GPU: cross_root_port(%)", about=entities.GPU, scale=declare.CENTI)

# NFS ---------------------------------------------------------------------------------------------
_FILE = "/proc/{1,self}/mountstats"
NFS_INFO = _NFS.info("railscope_nfs_mount_info", "Mount options of the export: version, security, connections to the server.", "opts, sec, xprt")
NFS_AGE = _NFS.gauge("railscope_nfs_mount_age_seconds", "Time since the export was mounted.", "age (s)", node_exporter="node_mountstats_nfs_age_seconds_total")
NFS_MOUNTS = _GPUDIRECT.gauge("railscope_nfs_mounts", "NFS file systems that are mounted, each counted once.", _FILE, about=entities.NODE)
NFS_UNREAD = _GPUDIRECT.gauge("railscope_nfs_unread_mounts", "NFS file systems without metrics: beyond the bound, or hidden from the agent.", _FILE, about=entities.NODE)
NFS_BYTES = (
    _NFS.counter("railscope_nfs_read_bytes_total", "Bytes programs read with read(2), cached or not.", "bytes, 1st", node_exporter="node_mountstats_nfs_read_bytes_total"),
    _NFS.counter("railscope_nfs_write_bytes_total", "Bytes programs wrote with write(2).", "bytes, 2nd", node_exporter="node_mountstats_nfs_write_bytes_total"),
    _NFS.counter("railscope_nfs_direct_read_bytes_total", "Bytes read with O_DIRECT.", "bytes, 3rd", node_exporter="node_mountstats_nfs_direct_read_bytes_total"),
    _NFS.counter("railscope_nfs_direct_write_bytes_total", "Bytes written with O_DIRECT.", "bytes, 4th", node_exporter="node_mountstats_nfs_direct_write_bytes_total"),
    _NFS.counter("railscope_nfs_server_read_bytes_total", "Bytes read from the server.", "bytes, 5th", rollups=(declare.Rollup.SUM,), node_exporter="node_mountstats_nfs_total_read_bytes_total"),
    _NFS.counter("railscope_nfs_server_write_bytes_total", "Bytes written to the server.", "bytes, 6th", rollups=(declare.Rollup.SUM,), node_exporter="node_mountstats_nfs_total_write_bytes_total"),
    _NFS.counter("railscope_nfs_read_pages_total", "Pages read into the page cache.", "bytes, 7th", node_exporter="node_mountstats_nfs_read_pages_total"),
    _NFS.counter("railscope_nfs_write_pages_total", "Pages written from the page cache.", "bytes, 8th", node_exporter="node_mountstats_nfs_write_pages_total"),
)
"""Metrics in the order of the eight numbers of the line."""
NFS_EVENTS = _NFS.counter("railscope_nfs_events_total", "Events of the mount, such as a server that requested a later retry (jukebox_delay).", "events", about=entities.NFS_EVENT)
NFS_OPERATIONS = {
    "operations": _NFS_OPERATION.counter("railscope_nfs_operations_total", "Requests made.", "per-op, 1st", node_exporter="node_mountstats_nfs_operations_requests_total"),
    "transmissions": _NFS_OPERATION.counter("railscope_nfs_transmissions_total", "Requests sent, each repetition counted.", "per-op, 2nd", node_exporter="node_mountstats_nfs_operations_transmissions_total"),
    "timeouts": _NFS_OPERATION.counter("railscope_nfs_major_timeouts_total", "Requests that timed out after all retries.", "per-op, 3rd", node_exporter="node_mountstats_nfs_operations_major_timeouts_total", detail=declare.BASIC),
    "sent": _NFS_OPERATION.counter("railscope_nfs_sent_bytes_total", "Bytes of requests, headers included.", "per-op, 4th", node_exporter="node_mountstats_nfs_operations_sent_bytes_total"),
    "received": _NFS_OPERATION.counter("railscope_nfs_received_bytes_total", "Bytes of replies, headers included.", "per-op, 5th", node_exporter="node_mountstats_nfs_operations_received_bytes_total"),
    "queue": _NFS_OPERATION.counter("railscope_nfs_queue_seconds_total", "Time requests waited to be sent.", "per-op, 6th (ms)", scale=declare.MILLI, node_exporter="node_mountstats_nfs_operations_queue_time_seconds_total"),
    "response": _NFS_OPERATION.counter("railscope_nfs_response_seconds_total", "Time from sending a request to its reply.", "per-op, 7th (ms)", scale=declare.MILLI, node_exporter="node_mountstats_nfs_operations_response_time_seconds_total"),
    "execution": _NFS_OPERATION.counter("railscope_nfs_execution_seconds_total", "Time from making a request to its end.", "per-op, 8th (ms)", scale=declare.MILLI, node_exporter="node_mountstats_nfs_operations_request_time_seconds_total"),
    "errors": _NFS_OPERATION.counter("railscope_nfs_operation_errors_total", "Requests that ended with an error.", "per-op, 9th (Linux 5.3)"),
}
"""Metrics in the order of the numbers of a line."""
NFS_TRANSPORT = {
    "connects": _NFS.counter("railscope_nfs_transport_connects_total", "Connections made to the server.", "xprt connect_count"),
    "sends": _NFS.counter("railscope_nfs_transport_requests_total", "Requests sent by the transport.", "xprt sends"),
    "receives": _NFS.counter("railscope_nfs_transport_replies_total", "Replies received by the transport.", "xprt recvs"),
    "bad_xids": _NFS.counter("railscope_nfs_transport_unknown_replies_total", "Replies without a matching request.", "xprt bad_xids"),
    "in_flight": _NFS.counter("railscope_nfs_transport_in_flight_total", "Sum over all sends of the requests in flight; per request sent, their mean.", "xprt req_u"),
    "backlog": _NFS.counter("railscope_nfs_transport_backlog_total", "Sum over all sends of the requests without a slot; per request sent, their mean.", "xprt bklog_u"),
}
NFS_RDMA = {
    "requested": _NFS.counter("railscope_nfs_rdma_request_bytes_total", "Bytes that the server read from this node by RDMA.", "xprt total_rdma_request"),
    "replied": _NFS.counter("railscope_nfs_rdma_reply_bytes_total", "Bytes that the server wrote to this node by RDMA.", "xprt total_rdma_reply"),
    "copied": _NFS.counter("railscope_nfs_rdma_copied_bytes_total", "Bytes of requests and replies that had to be copied, not moved by RDMA.", "xprt pullup_copy_count + fixup_copy_count"),
    "failed_marshals": _NFS.counter("railscope_nfs_rdma_failed_marshals_total", "Requests that could not be encoded.", "xprt failed_marshal_count"),
    "bad_replies": _NFS.counter("railscope_nfs_rdma_bad_replies_total", "Replies that could not be decoded.", "xprt bad_reply_count"),
    "recycled": _NFS.counter("railscope_nfs_rdma_recycled_regions_total", "Memory regions that had to be registered again.", "xprt mrs_recycled (mrs_recovered)"),
    "orphaned": _NFS.counter("railscope_nfs_rdma_orphaned_regions_total", "Memory regions that were abandoned.", "xprt mrs_orphaned"),
    "no_context": _NFS.counter("railscope_nfs_rdma_send_queue_full_total", "Times the send queue was full.", "xprt empty_sendctx_q"),
    "reply_waits": _NFS.counter("railscope_nfs_rdma_reply_waits_total", "Replies that waited for their request to be sent.", "xprt reply_waits_for_send"),
}

# Lustre and Ceph ---------------------------------------------------------------------------------
IMPORT_STATES = {
    1: "closed",
    2: "new",
    3: "disconn",
    4: "connecting",
    5: "replay",
    6: "replay_locks",
    7: "replay_wait",
    8: "recover",
    9: "full",
    10: "evicted",
    11: "idle",
}
"""Connection states of a target: enum lustre_imp_state. Full and idle are healthy."""
LUSTRE_HEALTHY = _GPUDIRECT.gauge("railscope_lustre_healthy", "1 if Lustre reports itself healthy on this node, 0 otherwise.", "/sys/fs/lustre/health_check", about=entities.NODE, detail=declare.BASIC)
LUSTRE_READ = _LUSTRE.counter("railscope_lustre_read_bytes_total", "Bytes programs read.", "llite/*/stats read_bytes, sum", about=entities.LUSTRE_CLIENT, rollups=(declare.Rollup.SUM,))
LUSTRE_WRITTEN = _LUSTRE.counter("railscope_lustre_write_bytes_total", "Bytes programs wrote.", "llite/*/stats write_bytes, sum", about=entities.LUSTRE_CLIENT, rollups=(declare.Rollup.SUM,))
LUSTRE_OPERATIONS = _LUSTRE.counter("railscope_lustre_operations_total", "File operations of programs.", "llite/*/stats, samples", about=entities.LUSTRE_OPERATION)
LUSTRE_OPERATION_TIME = _LUSTRE.counter("railscope_lustre_operation_seconds_total", "Time all file operations of a kind together have taken.", "llite/*/stats, sum (us), Lustre 2.14", about=entities.LUSTRE_OPERATION, scale=declare.MICRO)
LUSTRE_TARGET_REQUESTS = _LUSTRE.counter("railscope_lustre_target_requests_total", "Requests the target has answered.", "{osc,mdc}/*/stats req_waittime, samples")
LUSTRE_TARGET_WAIT = _LUSTRE.counter("railscope_lustre_target_wait_seconds_total", "Total time that requests have waited for the target.", "{osc,mdc}/*/stats req_waittime, sum (us)", scale=declare.MICRO)
LUSTRE_TARGET_READ = _LUSTRE.counter("railscope_lustre_target_read_bytes_total", "Bytes read from the target.", "osc/*/stats read_bytes, sum")
LUSTRE_TARGET_WRITTEN = _LUSTRE.counter("railscope_lustre_target_write_bytes_total", "Bytes written to the target.", "osc/*/stats write_bytes, sum")
LUSTRE_REQUESTS = _LUSTRE.counter("railscope_lustre_requests_total", "Requests of a kind the target has answered.", "{osc,mdc}/*/stats ost_*, mds_*, ldlm_*, samples", about=entities.LUSTRE_REQUEST)
LUSTRE_REQUEST_TIME = _LUSTRE.counter("railscope_lustre_request_seconds_total", "Time all requests of a kind together have taken.", "{osc,mdc}/*/stats ost_*, mds_*, ldlm_*, sum (us)", about=entities.LUSTRE_REQUEST, scale=declare.MICRO)
LUSTRE_TARGET_STATE = _LUSTRE.state("railscope_lustre_target_state", "State of the connection to the target; full and idle are healthy.", "{osc,mdc}/*/import state", states=IMPORT_STATES, detail=declare.BASIC)
LUSTRE_TARGET_IN_FLIGHT = _LUSTRE.gauge("railscope_lustre_target_requests_in_flight", "Requests sent to the target and not yet answered.", "{osc,mdc}/*/import rpcs inflight")
LUSTRE_TARGET_TIMEOUTS = _LUSTRE.counter("railscope_lustre_target_timeouts_total", "Requests the target did not answer in time.", "{osc,mdc}/*/import rpcs timeouts")
CEPH_OSD_REQUESTS = _CEPH.gauge("railscope_ceph_osd_requests_in_flight", "Requests to object stores that are not yet answered.", "osdc REQUESTS")
CEPH_HOMELESS = _CEPH.gauge("railscope_ceph_homeless_requests_in_flight", "Requests without an object store that is up.", "osdc homeless", detail=declare.BASIC)
CEPH_MDS_REQUESTS = _CEPH.gauge("railscope_ceph_mds_requests_in_flight", "Requests to metadata servers that are not yet answered.", "mdsc, lines")
CEPH_OPERATIONS = _CEPH.counter("railscope_ceph_operations_total", "Requests of a kind the client made.", "metrics/latency total (Linux 5.8)", about=entities.CEPH_OPERATION)
CEPH_LATENCY = _CEPH.gauge("railscope_ceph_average_latency_seconds", "Time a request takes, averaged over all since the file system was mounted.", "metrics/latency avg_lat(us)", about=entities.CEPH_OPERATION, scale=declare.MICRO)
CEPH_LONGEST = _CEPH.gauge("railscope_ceph_longest_latency_seconds", "Latency of the slowest request since the file system was mounted.", "metrics/latency max_lat(us)", about=entities.CEPH_OPERATION, scale=declare.MICRO)
CEPH_BYTES = _CEPH.counter("railscope_ceph_transferred_bytes_total", "Bytes the requests of a kind moved.", "metrics/size total_sz(bytes)", about=entities.CEPH_OPERATION)
CEPH_CAPS_HITS = _CEPH.counter("railscope_ceph_capability_hits_total", "Times the client already had the capability it needed.", "metrics/caps hit")
CEPH_CAPS_MISSES = _CEPH.counter("railscope_ceph_capability_misses_total", "Times the client had to request a capability from a metadata server.", "metrics/caps miss")

# NVMe drives -------------------------------------------------------------------------------------
NVME_STATES = {
    0: "new",
    1: "live",
    2: "resetting",
    3: "connecting",
    4: "deleting",
    5: "deleting_without_io",
    6: "dead",
}
"""enum nvme_ctrl_state of the kernel."""
NVME_INFO = _NVME.info("railscope_nvme_info", "Identity of the drive: model, serial number, firmware, and its name in the kernel.", "/sys/class/nvme/*/{model,serial,firmware_rev,transport}")
NVME_STATE = _NVME.state("railscope_nvme_state", "State of the kernel's connection to the drive.", "/sys/class/nvme/*/state", states=NVME_STATES, detail=declare.BASIC)
NVME_CRITICAL_WARNING = _SMART.gauge("railscope_nvme_critical_warning", "1 if this critical warning of the drive is set, 0 otherwise.", "critical warning", about=entities.NVME_WARNING, rollups=(declare.Rollup.SUM,), detail=declare.BASIC)
NVME_TEMPERATURE = _SMART.gauge("railscope_nvme_temperature_celsius", "Composite temperature of the drive.", "composite temperature (K)")
NVME_USED = _SMART.gauge("railscope_nvme_used_ratio", "Share of the drive's life that is used up, as estimated by its vendor; may exceed 1.", "percentage used", scale=declare.CENTI, detail=declare.BASIC, valid=(0, 3))
NVME_SPARE = _SMART.gauge("railscope_nvme_spare_ratio", "Remaining share of the spare capacity.", "available spare", scale=declare.CENTI)
NVME_SPARE_LIMIT = _SMART.gauge("railscope_nvme_spare_limit_ratio", "Share of spare capacity below which the drive warns.", "available spare threshold", scale=declare.CENTI)
NVME_MEDIA_ERRORS = _SMART.counter("railscope_nvme_media_errors_total", "Times the drive detected damaged data.", "media and data integrity errors", detail=declare.BASIC)
NVME_LOGGED_ERRORS = _SMART.counter("railscope_nvme_logged_errors_total", "Entries in the drive's error log over its life.", "error log entries")
NVME_UNSAFE_SHUTDOWNS = _SMART.counter("railscope_nvme_unsafe_shutdowns_total", "Times the drive lost power without notice.", "unsafe shutdowns")
NVME_POWER_CYCLES = _SMART.counter("railscope_nvme_power_cycles_total", "Times the drive was powered on.", "power cycles")
NVME_POWER_ON_TIME = _SMART.counter("railscope_nvme_power_on_seconds_total", "Total time the drive was powered on.", "power on hours (h)", scale=Fraction(3600))
NVME_BUSY_TIME = _SMART.counter("railscope_nvme_controller_busy_seconds_total", "Time in which the drive's controller executed commands.", "controller busy time (min)", scale=Fraction(60))
NVME_WARM_TIME = _SMART.counter("railscope_nvme_warm_seconds_total", "Time the drive was warmer than its warning temperature.", "warning composite temperature time (min)", scale=Fraction(60))
NVME_HOT_TIME = _SMART.counter("railscope_nvme_hot_seconds_total", "Time the drive was warmer than its critical temperature.", "critical composite temperature time (min)", scale=Fraction(60))
NVME_DATA = _SMART.counter("railscope_nvme_lifetime_transferred_bytes_total", "Data the host read or wrote over the life of the drive.", "data units read, written (1000 x 512 bytes, rounded up)", about=entities.NVME_DIRECTION, scale=Fraction(512_000))
