"""Settings of the agent."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec

from railscope.settings import SettingsError, described

PREFIX = "RAILSCOPE_AGENT_"
CLAIMS_SOCKET = "claims.sock"
"""Socket of `railscope claim` in the state directory."""
CLAIMS_PATH = "/v1/claims"
"""HTTP path of claims."""
MAX_SECONDS = 86_400.0
"""Upper bound of periods and timeouts; a longer one is a mistake in the unit."""


# fmt: off
class SourcePeriods(msgspec.Struct, frozen=True, kw_only=True):
    """Periods of the sources: seconds between two reads."""

    gpu: Annotated[float, described("GPU load, memory, clocks, power and temperature.", ge=0.02)] = 1.0
    gpu_activity: Annotated[float, described("Activity of SMs, pipes and links of GPUs and MIG devices (GPM).", ge=0.12)] = 1.0
    gpu_event: Annotated[float, described("Events of the NVIDIA driver.", ge=0.02, le=MAX_SECONDS)] = 1.0
    gpu_process: Annotated[float, described("Processes on GPUs, and virtual GPUs.", ge=0.1, le=MAX_SECONDS)] = 5.0
    gpu_burst: Annotated[float, described("Samples that the NVIDIA driver buffers (nvmlDeviceGetSamples).", ge=0.1, le=10.0)] = 1.0
    mig: Annotated[float, described("Memory and state of MIG devices.", ge=0.1, le=MAX_SECONDS)] = 5.0
    tenancy: Annotated[float, described("Claims on GPUs and on parts of GPUs.", ge=0.5, le=MAX_SECONDS)] = 5.0
    gpu_health: Annotated[float, described("ECC, remapped rows, PCIe, fabric and recovery state of GPUs.", ge=0.1)] = 10.0
    gpu_verdict: Annotated[float, described("Health verdict of each GPU.", ge=0.1, le=MAX_SECONDS)] = 5.0
    gpu_device: Annotated[float, described("State of the GPUs on the PCI bus: driver, virtual machine, unbound, missing.", ge=0.1, le=MAX_SECONDS)] = 10.0
    nvlink: Annotated[float, described("State, bytes and errors of NVLinks.", ge=0.1, le=MAX_SECONDS)] = 10.0
    gpu_settings: Annotated[float, described("GPU limits, thresholds and modes, and GPU errors by location.", ge=0.1)] = 60.0
    nvlink_signal: Annotated[float, described("Error ratios and corrected codewords of NVLinks.", ge=0.1)] = 60.0
    rdma: Annotated[float, described("Counters and state of RDMA ports.", ge=0.02, le=MAX_SECONDS)] = 1.0
    nic: Annotated[float, described("Driver statistics of NICs.", ge=0.1, le=MAX_SECONDS)] = 1.0
    link: Annotated[float, described("Speed, carrier and forward error correction of interfaces.", ge=0.1)] = 5.0
    nic_settings: Annotated[float, described("NIC settings and their changes.", ge=1)] = 60.0
    optics: Annotated[float, described("Transceivers and cables of NICs.", ge=1, le=MAX_SECONDS)] = 60.0
    neighbour: Annotated[float, described("Switch ports that NICs are connected to (LLDP).", ge=1)] = 10.0
    pcie: Annotated[float, described("PCIe links and errors.", ge=0.1, le=MAX_SECONDS)] = 10.0
    host: Annotated[float, described("CPUs, memory, disks and network of the node.", ge=0.1)] = 5.0
    protocols: Annotated[float, described("TCP, UDP, IP, backlogs, connection tracking and bonds.", ge=0.1)] = 5.0
    gpudirect: Annotated[float, described("GPUDirect Storage and GPUDirect kernel modules.", ge=0.1, le=MAX_SECONDS)] = 10.0
    storage: Annotated[float, described("NFS, Lustre and Ceph clients.", ge=0.1, le=MAX_SECONDS)] = 10.0
    drives: Annotated[float, described("State and health of NVMe drives.", ge=1.0, le=MAX_SECONDS)] = 60.0
    power: Annotated[float, described("CPU energy (RAPL).", ge=0.1, le=MAX_SECONDS)] = 5.0
    sensors: Annotated[float, described("Temperatures, fans, voltages and power.", ge=1.0, le=MAX_SECONDS)] = 10.0
    memory_errors: Annotated[float, described("Errors of main memory.", ge=1.0, le=MAX_SECONDS)] = 60.0
    kernel: Annotated[float, described("The kernel log.", ge=0.02, le=MAX_SECONDS)] = 1.0
    agent: Annotated[float, described("The agent's own state.", ge=0.1, le=MAX_SECONDS)] = 1.0


class BurstSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Burst sampling: histograms over short windows."""

    enabled: Annotated[bool, described("Enable burst sampling.")] = True
    window_seconds: Annotated[float, described("Length of a window in seconds; NICs are polled at this period.", ge=0.02, le=1.0)] = 0.1
    interfaces: Annotated[str, described("Interfaces to poll: space-separated patterns. Empty: all interfaces with RDMA.")] = ""


class BudgetSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Resource budget of the agent on its node."""

    cpu_ratio: Annotated[float, described("Maximum share of one core. Above it, sources are read less often, the most expensive first. 0: no limit.", ge=0, le=1)] = 0.03
    memory_bytes: Annotated[int, described("Maximum resident memory. Above it, unused memory is returned to the system. 0: no limit.", ge=0, le=1 << 40)] = 96 << 20


class CollectorLink(msgspec.Struct, frozen=True, kw_only=True):
    """Connection to the collector that frames are shipped to."""

    url: Annotated[str, described("Base URL, http:// or https://. Empty: no frames are shipped.")] = ""
    token: Annotated[str, described("Token of this node. Prefer token_file.")] = ""
    token_file: Annotated[str, described("File that contains the token of this node.")] = ""
    ca_file: Annotated[str, described("CA certificates (PEM) trusted for https. Empty: those of the system.")] = ""
    certificate_file: Annotated[str, described("Client certificate (PEM) of this node for https, with or without a token.")] = ""
    key_file: Annotated[str, described("Private key (PEM) of the certificate.")] = ""
    push_seconds: Annotated[float, described("Seconds of frames per envelope.", ge=0.02, le=MAX_SECONDS)] = 5.0
    timeout_seconds: Annotated[float, described("Timeout for an acknowledgement.", gt=0, le=MAX_SECONDS)] = 30.0
    max_retry_seconds: Annotated[float, described("Maximum delay between retries while the collector is unreachable.", gt=0, le=MAX_SECONDS)] = 30.0
    spool_bytes: Annotated[int, described("Maximum size of the spool on disk while the collector is unreachable.", ge=1 << 16, le=1 << 50)] = 1 << 30


class WitnessSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Witness of the collector's audit log, which detects a rewritten log by checkpoints stored here."""

    enabled: Annotated[bool, described("Store and cosign checkpoints of the collector's audit log, if a collector is configured.")] = True
    period_seconds: Annotated[float, described("Seconds between two polls of the audit log.", ge=0.1, le=MAX_SECONDS)] = 60.0
    log_key: Annotated[str, described("Public key of the audit log, or the absolute path of its file. Empty: the first key received is trusted.")] = ""


class AgentTlsSettings(msgspec.Struct, frozen=True, kw_only=True):
    """TLS of the agent's metrics endpoint."""

    certificate_file: Annotated[str, described("Certificate (PEM) of the metrics endpoint. Empty: plain HTTP.")] = ""
    key_file: Annotated[str, described("Private key (PEM) of the certificate.")] = ""


class TopologySettings(msgspec.Struct, frozen=True, kw_only=True):
    """Rails of network devices, for topologies that the PCI tree does not show."""

    rails: Annotated[dict[str, int], described("Rail numbers, starting at 0, by RDMA device, interface or PCI address.")] = {}
    rail_pattern: Annotated[str, described(r"Regular expression that matches the whole name of an RDMA device or interface; its group `rail` is the rail number: rail(?P<rail>\d+).")] = ""
    roles: Annotated[dict[str, str], described("Roles by RDMA device, interface or PCI address, or by regular expression for whole names: compute, storage, management, bridge, virtual_function. The first match applies.")] = {}
    expected_megabits_per_second: Annotated[dict[str, int], described("Expected line rate of a link (Mb/s), by RDMA device, interface, PCI address or role. Default: the highest rate that NIC and cable support.")] = {}
    nccl_file: Annotated[str, described("NCCL topology file (XML) that takes precedence over the PCI tree, as in a cloud VM.")] = ""


class PcieSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Expected PCIe links of GPUs, for slots that report none or a wrong one."""

    expected_lanes: Annotated[dict[str, Annotated[int, msgspec.Meta(ge=1, le=32)]], described("PCIe lanes by GPU model or PCI address. Default: the maximum of the slot.")] = {}
    expected_generation: Annotated[dict[str, Annotated[int, msgspec.Meta(ge=1, le=7)]], described("PCIe generation by GPU model or PCI address. Default: the maximum of the slot.")] = {}


class TenancySettings(msgspec.Struct, frozen=True, kw_only=True):
    """Claim providers: claims on the GPUs and where to read them."""

    kubelet_socket: Annotated[str, described("Socket of the kubelet's PodResources API. Empty: not queried.")] = "/var/lib/kubelet/pod-resources/kubelet.sock"
    kubelet_url: Annotated[str, described("URL of the kubelet's pod list, for GPU shares in annotations and limits (HAMi, Volcano, Alibaba, Tencent): https://NODE:10250/pods. Empty: not queried.")] = ""
    kubelet_token_file: Annotated[str, described("File that contains the bearer token for kubelet_url (requires get on nodes/proxy).")] = ""
    kubelet_ca_file: Annotated[str, described("CA certificate that kubelet_url is verified with. Empty: those of the system.")] = ""
    slurm_gpu_directory: Annotated[str, described("Directory in which a Slurm prolog writes a file of job IDs for each GPU.")] = ""
    slurm_job_directory: Annotated[str, described("Directory in which a Slurm prolog writes the output of `scontrol show job -d` for each job.")] = ""
    gres_conf: Annotated[str, described("Slurm's gres.conf, which maps GPU indices to devices.")] = "/etc/slurm/gres.conf"
    claims_file: Annotated[str, described("CSV file of dated claims on GPUs of this node, with the authority of a scheduler.")] = ""
    trusted_owners: Annotated[str, described("Space-separated owners whose processes count as claims where no scheduler assigns GPUs: docker, containerd, cri-o, podman, systemd, libvirt, slurm, kubernetes.")] = ""
    system_owners: Annotated[str, described("Space-separated namespaces, units and containers of health checks and of the administrator's own use.")] = "kube-system gpu-operator"
    owner_label: Annotated[str, described("Label of Docker containers that names their owner.")] = ""
    socket: Annotated[str, described("Unix socket for `railscope claim`, accessible to root only. Empty: claims.sock in the state directory.")] = ""
    listen: Annotated[str, described("Address and port for `railscope claim`, in addition to the socket. Empty: none.")] = ""
    token: Annotated[str, described("Bearer token required at that address. Prefer token_file.")] = ""
    token_file: Annotated[str, described("File that contains this token.")] = ""


class AgentSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of the agent."""

    node: Annotated[str, described("Name of this node. Empty: the host name.")] = ""
    listen: Annotated[str, described("Address and port of the metrics endpoint; port 0 selects a free port.")] = "0.0.0.0:9469"
    metrics_token: Annotated[str, described("Bearer token required to scrape the metrics endpoint. Prefer metrics_token_file. Empty: every client that can connect can read tenants, serial numbers and all readings.")] = ""
    metrics_token_file: Annotated[str, described("File that contains this token.")] = ""
    state_directory: Annotated[str, described("Directory of the spool and other state. systemd's STATE_DIRECTORY overrides the default.")] = "/var/lib/railscope-agent"
    log_level: Annotated[str, described("debug, info, warning or error.", pattern="^(debug|info|warning|error)$")] = "info"
    read_timeout_seconds: Annotated[float, described("Minimum timeout of a read. The timeout is the period of the source, if that is longer.", gt=0, le=MAX_SECONDS)] = 1.0
    period_seconds: SourcePeriods = SourcePeriods()
    bursts: BurstSettings = BurstSettings()
    budget: BudgetSettings = BudgetSettings()
    collector: CollectorLink = CollectorLink()
    witness: WitnessSettings = WitnessSettings()
    tls: AgentTlsSettings = AgentTlsSettings()
    topology: TopologySettings = TopologySettings()
    pcie: PcieSettings = PcieSettings()
    tenancy: TenancySettings = TenancySettings()

    def read_metrics_token(self) -> str:
        """Return the token of the metrics endpoint; empty if there is none. Raises SettingsError."""
        if not self.metrics_token_file:
            return self.metrics_token.strip()
        try:
            token = Path(self.metrics_token_file).read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            message = f"cannot read metrics_token_file {self.metrics_token_file}: {error}"
            raise SettingsError(message) from error
        if not token:
            message = (
                f"invalid metrics_token_file {self.metrics_token_file}: expected a "
                "token; the file is empty"
            )
            raise SettingsError(message)
        return token
