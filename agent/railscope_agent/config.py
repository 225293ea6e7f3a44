"""Settings of the agent."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

from railscope.settings import SettingsError, read_named_file
from railscope_agent.collective_settings import CollectiveSettings

PREFIX = "RAILSCOPE_AGENT_"
CLAIMS_SOCKET = "claims.sock"
"""Socket of `railscope claim` in the state directory."""
CLAIMS_PATH = "/v1/claims"
"""HTTP path of claims."""
MAX_COLLECTORS = 16
MAX_SECONDS = 86_400.0
"""Upper bound of periods and timeouts; a longer one is a mistake in the unit."""


class BurstSettings(Struct, frozen=True, kw_only=True):
    """Burst sampling: histograms over short windows."""

    enabled: bool = True
    """True if burst sampling is enabled."""
    window_seconds: Annotated[float, Meta(ge=0.02, le=1.0)] = 0.1
    """Length of a window in seconds; NICs are polled at this period."""
    interfaces: str = ""
    """Interfaces to poll: space-separated patterns. Empty: all interfaces with RDMA."""


class BudgetSettings(Struct, frozen=True, kw_only=True):
    """Resource budget of the agent on its node."""

    cpu_ratio: Annotated[float, Meta(ge=0, le=1)] = 0.03
    """Maximum share of one core. Above it, sources are read less often, the most expensive first. 0:
    no limit.
    """
    memory_bytes: Annotated[int, Meta(ge=0, le=1 << 40)] = 96 << 20
    """Maximum resident memory. Above it, unused memory is returned to the system. 0: no limit."""


class CollectorLink(Struct, frozen=True, kw_only=True):
    """Connection to the collector that frames are shipped to, one of several if `urls` lists them."""

    url: str = ""
    """Base URL, http:// or https://. Empty: no frames are shipped, unless urls lists collectors."""
    urls: Annotated[list[str], Meta(max_length=MAX_COLLECTORS)] = []
    """Base URLs of the collectors of a group, in place of url. Frames are shipped to the one that accepts them."""
    max_failures: Annotated[int, Meta(ge=1, le=1000)] = 5
    """Consecutive failed attempts after which the next collector is used."""
    failover_seconds: Annotated[float, Meta(gt=0, le=MAX_SECONDS)] = 30.0
    """Seconds without an acknowledgement after which the next collector is used."""
    token: str = ""
    """Token of this node. Prefer token_file."""
    token_file: str = ""
    """File that contains the token of this node."""
    ca_file: str = ""
    """CA certificates (PEM) trusted for https. Empty: those of the system."""
    certificate_file: str = ""
    """Client certificate (PEM) of this node for https, with or without a token."""
    key_file: str = ""
    """Private key (PEM) of the certificate."""
    push_seconds: Annotated[float, Meta(ge=0.02, le=MAX_SECONDS)] = 5.0
    """Seconds of frames per envelope."""
    timeout_seconds: Annotated[float, Meta(gt=0, le=MAX_SECONDS)] = 30.0
    """Timeout for an acknowledgement."""
    max_retry_seconds: Annotated[float, Meta(gt=0, le=MAX_SECONDS)] = 30.0
    """Maximum delay between retries while the collector is unreachable."""
    spool_bytes: Annotated[int, Meta(ge=1 << 16, le=1 << 50)] = 1 << 30
    """Maximum size of the spool on disk while the collector is unreachable."""

    @property
    def all_urls(self) -> list[str]:
        """URLs of all collectors, as listed."""
        return self.urls or [self.url] * bool(self.url)


class WitnessSettings(Struct, frozen=True, kw_only=True):
    """Witness of the collector's audit log, which detects a rewritten log by checkpoints stored here."""

    enabled: bool = True
    """Store and cosign checkpoints of the audit log of each collector that is configured."""
    period_seconds: Annotated[float, Meta(ge=0.1, le=MAX_SECONDS)] = 60.0
    """Seconds between two polls of the audit log."""
    log_key: str = ""
    """Public key of the audit log, or the absolute path of its file; for several collectors, those of all logs,
    space-separated. Empty: the first key received is trusted.
    """


class MetricsSettings(Struct, frozen=True, kw_only=True):
    """Metrics on the metrics endpoint. Frames to the collector contain every reading in any case."""

    detail: Literal["basic", "standard", "full"] = "basic"
    """basic (what overview dashboards and all alerts except RailscopeBurstPause need), standard (what the
    analysis of one node needs) or full.
    """
    groups: dict[str, Literal["off", "basic", "standard", "full"]] = {}
    """Detail by group of metrics, or off, in place of that for all groups."""
    disabled_sources: str = ""
    """Sources that are not sampled at all: space-separated names (docs/readings.md). Their readings are
    missing in frames too. Neither agent nor sources that metering or the health of GPUs needs, such as kernel, can
    be disabled.
    """


class TextfileSettings(Struct, frozen=True, kw_only=True):
    """Textfiles: series of the site in files of a directory, as of the textfile collector of node_exporter."""

    directory: str = ""
    """Directory whose files *.prom are read. Empty: none. Only trusted users should be able to write to it."""
    max_age_seconds: Annotated[int, Meta(ge=0, le=10 * 365 * 86_400)] = 0
    """Age at which a file is rejected that was not written again. 0: files have no maximum age."""
    max_file_bytes: Annotated[int, Meta(ge=1, le=16 << 20)] = 1 << 20
    """Maximum size of a file; a larger one is rejected."""
    max_total_bytes: Annotated[int, Meta(ge=1, le=64 << 20)] = 4 << 20
    """Maximum size of all files; those beyond it are rejected."""
    max_series: Annotated[int, Meta(ge=1, le=1800)] = 1000
    """Maximum number of series of all files; a file with series beyond it is rejected."""


