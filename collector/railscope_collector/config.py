"""Settings of the collector."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct, structs

from railscope_collector.detector_thresholds import DetectorThresholds

PREFIX = "RAILSCOPE_COLLECTOR_"
MAX_SECONDS = 86_400.0
"""A period of more than a day is probably a mistake in the unit."""
MAX_DAYS = 36_500


class IngestLimits(Struct, frozen=True, kw_only=True):
    """Bounds on what one agent may send."""

    body_bytes: Annotated[int, Meta(ge=1024)] = 8 << 20
    """Maximum size of a request body."""
    decompressed_bytes: Annotated[int, Meta(ge=1024)] = 16 << 20
    """Maximum size of a request body when decompressed."""
    columns_per_schema: Annotated[int, Meta(ge=1)] = 20_000
    """Maximum columns and slots per shape."""
    frames_per_batch: Annotated[int, Meta(ge=1)] = 10_000
    """Maximum frames per batch."""
    frames_per_envelope: Annotated[int, Meta(ge=1)] = 20_000
    """Maximum frames per envelope."""
    batches_per_envelope: Annotated[int, Meta(ge=1)] = 1000
    """Maximum batches per envelope."""
    events_per_envelope: Annotated[int, Meta(ge=1)] = 10_000
    """Maximum events per envelope."""
    sample_spans_per_envelope: Annotated[int, Meta(ge=256)] = 20_000
    """Maximum spans of samples per envelope, multiplied by the number of their GPUs; within a span,
    samples are at most 30 s apart.
    """
    counter_bytes_per_envelope: Annotated[int, Meta(ge=1024)] = 4 << 20
    """Maximum bytes of counter readings that metering stores per envelope."""
    gaps_per_stream: Annotated[int, Meta(ge=1)] = 1000
    """Maximum gaps in the sequence numbers of one stream of a running agent."""
    starts_per_node_hour: Annotated[int, Meta(ge=1)] = 720
    """Maximum new combinations of run, boot and agent version per node per hour; recent ones do not
    count as new.
    """
    audited_events_per_node_hour: Annotated[int, Meta(ge=1)] = 36_000
    """Maximum events for the audit log per node per hour."""
    connections: Annotated[int, Meta(ge=8)] = 4096
    """Maximum concurrent connections; fewer if the process may not open as many files."""
    connections_per_address: Annotated[int, Meta(ge=1)] = 1024
    """Maximum connections per address; above it, the connection that has waited longest is
    closed.
    """
    body_timeout_seconds: Annotated[float, Meta(gt=0)] = 60.0
    """Timeout for receiving a request body."""
    requests_per_second: Annotated[float, Meta(gt=0)] = 50.0
    """Maximum requests per second per node, averaged over ten seconds."""
    max_frame_age_days: Annotated[int, Meta(ge=1, le=MAX_DAYS)] = 30
    """Frames older than this are rejected."""
    pending_evidence_intervals: Annotated[int, Meta(ge=1)] = 50_000
    """Maximum intervals of usage evidence (15 minutes of one node, about 60 KiB) that wait in memory
    until they are complete, or for space on the disk. The nodes with pending intervals have equal shares; above its
    share, the agent of a node keeps its frames.
    """
    waiting_evidence_bytes: Annotated[int, Meta(ge=64 << 20)] = 4 << 30
    """Maximum size of usage evidence that waits on disk for the database. The nodes with such evidence have
    equal shares; further evidence of a node stays in memory, up to its share of `pending_evidence_intervals`.
    """


class FrameLogSettings(Struct, frozen=True, kw_only=True):
    """The frame log."""

    segment_bytes: Annotated[int, Meta(ge=1 << 16)] = 64 << 20
    """Size of a segment file."""
    max_bytes: Annotated[int, Meta(ge=1 << 20)] = 20 << 30
    """Maximum size of the frame log; above it, the oldest segments are deleted."""


class LedgerSettings(Struct, frozen=True, kw_only=True):
    """The database that holds evidence, ledger and bills."""

    url: str = ""
    """postgresql://USER@HOST/DATABASE, or sqlite:////PATH. Empty: ledger.sqlite in the state
    directory.
    """
    url_file: str = ""
    """File that contains the URL instead, for a URL with a password."""


class MeteringSettings(Struct, frozen=True, kw_only=True):
    """Evidence and GPU-days."""

    period_seconds: Annotated[float, Meta(ge=0.1, le=MAX_SECONDS)] = 30.0
    """Seconds between two writes of usage evidence."""
    quiet_seconds: Annotated[float, Meta(ge=0, le=MAX_SECONDS)] = 120.0
    """Usage evidence is written when nothing was added to it for this many seconds, and 15 minutes and this
    many seconds after its first addition at the latest.
    """
    finalize_delay_seconds: Annotated[float, Meta(ge=0, le=30 * MAX_SECONDS)] = 3600.0
    """A day is written to the ledger this many seconds after its end."""
    max_revision_age_days: Annotated[int, Meta(ge=1, le=MAX_DAYS)] = 62
    """Maximum age in days of a ledger day that late evidence may revise."""


class ArchiveSettings(Struct, frozen=True, kw_only=True):
    """Archive of usage evidence in Parquet files, and its retention in the database."""

    url: str = ""
    """Directory, or s3://BUCKET/PREFIX (the extra archive is required). Empty: nothing is archived, and all
    evidence stays in the database.
    """
    endpoint: str = ""
    """URL of an S3-compatible server. Empty: that of AWS for the region."""
    region: str = ""
    """Region of the bucket. Empty: as the environment specifies (AWS_REGION), else us-east-1."""
    credentials_file: str = ""
    """File with access key ID and secret access key, a line each. Empty: those of the environment or the machine, as
    AWS tools find them.
    """
    pod_pattern: str = ""
    """Regular expression for the names of nodes, whose group `pod` names the pod of a node: each pod has its own files.
    Empty: all nodes are one pod.
    """
    archive_after_days: Annotated[int, Meta(ge=1, le=MAX_DAYS)] = 7
    """Evidence of a day is archived this many days after its end."""
    delete_after_days: Annotated[int, Meta(ge=0, le=MAX_DAYS)] = 0
    """Archived evidence is deleted from the database this many days after its day, but never while the day may still
    be revised or billed. 0: never.
    """
    period_seconds: Annotated[float, Meta(ge=1, le=MAX_SECONDS)] = 3600.0
    """Seconds between two searches for evidence to archive or delete."""


class AuditSettings(Struct, frozen=True, kw_only=True):
    """The audit log."""

    key_file: str = ""
    """File of the key that signs the log; generated if missing. Empty: audit.key in the state
    directory.
    """
    origin: Annotated[str, Meta(pattern=r"^[^\s+]+\Z", max_length=200)] = "railscope.audit"
    """Name of the log in a new key and in all checkpoints; no spaces, no plus signs."""
    required_witnesses: Annotated[int, Meta(ge=0)] = 3
    """Number of agents that must present their stored checkpoint after a start before anything is
    signed.
    """
    witness_timeout_seconds: Annotated[float, Meta(ge=0, le=MAX_SECONDS)] = 180.0
    """Maximum wait for these agents; after it, signing starts and the shortfall is recorded."""
    verification_period_seconds: Annotated[float, Meta(ge=0, le=30 * MAX_SECONDS)] = 86_400.0
    """Seconds between two verifications of the whole log. 0: disabled."""
    keep_entries_days: Annotated[int, Meta(ge=0, le=MAX_DAYS)] = 0
    """Entries are moved to the archive (`archive.url`) this many days after they were recorded; hashes and checkpoints
    stay. 0: never.
    """


class BillingSettings(Struct, frozen=True, kw_only=True):
    """Bills."""

    seller_file: str = ""
    """Seller, and the account that pays for each tenant (TOML). Empty: each tenant pays."""


class InfluxSettings(Struct, frozen=True, kw_only=True):
    """Export of views to a server with the InfluxDB line protocol, version 2."""

    url: str = ""
    """Base URL of the server. Empty: nothing is written."""
    token_file: str = ""
    """File that contains the token."""
    organisation: str = "railscope"
    """Organisation to write to."""
    bucket: str = "railscope"
    """Bucket to write to."""
    period_seconds: Annotated[float, Meta(ge=0.1, le=MAX_SECONDS)] = 10.0
    """Seconds between two writes."""
    max_buffered_lines: Annotated[int, Meta(ge=1)] = 200_000
    """Maximum lines buffered while the server is unreachable; the oldest are dropped first."""


class DiagnosisSettings(Struct, frozen=True, kw_only=True):
    """Diagnosis of faults from the frames of all nodes."""

    enabled: bool = True
    """Evaluate the frames every 10 seconds, and report incidents."""
    webhook_url: str = ""
    """URL that receives incidents in the form of Alertmanager's webhooks. Empty: none."""
    webhook_token_file: str = ""
    """File that contains the bearer token for the webhook. Empty: none is sent."""
    webhook_min_severity: Literal["info", "warning", "critical"] = "warning"
    """Severity from which on incidents are sent to the webhook."""
    thresholds: DetectorThresholds = DetectorThresholds()


