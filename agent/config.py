"""Settings of the agent."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec

from railscope.settings import SettingsError, described

PREFIX = "RAILSCOPE_AGENT_"
MAX_SECONDS = 86_400.0
"""Upper bound of periods and timeouts; a longer one is a mistake in the unit."""


class Periods(msgspec.Struct, frozen=True, kw_only=True):
    """Periods of the sources: seconds between two reads."""

    gpu: Annotated[
        float, described("Load, memory, clocks, power, temperature of GPUs.", ge=0.02)
    ] = 1.0
    gpu_activity: Annotated[
        float, described("SMs, pipes and links of GPUs and MIG devices (GPM).", ge=0.12)
    ] = 1.0
    gpu_event: Annotated[
        float, described("Events of the NVIDIA driver.", ge=0.02, le=MAX_SECONDS)
    ] = 1.0
    gpu_process: Annotated[
        float, described("Processes on GPUs, virtual GPUs.", ge=0.1, le=MAX_SECONDS)
    ] = 5.0
    gpu_burst: Annotated[
        float, described("Samples that the NVIDIA driver takes by itself.", ge=0.1, le=10.0)
    ] = 1.0
    mig: Annotated[float, described("Memory and state of MIG devices.", ge=0.1, le=MAX_SECONDS)] = (
        5.0
    )
    tenancy: Annotated[
        float, described("Who holds GPUs and parts of them.", ge=0.5, le=MAX_SECONDS)
    ] = 5.0
    gpu_health: Annotated[
        float, described("ECC, remapped rows, PCIe, fabric and recovery of GPUs.", ge=0.1)
    ] = 10.0
    gpu_verdict: Annotated[
        float, described("The verdict on the health of GPUs.", ge=0.1, le=MAX_SECONDS)
    ] = 5.0
    gpu_device: Annotated[
        float, described("Who has the GPUs on the PCI bus.", ge=0.1, le=MAX_SECONDS)
    ] = 10.0
    nvlink: Annotated[
        float, described("State, bytes and errors of NVLinks.", ge=0.1, le=MAX_SECONDS)
    ] = 10.0
    gpu_settings: Annotated[
        float, described("Limits, thresholds, modes, errors by place of GPUs.", ge=0.1)
    ] = 60.0
    nvlink_signal: Annotated[
        float, described("Error ratios and corrected codewords of NVLinks.", ge=0.1)
    ] = 60.0
    rdma: Annotated[
        float, described("Counters and state of RDMA ports.", ge=0.02, le=MAX_SECONDS)
    ] = 1.0
    nic: Annotated[
        float, described("Driver statistics of network cards.", ge=0.1, le=MAX_SECONDS)
    ] = 1.0
    link: Annotated[
        float, described("Speed, carrier and error correction of interfaces.", ge=0.1)
    ] = 5.0
    nic_settings: Annotated[
        float, described("What network cards are set to, and its changes.", ge=1)
    ] = 60.0
    optics: Annotated[
        float, described("Transceivers and cables of network cards.", ge=1, le=MAX_SECONDS)
    ] = 60.0
    neighbour: Annotated[
        float, described("Switch ports that network cards are plugged into (LLDP).", ge=1)
    ] = 10.0
    pcie: Annotated[float, described("PCIe links and errors.", ge=0.1, le=MAX_SECONDS)] = 10.0
    host: Annotated[
        float, described("Processors, memory, disks, network of the server.", ge=0.1)
    ] = 5.0
    protocols: Annotated[
        float, described("TCP, UDP, IP, backlogs, connection tracking, bonds.", ge=0.1)
    ] = 5.0
    gpudirect: Annotated[
        float, described("GPUDirect Storage, GPUDirect modules.", ge=0.1, le=MAX_SECONDS)
    ] = 10.0
    storage: Annotated[
        float, described("Clients of NFS, Lustre and Ceph.", ge=0.1, le=MAX_SECONDS)
    ] = 10.0
    drives: Annotated[
        float, described("State and health of NVMe drives.", ge=1.0, le=MAX_SECONDS)
    ] = 60.0
    power: Annotated[
        float, described("Energy of the processors (RAPL).", ge=0.1, le=MAX_SECONDS)
    ] = 5.0
    sensors: Annotated[
        float, described("Temperatures, fans, voltages, power.", ge=1.0, le=MAX_SECONDS)
    ] = 10.0
    memory_errors: Annotated[
        float, described("Errors of the main memory.", ge=1.0, le=MAX_SECONDS)
    ] = 60.0
    kernel: Annotated[float, described("The kernel log.", ge=0.02, le=MAX_SECONDS)] = 1.0
    agent: Annotated[float, described("The agent's own state.", ge=0.1, le=MAX_SECONDS)] = 1.0


class Bursts(msgspec.Struct, frozen=True, kw_only=True):
    """Burst sampling: histograms over short windows."""

    enabled: Annotated[bool, described("Whether to look that often.")] = True
    window_seconds: Annotated[
        float, described("Length of a window. The cards are looked at as often.", ge=0.02, le=1.0)
    ] = 0.1
    interfaces: Annotated[
        str,
        described(
            "Interfaces to look at, as patterns set apart by spaces. Empty: those with RDMA."
        ),
    ] = ""


class Budget(msgspec.Struct, frozen=True, kw_only=True):
    """Resource budget of the agent on its node."""

    cpu_ratio: Annotated[
        float,
        described(
            "Share of one core. Above it sources are read less often, the dear ones first. 0: no bound.",
            ge=0,
            le=1,
        ),
    ] = 0.03
    memory_bytes: Annotated[
        int,
        described(
            "Resident memory. Above it what is spare is given back. 0: no bound.", ge=0, le=1 << 40
        ),
    ] = 96 << 20


class CollectorLink(msgspec.Struct, frozen=True, kw_only=True):
    """Connection to the collector that frames are shipped to."""

    url: Annotated[str, described("Base URL, http:// or https://. Empty: nothing is shipped.")] = ""
    token: Annotated[str, described("Token of this node. Better kept in token_file.")] = ""
    token_file: Annotated[str, described("File that holds the token of this node.")] = ""
    ca_file: Annotated[
        str, described("Certificates (PEM) to trust for https. Empty: those of the system.")
    ] = ""
    certificate_file: Annotated[
        str, described("Certificate (PEM) of this node for https, beside a token or without one.")
    ] = ""
    key_file: Annotated[str, described("Private key (PEM) of the certificate.")] = ""
    push_seconds: Annotated[
        float, described("Seconds of frames in one envelope.", ge=0.02, le=MAX_SECONDS)
    ] = 5.0
    timeout_seconds: Annotated[
        float, described("Longest wait for an acknowledgement.", gt=0, le=MAX_SECONDS)
    ] = 30.0
    max_retry_seconds: Annotated[
        float,
        described(
            "Longest pause between two tries while the collector is away.", gt=0, le=MAX_SECONDS
        ),
    ] = 30.0
    spool_bytes: Annotated[
        int,
        described("Most bytes kept on disk for a collector that is away.", ge=1 << 16, le=1 << 50),
    ] = 1 << 30


class CustodySettings(msgspec.Struct, frozen=True, kw_only=True):
    """Witness of the collector's audit log, which detects a rewritten log by checkpoints stored here."""

    enabled: Annotated[bool, described("Whether to hold them, where there is a collector.")] = True
    period_seconds: Annotated[
        float, described("Seconds from one look at the log to the next.", ge=0.1, le=MAX_SECONDS)
    ] = 60.0
    log_key: Annotated[
        str,
        described(
            "The log's public key, or the whole path of its file. Empty: the one first seen counts."
        ),
    ] = ""