class AgentTlsSettings(Struct, frozen=True, kw_only=True):
    """TLS of the agent's metrics endpoint."""

    certificate_file: str = ""
    """Certificate (PEM) of the metrics endpoint. Empty: plain HTTP."""
    key_file: str = ""
    """Private key (PEM) of the certificate."""


class TopologySettings(Struct, frozen=True, kw_only=True):
    """Rails of network devices, for topologies that the PCI tree does not show."""

    rails: dict[str, int] = {}
    """Rail numbers, starting at 0, by RDMA device, interface or PCI address."""
    rail_pattern: str = ""
    r"""Regular expression that matches the whole name of an RDMA device or interface; its group
    `rail` is the rail number: rail(?P<rail>\d+).
    """
    roles: dict[str, str] = {}
    """Roles by RDMA device, interface or PCI address, or by regular expression for whole names:
    compute, storage, management, bridge, virtual_function. The first match applies.
    """
    expected_megabits_per_second: dict[str, int] = {}
    """Expected line rate of a link (Mb/s), by RDMA device, interface, PCI address or role. Default:
    the highest rate that NIC and cable support.
    """
    nccl_file: str = ""
    """NCCL topology file (XML) that takes precedence over the PCI tree, as in a cloud VM."""


class PcieSettings(Struct, frozen=True, kw_only=True):
    """Expected PCIe links of GPUs, for slots that report none or a wrong one."""

    expected_lanes: dict[str, Annotated[int, Meta(ge=1, le=32)]] = {}
    """PCIe lanes by GPU model or PCI address. Default: the maximum of the slot."""
    expected_generation: dict[str, Annotated[int, Meta(ge=1, le=7)]] = {}
    """PCIe generation by GPU model or PCI address. Default: the maximum of the slot."""


class TenancySettings(Struct, frozen=True, kw_only=True):
    """Claim providers: claims on the GPUs and where to read them."""

    kubelet_socket: str = "/var/lib/kubelet/pod-resources/kubelet.sock"
    """Socket of the kubelet's PodResources API. Empty: not queried."""
    kubelet_url: str = ""
    """URL of the kubelet's pod list, for GPU shares in annotations and limits (HAMi, Volcano,
    Alibaba, Tencent): https://NODE:10250/pods. Empty: not queried.
    """
    kubelet_token_file: str = ""
    """File that contains the bearer token for kubelet_url (requires get on nodes/proxy)."""
    kubelet_ca_file: str = ""
    """CA certificate that kubelet_url is verified with. Empty: those of the system."""
    slurm_gpu_directory: str = ""
    """Directory in which a Slurm prolog writes a file of job IDs for each GPU."""
    trusted_owners: str = ""
    """Space-separated owners whose processes count as claims where no scheduler assigns GPUs:
    docker, containerd, cri-o, podman, lxc, systemd, libvirt, slurm, kubernetes.
    """
    system_owners: str = "kube-system gpu-operator nvidia-device-plugin nvidia-dra-driver-gpu"
    """Space-separated namespaces, units and containers of health checks and of the administrator's
    own use. Resource claims (DRA) of these namespaces have admin access and hold nothing.
    """
    owner_label: str = ""
    """Label of Docker containers that names their owner."""
    socket: str = ""
    """Unix socket for `railscope claim`, accessible to root only. Empty: claims.sock in the state
    directory.
    """


class AgentSettings(Struct, frozen=True, kw_only=True):
    """Settings of the agent."""

    node: str = ""
    """Name of this node. Empty: the host name."""
    listen: str = "0.0.0.0:9469"
    """Address and port of the metrics endpoint; port 0 selects a free port."""
    metrics_token: str = ""
    """Bearer token required to scrape the metrics endpoint. Prefer metrics_token_file. Empty: every
    client that can connect can read tenants, serial numbers and all readings.
    """
    metrics_token_file: str = ""
    """File that contains this token."""
    state_directory: str = "/var/lib/railscope-agent"
    """Directory of the spool and other state. systemd's STATE_DIRECTORY overrides the default."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """debug, info, warning or error."""
    read_timeout_seconds: Annotated[float, Meta(gt=0, le=MAX_SECONDS)] = 1.0
    """Minimum timeout of a read. The timeout is the period of the source, if that is longer."""
    period_seconds: dict[str, Annotated[float, Meta(ge=0.02, le=MAX_SECONDS)]] = {}
    """Seconds between two reads of a source, by its name, in place of its default. Names and defaults: docs/readings.md."""
    bursts: BurstSettings = BurstSettings()
    budget: BudgetSettings = BudgetSettings()
    collector: CollectorLink = CollectorLink()
    witness: WitnessSettings = WitnessSettings()
    metrics: MetricsSettings = MetricsSettings()
    textfile: TextfileSettings = TextfileSettings()
    tls: AgentTlsSettings = AgentTlsSettings()
    topology: TopologySettings = TopologySettings()
    pcie: PcieSettings = PcieSettings()
    tenancy: TenancySettings = TenancySettings()
    collectives: CollectiveSettings = CollectiveSettings()

    def read_metrics_token(self) -> str:
        """Return the token of the metrics endpoint; empty if there is none. Raises SettingsError."""
        if not self.metrics_token_file:
            return self.metrics_token.strip()
        token = read_named_file("metrics_token_file", self.metrics_token_file)
        if not token:
            message = (
                f"invalid metrics_token_file {self.metrics_token_file}: expected a "
                "token; the file is empty"
            )
            raise SettingsError(message)
        return token