class ConsoleSettings(Struct, frozen=True, kw_only=True):
    """Web console."""

    grafana_url: str = ""
    """Base URL of Grafana: pages have links to its dashboards. Empty: none."""
    history_url: str = ""
    """Base URL of a Prometheus-compatible server that scrapes the agents and the collector, from which curves are read.
    Empty: curves of nodes and GPUs are read from the frame log, and rails and jobs have none.
    """
    history_token_file: str = ""
    """File that contains the bearer token for this server. Empty: none is sent."""
    history_ca_file: str = ""
    """CA certificates (PEM) that its certificate is verified with. Empty: those of the system."""
    history_timeout_seconds: Annotated[float, Meta(gt=0, le=300)] = 10.0
    """Timeout for all queries of one page."""


class CollectorTlsSettings(Struct, frozen=True, kw_only=True):
    """TLS of the collector."""

    certificate_file: str = ""
    """Certificate (PEM). Empty: plain HTTP."""
    key_file: str = ""
    """Private key (PEM) of the certificate."""
    client_ca_file: str = ""
    """CA certificates (PEM) that client certificates are verified with. Empty: tokens only."""


class ClusterSettings(Struct, frozen=True, kw_only=True):
    """Several collectors with one PostgreSQL database, one of which is active."""

    group: str = ""
    """Name of the group of collectors, such as that of a pod: one collector of a group is active. Empty: this one is alone."""
    advertised_url: str = ""
    """URL of this collector, such as https://HOST:9470: for links in notifications, and for the other collectors of the group,
    which refer to it. Required with group.
    """


