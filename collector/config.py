"""Settings of the collector."""

from __future__ import annotations

from typing import Annotated

import msgspec

from railscope.settings import described

PREFIX = "RAILSCOPE_COLLECTOR_"
MAX_SECONDS = 86_400.0
"""A period of more than a day is probably a mistake in the unit."""
MAX_DAYS = 36_500


class IngestLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Bounds on what one agent may send."""

    body_bytes: Annotated[int, described("Maximum size of a request body.", ge=1024)] = 8 << 20
    decompressed_bytes: Annotated[
        int, described("Maximum size of a request body when decompressed.", ge=1024)
    ] = 16 << 20
    columns_per_schema: Annotated[
        int, described("Maximum columns and entities per schema.", ge=1)
    ] = 20_000
    frames_per_batch: Annotated[int, described("Maximum frames per batch.", ge=1)] = 10_000
    frames_per_envelope: Annotated[int, described("Maximum frames per envelope.", ge=1)] = 20_000
    batches_per_envelope: Annotated[int, described("Maximum batches per envelope.", ge=1)] = 1000
    events_per_envelope: Annotated[int, described("Maximum events per envelope.", ge=1)] = 10_000
    stretches_per_envelope: Annotated[
        int,
        described(
            "Maximum stretches of samples per envelope, multiplied by the number of their GPUs; "
            "within a stretch, samples are at most 30 s apart.",
            ge=256,
        ),
    ] = 20_000
    counter_bytes_per_envelope: Annotated[
        int,
        described("Maximum bytes of counter readings that metering stores per envelope.", ge=1024),
    ] = 4 << 20
    gaps_per_stream: Annotated[
        int,
        described("Maximum gaps in the sequence numbers of one stream of a running agent.", ge=1),
    ] = 1000
    schemas_per_node_hour: Annotated[
        int, described("Maximum new schemas per node per hour.", ge=1)
    ] = 200
    starts_per_node_hour: Annotated[
        int,
        described(
            "Maximum new combinations of run, boot and agent version per node per hour; recent "
            "ones do not count as new.",
            ge=1,
        ),
    ] = 720
    audited_events_per_node_hour: Annotated[
        int, described("Maximum events for the audit log per node per hour.", ge=1)
    ] = 36_000
    connections: Annotated[
        int,
        described(
            "Maximum concurrent connections; fewer if the process may not open as many files.", ge=8
        ),
    ] = 4096
    connections_per_address: Annotated[
        int,
        described(
            "Maximum connections per address; above it, the connection that has waited longest is closed.",
            ge=1,
        ),
    ] = 1024
    body_timeout_seconds: Annotated[
        float, described("Timeout for receiving a request body.", gt=0)
    ] = 60.0
    requests_per_second: Annotated[
        float, described("Maximum requests per second per node, averaged over ten seconds.", gt=0)
    ] = 50.0
    max_frame_age_days: Annotated[
        int, described("Frames older than this are rejected.", ge=1, le=MAX_DAYS)
    ] = 30
    pending_evidence_intervals: Annotated[
        int,
        described(
            "Maximum intervals of usage evidence (15 minutes of one node, about 60 KiB) "
            "that wait in memory for the database. The nodes with pending intervals have equal "
            "shares; above its share, the agent of a node keeps its frames.",
            ge=1,
        ),
    ] = 50_000


class FrameLogSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The frame log."""

    segment_bytes: Annotated[int, described("Size of a segment file.", ge=1 << 16)] = 64 << 20
    max_bytes: Annotated[
        int,
        described(
            "Maximum size of the frame log; above it, the oldest segments are deleted.", ge=1 << 20
        ),
    ] = 20 << 30


class LedgerSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The database that holds evidence, ledger and bills."""

    url: Annotated[
        str,
        described(
            "postgresql://USER@HOST/DATABASE, or sqlite:////PATH. Empty: ledger.sqlite in the "
            "state directory."
        ),
    ] = ""
    url_file: Annotated[
        str, described("File that contains the URL instead, for a URL with a password.")
    ] = ""


class MeteringSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Evidence and GPU-days."""

    period_seconds: Annotated[
        float,
        described("Seconds between two writes of usage evidence.", ge=0.1, le=MAX_SECONDS),
    ] = 30.0
    quiet_seconds: Annotated[
        float,
        described(
            "Usage evidence is written when nothing was added to it for this many seconds.",
            ge=0,
            le=MAX_SECONDS,
        ),
    ] = 120.0
    finalize_delay_seconds: Annotated[
        float,
        described(
            "A day is written to the ledger this many seconds after its end.",
            ge=0,
            le=30 * MAX_SECONDS,
        ),
    ] = 3600.0
    max_revision_age_days: Annotated[
        int,
        described(
            "Maximum age in days of a ledger day that late evidence may revise.", ge=1, le=MAX_DAYS
        ),
    ] = 62


class AuditSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The audit log."""

    key_file: Annotated[
        str,
        described(
            "File of the key that signs the log; generated if missing. Empty: audit.key in the "
            "state directory."
        ),
    ] = ""
    origin: Annotated[
        str,
        described(
            "Name of the log in a new key and in all checkpoints; no spaces, no plus signs.",
            pattern=r"^[^\s+]+\Z",
            max_length=200,
        ),
    ] = "railscope.audit"
    required_witnesses: Annotated[
        int,
        described(
            "Number of agents that must present their stored checkpoint after a start before "
            "anything is signed.",
            ge=0,
        ),
    ] = 3
    witness_timeout_seconds: Annotated[
        float,
        described(
            "Maximum wait for these agents; after it, signing starts and the shortfall is recorded.",
            ge=0,
            le=MAX_SECONDS,
        ),
    ] = 180.0
    verification_period_seconds: Annotated[
        float,
        described(
            "Seconds between two verifications of the whole log. 0: disabled.",
            ge=0,
            le=30 * MAX_SECONDS,
        ),
    ] = 86_400.0


class BillingSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Bills."""

    seller_file: Annotated[
        str,
        described(
            "Seller, and the account that pays for each tenant (TOML). Empty: each tenant pays."
        ),
    ] = ""


class InfluxSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Export of views to a server with InfluxDB's line protocol, version 2."""

    url: Annotated[str, described("Base URL of the server. Empty: nothing is written.")] = ""
    token_file: Annotated[str, described("File that contains the token.")] = ""
    organisation: Annotated[str, described("Organisation to write to.")] = "railscope"
    bucket: Annotated[str, described("Bucket to write to.")] = "railscope"
    period_seconds: Annotated[
        float, described("Seconds between two writes.", ge=0.1, le=MAX_SECONDS)
    ] = 10.0
    max_buffered_lines: Annotated[
        int,
        described(
            "Maximum lines buffered while the server is unreachable; the oldest are dropped first.",
            ge=1,
        ),
    ] = 200_000


class CollectorTlsSettings(msgspec.Struct, frozen=True, kw_only=True):
    """TLS of the collector."""

    certificate_file: Annotated[str, described("Certificate (PEM). Empty: plain HTTP.")] = ""
    key_file: Annotated[str, described("Private key (PEM) of the certificate.")] = ""
    client_ca_file: Annotated[
        str,
        described(
            "CA certificates (PEM) that client certificates are verified with. Empty: tokens only."
        ),
    ] = ""


class CollectorSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of the collector."""

    listen: Annotated[str, described("Address and port; port 0 selects a free port.")] = (
        "0.0.0.0:9470"
    )
    state_directory: Annotated[
        str,
        described(
            "Directory of the frame log and other state. systemd's STATE_DIRECTORY overrides the "
            "default."
        ),
    ] = "/var/lib/railscope-collector"
    tokens_file: Annotated[
        str,
        described("Tokens and certificates with their access roles (TOML); see docs/access.md."),
    ] = "/etc/railscope/tokens.toml"
    claims_file: Annotated[
        str,
        described("Claims of tenants on GPUs and nodes (CSV: tenant,holds,from,to). Empty: none."),
    ] = ""
    tenants_file: Annotated[
        str,
        described(
            "Tenant of each owner (CSV: tenant,source,owner,from,to). Empty: each owner is its "
            "own tenant."
        ),
    ] = ""
    quotas_file: Annotated[
        str, described("Quotas of tenants (CSV: tenant,gpu_hours,period,gpus,from,to).")
    ] = ""
    calendar_file: Annotated[
        str, described("Maintenance, outages and reservations (TOML). Empty: none.")
    ] = ""
    retired_file: Annotated[
        str,
        described(
            "Retired GPUs, which have no capacity from a given time on (CSV: gpu,from,to,why)."
        ),
    ] = ""
    inventory_file: Annotated[
        str,
        described(
            "GPUs and RDMA ports that each node must report (CSV: node,gpus,rdma_ports,from,to)."
        ),
    ] = ""
    allow_anonymous_read: Annotated[
        bool,
        described("Allow unauthenticated requests to read everything that operators may read."),
    ] = False
    stale_seconds: Annotated[
        float,
        described("A node is stale if its newest frame is older than this.", gt=0, le=MAX_SECONDS),
    ] = 30.0
    view_refresh_seconds: Annotated[
        float,
        described("Seconds between two refreshes of the views.", ge=0.1, le=MAX_SECONDS),
    ] = 2.0
    max_jobs: Annotated[
        int,
        described(
            "Maximum jobs in the metrics and the API, at most 256 per node, selected from all "
            "nodes in turn. Other jobs are only counted.",
            ge=0,
        ),
    ] = 5000
    straggler_time_constant_seconds: Annotated[
        float,
        described(
            "GPUs of a job are compared by exponentially weighted means with this time constant; "
            "choose several steps of the job.",
            ge=1,
            le=MAX_SECONDS,
        ),
    ] = 60.0
    pod_job_pattern: Annotated[
        str,
        described(
            "Pods of a namespace are one job if their names match this regular expression with "
            "the same value of its group `job`. Empty: each pod is a job."
        ),
    ] = r"(?P<job>.+)-(?:master|worker|launcher|chief|ps|evaluator)-\d+"
    log_level: Annotated[
        str, described("debug, info, warning or error.", pattern="^(debug|info|warning|error)$")
    ] = "info"
    limits: IngestLimits = IngestLimits()
    frame_log: FrameLogSettings = FrameLogSettings()
    ledger: LedgerSettings = LedgerSettings()
    metering: MeteringSettings = MeteringSettings()
    audit: AuditSettings = AuditSettings()
    billing: BillingSettings = BillingSettings()
    influx: InfluxSettings = InfluxSettings()
    tls: CollectorTlsSettings = CollectorTlsSettings()
