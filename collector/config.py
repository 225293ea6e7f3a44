"""Settings of the collector."""

from __future__ import annotations

from typing import Annotated

import msgspec

from railscope.settings import described

PREFIX = "RAILSCOPE_COLLECTOR_"
MAX_SECONDS = 86_400.0
"""A period of more than a day is probably a mistake in the unit."""
MAX_DAYS = 36_500


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Bounds on what one agent may send."""

    body_bytes: Annotated[int, described("Largest request body.", ge=1024)] = 8 << 20
    unpacked_bytes: Annotated[int, described("Largest body when decompressed.", ge=1024)] = 16 << 20
    columns: Annotated[int, described("Most columns and entities of one schema.", ge=1)] = 20_000
    rows: Annotated[int, described("Most frames in one batch.", ge=1)] = 10_000
    frames: Annotated[int, described("Most frames in one envelope.", ge=1)] = 20_000
    batches: Annotated[int, described("Most batches in one envelope.", ge=1)] = 1000
    events: Annotated[int, described("Most events in one envelope.", ge=1)] = 10_000
    stretches: Annotated[
        int,
        described(
            "Most stretches of samples in one envelope, at most 30 s from sample to sample, times the "
            "GPUs that they are of.",
            ge=256,
        ),
    ] = 20_000
    counter_bytes: Annotated[
        int,
        described("Most bytes of counter readings that metering keeps of one envelope.", ge=1024),
    ] = 4 << 20
    gaps: Annotated[
        int, described("Most holes in the sequence of one stream of a running agent.", ge=1)
    ] = 1000
    schemas_per_node: Annotated[
        int, described("Most new schemas a node may register in an hour.", ge=1)
    ] = 200
    starts_per_node: Annotated[
        int,
        described(
            "Most runs, boots and versions of a node's agent in an hour that were not seen lately.",
            ge=1,
        ),
    ] = 720
    audited_events_per_node: Annotated[
        int, described("Most events for the audit log that a node may send in an hour.", ge=1)
    ] = 36_000
    connections: Annotated[
        int,
        described(
            "Most connections at a time, less where the process may not open so many files.", ge=8
        ),
    ] = 4096
    connections_per_address: Annotated[
        int,
        described(
            "Most connections of one address; beyond it the one that waits longest is closed.", ge=1
        ),
    ] = 1024
    body_seconds: Annotated[
        float, described("Longest time for the body of a request to arrive.", gt=0)
    ] = 60.0
    requests_per_second: Annotated[
        float, described("Most requests a second of one node, averaged over ten seconds.", gt=0)
    ] = 50.0
    oldest_frame_days: Annotated[
        int, described("Frames older than this are refused.", ge=1, le=MAX_DAYS)
    ] = 30
    waiting_evidence_parts: Annotated[
        int,
        described(
            "Most quarters of an hour of nodes that wait in memory for the database, about 60 KiB each."
            " Nodes that have such have equal shares; beyond its share an agent keeps its frames.",
            ge=1,
        ),
    ] = 50_000


class FrameLogSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The frame log."""

    segment_bytes: Annotated[int, described("Size of one segment file.", ge=1 << 16)] = 64 << 20
    max_bytes: Annotated[
        int, described("Oldest segments are deleted beyond this size.", ge=1 << 20)
    ] = 20 << 30


class LedgerSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The database that holds evidence, ledger and bills."""

    url: Annotated[
        str,
        described(
            "postgresql://USER@HOST/DATABASE, or sqlite:////PATH. "
            "Empty: ledger.sqlite in the state directory."
        ),
    ] = ""
    url_file: Annotated[
        str, described("A file that holds the URL instead, for one with a password.")
    ] = ""


class MeteringSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Evidence and GPU-days."""

    period_seconds: Annotated[
        float,
        described("Seconds from one storing of evidence to the next.", ge=0.1, le=MAX_SECONDS),
    ] = 30.0
    quiet_seconds: Annotated[
        float,
        described(
            "Evidence is stored when nothing was added to it for so many seconds.",
            ge=0,
            le=MAX_SECONDS,
        ),
    ] = 120.0
    settle_delay_seconds: Annotated[
        float,
        described(
            "A day goes to the ledger so many seconds after its end.", ge=0, le=30 * MAX_SECONDS
        ),
    ] = 3600.0
    revise_days: Annotated[
        int,
        described(
            "Late evidence changes days of the ledger that are at most this old.", ge=1, le=MAX_DAYS
        ),
    ] = 62