class SwitchesSettings(Struct, frozen=True, kw_only=True):
    """Switches that the collector polls."""

    file: str = ""
    """Addresses and credentials of the switches (TOML); see docs/switches.md. The extra switches is required. Empty:
    none.
    """
    cabling_file: str = ""
    """Links between switch ports and NICs (CSV: switch,port,node,interface), for those without LLDP. Empty: none."""
    period_seconds: Annotated[float, Meta(ge=5, le=3600)] = 30.0
    """Seconds between two polls of a switch. Neighbours are read once per minute at most."""
    timeout_seconds: Annotated[float, Meta(gt=0, le=30)] = 2.0
    """Timeout of one request by SNMP, which is repeated once. One by gNMI fails after five times this."""


class OtlpReceiverSettings(Struct, frozen=True, kw_only=True):
    """Receiver of metrics that switches push by OTLP; the extra otlp is required."""

    listen: str = ""
    """Address and port for OTLP over HTTP, such as 0.0.0.0:4318. Empty: none."""
    certificate_file: str = ""
    """Certificate (PEM). Empty: no TLS."""
    key_file: str = ""
    """Private key (PEM) of the certificate."""
    requests_per_second: Annotated[float, Meta(gt=0)] = 10.0
    """Maximum requests per second per switch, averaged over ten seconds."""