class Tls(msgspec.Struct, frozen=True, kw_only=True):
    """TLS of the agent's metrics endpoint."""

    certificate_file: Annotated[
        str, described("Certificate (PEM) of the page. Empty: plain HTTP.")
    ] = ""
    key_file: Annotated[str, described("Private key (PEM) of the certificate.")] = ""


class TopologySettings(msgspec.Struct, frozen=True, kw_only=True):
    """Rails of network devices, for topologies that the PCI tree does not show."""

    rails: Annotated[
        dict[str, int],
        described("Rails, counted from 0, by RDMA device, interface or PCI address."),
    ] = {}
    rail_pattern: Annotated[
        str,
        described(
            "Regular expression for whole names of RDMA devices or interfaces, with the number"
            r" of the rail: rail(?P<rail>\d+)."
        ),
    ] = ""
    roles: Annotated[
        dict[str, str],
        described(
            "Roles by RDMA device, interface or PCI address, or by regular expression for whole"
            " names: compute, storage, management, bridge, virtual_function. The first that fits"
            " counts."
        ),
    ] = {}
    expected_megabits: Annotated[
        dict[str, int],
        described(
            "Line rate (Mb/s) that a link should have, by RDMA device, interface, PCI address or role;"
            " else what card and cable can do."
        ),
    ] = {}
    nccl_file: Annotated[
        str,
        described("NCCL topology file (XML) that goes before the PCI tree, as in a cloud's guest."),
    ] = ""


class PcieSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Expected PCIe links of GPUs, for slots that report none or a wrong one."""

    expected_lanes: Annotated[
        dict[str, Annotated[int, msgspec.Meta(ge=1, le=32)]],
        described("Lanes by GPU model or PCI address; else the slot's own maximum."),
    ] = {}
    expected_generation: Annotated[
        dict[str, Annotated[int, msgspec.Meta(ge=1, le=7)]],
        described("PCIe generation by GPU model or PCI address; else the slot's own maximum."),
    ] = {}


class TenancySettings(msgspec.Struct, frozen=True, kw_only=True):
    """Claim providers: claims on the GPUs and where to read them."""

    kubelet_socket: Annotated[
        str, described("Socket of the kubelet's PodResources. Empty: it is not asked.")
    ] = "/var/lib/kubelet/pod-resources/kubelet.sock"
    kubelet_url: Annotated[
        str,
        described(
            "The kubelet's list of pods, for shares of GPUs by annotations and limits (HAMi, Volcano,"
            " Alibaba, Tencent): https://NODE:10250/pods. Empty: it is not asked."
        ),
    ] = ""
    kubelet_token_file: Annotated[
        str, described("File that holds the bearer token of kubelet_url (needs nodes/proxy, get).")
    ] = ""
    kubelet_ca_file: Annotated[
        str,
        described("Certificate that kubelet_url is checked against. Empty: those of the system."),
    ] = ""
    slurm_gpu_files: Annotated[
        str, described("Directory where a prolog of Slurm keeps a file of job ids for each GPU.")
    ] = ""
    slurm_job_files: Annotated[
        str, described("Directory where a prolog of Slurm keeps what scontrol says of each job.")
    ] = ""
    gres_conf: Annotated[
        str, described("gres.conf of Slurm: which device each of its indices is.")
    ] = "/etc/slurm/gres.conf"
    file: Annotated[
        str, described("File of claims (.toml, else CSV) with dates, by the administrator's word.")
    ] = ""
    trust: Annotated[
        str,
        described(
            "Owners whose processes count as claims where no scheduler gives out GPUs, set apart by"
            " spaces: docker, containerd, cri-o, podman, systemd, libvirt, slurm, kubernetes."
        ),
    ] = ""
    system: Annotated[
        str,
        described(
            "Namespaces, units and containers of health checks and the administrator's own use, set"
            " apart by spaces."
        ),
    ] = "kube-system gpu-operator"
    owner_label: Annotated[
        str, described("Label of Docker containers that names whose they are.")
    ] = ""
    socket: Annotated[
        str,
        described(
            "Unix socket of `railscope claim`, for root only. Empty: claims.sock in the state directory."
        ),
    ] = ""
    listen: Annotated[
        str, described("Address and port of `railscope claim` beside its socket. Empty: none.")
    ] = ""
    token: Annotated[
        str, described("Bearer token that the address asks for. Better kept in token_file.")
    ] = ""
    token_file: Annotated[str, described("File that holds that token.")] = ""


class AgentSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of the agent."""

    node: Annotated[str, described("Name of this node. Empty: the host name.")] = ""
    listen: Annotated[str, described("Address and port of the page; port 0 takes a free one.")] = (
        "0.0.0.0:9469"
    )
    page_token: Annotated[
        str,
        described(
            "Bearer token that a scrape of the page must show. Better kept in page_token_file. Empty:"
            " anyone who reaches the page sees tenants, serial numbers and all readings."
        ),
    ] = ""
    page_token_file: Annotated[str, described("File that holds that token.")] = ""
    state_directory: Annotated[
        str, described("Where the spool lies. systemd's STATE_DIRECTORY goes before the default.")
    ] = "/var/lib/railscope-agent"
    log_level: Annotated[
        str, described("debug, info, warning or error.", pattern="^(debug|info|warning|error)$")
    ] = "info"
    deadline_seconds: Annotated[
        float,
        described("A read may take its period, but never less than this.", gt=0, le=MAX_SECONDS),
    ] = 1.0
    periods: Periods = Periods()
    bursts: Bursts = Bursts()
    budget: Budget = Budget()
    collector: CollectorLink = CollectorLink()
    custody: CustodySettings = CustodySettings()
    tls: Tls = Tls()
    topology: TopologySettings = TopologySettings()
    pcie: PcieSettings = PcieSettings()
    tenancy: TenancySettings = TenancySettings()

    def read_page_token(self) -> str:
        """Return the token of the metrics endpoint; empty if there is none. Raises SettingsError."""
        if not self.page_token_file:
            return self.page_token.strip()
        try:
            token = Path(self.page_token_file).read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            message = f"page_token_file {self.page_token_file}: cannot be read: {error}"
            raise SettingsError(message) from error
        if not token:
            message = f"page_token_file {self.page_token_file}: expected a token, found nothing"
            raise SettingsError(message)
        return token