class Audit(msgspec.Struct, frozen=True, kw_only=True):
    """The audit log."""

    key_file: Annotated[
        str,
        described(
            "The key that signs it, made where there is none. Empty: in the state directory."
        ),
    ] = ""
    origin: Annotated[
        str,
        described(
            "The log's name in a new key and all checkpoints; no spaces, no plus signs.",
            pattern=r"^[^\s+]+\Z",
            max_length=200,
        ),
    ] = "railscope.audit"
    ask_agents: Annotated[
        int,
        described(
            "After a start nothing is signed until so many agents have shown what they hold.", ge=0
        ),
    ] = 3
    ask_seconds: Annotated[
        float,
        described(
            "Longest wait for them; then it is recorded that fewer came.", ge=0, le=MAX_SECONDS
        ),
    ] = 180.0
    verify_seconds: Annotated[
        float,
        described(
            "Seconds from one reading of the whole log to the next. 0: it is not read.",
            ge=0,
            le=30 * MAX_SECONDS,
        ),
    ] = 86_400.0


class BillingSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Bills."""

    seller_file: Annotated[
        str,
        described(
            "Who bills and which account pays for each tenant (TOML). Empty: each tenant pays."
        ),
    ] = ""


class Influx(msgspec.Struct, frozen=True, kw_only=True):
    """Export of views to a server with InfluxDB's line protocol, version 2."""

    url: Annotated[str, described("Base URL of the server. Empty: nothing is written.")] = ""
    token_file: Annotated[str, described("File that holds the token.")] = ""
    organisation: Annotated[str, described("Organisation to write to.")] = "railscope"
    bucket: Annotated[str, described("Bucket to write to.")] = "railscope"
    interval_seconds: Annotated[
        float, described("Seconds from one write to the next.", ge=0.1, le=MAX_SECONDS)
    ] = 10.0
    max_waiting_lines: Annotated[
        int, described("Lines kept while the server is away; the oldest go first.", ge=1)
    ] = 200_000


class Tls(msgspec.Struct, frozen=True, kw_only=True):
    """TLS of the collector."""

    certificate_file: Annotated[str, described("Certificate (PEM). Empty: plain HTTP.")] = ""
    key_file: Annotated[str, described("Private key (PEM) of the certificate.")] = ""
    client_ca_file: Annotated[
        str,
        described("Certificates (PEM) whose clients may show one of theirs. Empty: tokens only."),
    ] = ""


class CollectorSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of the collector."""

    listen: Annotated[str, described("Address and port; port 0 takes a free one.")] = "0.0.0.0:9470"
    state_directory: Annotated[
        str,
        described("Where the frame log lies. systemd's STATE_DIRECTORY goes before the default."),
    ] = "/var/lib/railscope-collector"
    tokens_file: Annotated[
        str,
        described("Who may ask for what, by tokens and certificates (TOML); see docs/access.md."),
    ] = "/etc/railscope/tokens.toml"
    claims_file: Annotated[
        str, described("Who holds which GPU or node (CSV: tenant,holds,from,to). Empty: no one.")
    ] = ""
    tenants_file: Annotated[
        str,
        described(
            "Whose an owner is (CSV: tenant,source,owner,from,to). "
            "Empty: each owner is a tenant of its own."
        ),
    ] = ""
    quotas_file: Annotated[
        str, described("What tenants may use (CSV: tenant,gpu_hours,period,gpus,from,to).")
    ] = ""
    calendar_file: Annotated[
        str, described("Maintenance, outages and reservations (TOML). Empty: none.")
    ] = ""
    retired_file: Annotated[
        str, described("GPUs without capacity from an instant on (CSV: gpu,from,to,why).")
    ] = ""
    inventory_file: Annotated[
        str, described("What each node must show (CSV: node,gpus,rdma_ports,from,to).")
    ] = ""
    open_reading: Annotated[
        bool, described("Whether who shows no token may read what operators may.")
    ] = False
    stale_seconds: Annotated[
        float,
        described("A node whose newest frame is older counts as silent.", gt=0, le=MAX_SECONDS),
    ] = 30.0
    views_seconds: Annotated[
        float,
        described("Seconds from one refresh of the views to the next.", ge=0.1, le=MAX_SECONDS),
    ] = 2.0
    max_jobs: Annotated[
        int,
        described(
            "Jobs that metrics and the API tell of, 256 of one node at most; nodes take turns. Others"
            " are counted.",
            ge=0,
        ),
    ] = 5000
    straggler_seconds: Annotated[
        float,
        described(
            "GPUs of a job are compared by means over about so long: some steps of the job.",
            ge=1,
            le=MAX_SECONDS,
        ),
    ] = 60.0
    pod_jobs: Annotated[
        str,
        described(
            "Pods of a namespace whose names match this regular expression, and agree in its group "
            "`job`, are one job. Empty: each pod is one."
        ),
    ] = r"(?P<job>.+)-(?:master|worker|launcher|chief|ps|evaluator)-\d+"
    log_level: Annotated[
        str, described("debug, info, warning or error.", pattern="^(debug|info|warning|error)$")
    ] = "info"
    limits: Limits = Limits()
    frame_log: FrameLogSettings = FrameLogSettings()
    ledger: LedgerSettings = LedgerSettings()
    metering: MeteringSettings = MeteringSettings()
    audit: Audit = Audit()
    billing: BillingSettings = BillingSettings()
    influx: Influx = Influx()
    tls: Tls = Tls()