class CollectorSettings(Struct, frozen=True, kw_only=True):
    """Settings of the collector."""

    listen: str = "0.0.0.0:9470"
    """Address and port; port 0 selects a free port."""
    state_directory: str = "/var/lib/railscope-collector"
    """Directory of the frame log and other state. systemd's STATE_DIRECTORY overrides the
    default.
    """
    tokens_file: str = "/etc/railscope/tokens.toml"
    """Tokens and certificates with their access roles (TOML); see docs/access.md."""
    trial_token_file: str = ""
    """Token that the agents of up to 20 nodes share, to try Railscope; see docs/access.md. Empty: each
    node has its own.
    """
    claims_file: str = ""
    """Claims of tenants on GPUs and nodes (CSV: tenant,gpu,from,to,share). Empty: none."""
    tenants_file: str = ""
    """Tenant of each owner (CSV: tenant,source,owner,from,to). Empty: each owner is its own
    tenant.
    """
    quotas_file: str = ""
    """Quotas and budgets of tenants (CSV: tenant,gpu_hours,period,gpus,from,to and optionally budget)."""
    calendar_file: str = ""
    """Maintenance, outages and reservations (TOML). Empty: none."""
    retired_file: str = ""
    """Retired GPUs, which have no capacity after a given time (CSV: gpu,from,to,reason)."""
    inventory_file: str = ""
    """GPUs and RDMA ports that each node must report (CSV: node,gpus,rdma_ports,from,to)."""
    draining: bool = False
    """Accept no frames, so that agents send to another collector; everything else is served, in a group by the active one."""
    drain_seconds: Annotated[float, Meta(ge=0, le=MAX_SECONDS)] = 0.0
    """Seconds for which a collector that is stopped drains before it ends, so that agents with several collectors send to
    another one at once: more than their push_seconds, and less than TimeoutStopSec of the unit. 0: it ends at once.
    """
    allow_anonymous_read: bool = False
    """Allow unauthenticated requests to read everything that operators may read."""
    stale_seconds: Annotated[float, Meta(gt=0, le=MAX_SECONDS)] = 30.0
    """A node is stale if its newest frame is older than this."""
    view_refresh_seconds: Annotated[float, Meta(ge=0.1, le=MAX_SECONDS)] = 2.0
    """Maximum age of the views in an answer, in seconds. Without requests, they are computed every 15 seconds."""
    max_jobs: Annotated[int, Meta(ge=0)] = 5000
    """Maximum jobs in the metrics and the API, at most 256 per node, selected round-robin per node. Other jobs are only counted.
    """
    straggler_time_constant_seconds: Annotated[float, Meta(ge=1, le=MAX_SECONDS)] = 60.0
    """GPUs of a job are compared by exponentially weighted means with this time constant; choose
    several steps of the job.
    """
    pod_job_pattern: str = (
        r"(?P<job>.+?)(?:-(?:master|worker|launcher|chief|ps|evaluator)-\d+"
        r"|(?:-\d+)+-[bcdfghjklmnpqrstvwxz2456789]{5})"
    )
    """Pods of a namespace are one job if their names match this regular expression with the same
    value of its group `job`. Empty: each pod is a job. By default, names of Kubeflow, of indexed jobs and of JobSet.
    """
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """debug, info, warning or error."""
    limits: IngestLimits = IngestLimits()
    frame_log: FrameLogSettings = FrameLogSettings()
    ledger: LedgerSettings = LedgerSettings()
    metering: MeteringSettings = MeteringSettings()
    archive: ArchiveSettings = ArchiveSettings()
    audit: AuditSettings = AuditSettings()
    billing: BillingSettings = BillingSettings()
    console: ConsoleSettings = ConsoleSettings()
    diagnosis: DiagnosisSettings = DiagnosisSettings()
    influx: InfluxSettings = InfluxSettings()
    cluster: ClusterSettings = ClusterSettings()
    switches: SwitchesSettings = SwitchesSettings()
    otlp_receiver: OtlpReceiverSettings = OtlpReceiverSettings()
    tls: CollectorTlsSettings = CollectorTlsSettings()

    def without_cluster(self) -> CollectorSettings:
        """Return the settings of a collector that is alone."""
        return structs.replace(self, cluster=ClusterSettings())
