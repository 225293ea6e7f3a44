"""Every kind of entity that a metric or an event can describe."""

from railscope.catalog.declare import EntityKind

NODE = EntityKind("node", (), ("hostname", "kernel", "agent_version"))
CPU_MODE = EntityKind("cpu_mode", ("mode",), part_of=NODE)
LOAD_WINDOW = EntityKind("load_window", ("window",), part_of=NODE)
PRESSURE = EntityKind("pressure", ("resource", "severity"), part_of=NODE)
DISK = EntityKind("disk", ("disk",))

GPU = EntityKind(
    "gpu",
    ("gpu",),
    (
        "index",
        "model",
        "pci_address",
        "serial",
        "minor",
        "architecture",
        "compute_capability",
        "vbios",
        "inforom",
        "gsp_firmware",
        "part_number",
        "driver",
        "cuda",
        "module",
        "numa_node",
        "chassis",
        "slot",
        "tray",
        "fabric_cluster",
        "fabric_clique",
        "virtualization",
        "rail",
    ),
)
GPU_CLOCK = EntityKind("gpu_clock", ("gpu", "clock"), part_of=GPU)
GPU_ENGINE = EntityKind("gpu_engine", ("gpu", "engine"), part_of=GPU)
GPU_PIPE = EntityKind("gpu_pipe", ("gpu", "pipe"), part_of=GPU)
GPU_CACHE = EntityKind("gpu_cache", ("gpu", "memory", "outcome"), part_of=GPU)
GPU_CYCLE = EntityKind("gpu_cycle", ("gpu", "cycle"), part_of=GPU)
GPU_FAN = EntityKind("gpu_fan", ("gpu", "fan"), part_of=GPU)
GPU_THRESHOLD = EntityKind("gpu_threshold", ("gpu", "threshold"), part_of=GPU)
GPU_POWER_BOUND = EntityKind("gpu_power_bound", ("gpu", "bound"), part_of=GPU)
GPU_THROTTLE = EntityKind("gpu_throttle", ("gpu", "reason"), part_of=GPU)
GPU_ECC = EntityKind("gpu_ecc", ("gpu", "error", "lifetime"), part_of=GPU)
GPU_ECC_LOCATION = EntityKind(
    "gpu_ecc_location", ("gpu", "error", "lifetime", "location"), part_of=GPU
)
GPU_SRAM = EntityKind("gpu_sram", ("gpu", "lifetime", "protection"), part_of=GPU)
GPU_REMAP = EntityKind("gpu_remap", ("gpu", "cause"), part_of=GPU)
GPU_BANK = EntityKind("gpu_bank", ("gpu", "spares"), part_of=GPU)
GPU_PCIE_ERROR = EntityKind("gpu_pcie_error", ("gpu", "error"), part_of=GPU)
GPU_CONDITION = EntityKind("gpu_condition", ("gpu", "condition"), part_of=GPU)
GPU_C2C = EntityKind("gpu_c2c", ("gpu", "c2c_link"), part_of=GPU)
GPU_C2C_ERROR = EntityKind("gpu_c2c_error", ("gpu", "c2c_link", "error"), part_of=GPU)
GPU_REASON = EntityKind("gpu_reason", ("gpu", "reason"), part_of=GPU)
GPU_WINDOW = EntityKind("gpu_window", ("gpu", "le"), part_of=GPU)
GPU_PROCESS = EntityKind(
    "gpu_process",
    ("gpu", "pid"),
    ("process_name", "context", "gpu_instance", "compute_instance"),
    part_of=GPU,
)

NVLINK = EntityKind(
    "nvlink", ("gpu", "link"), ("version", "remote_type", "remote_pci_address"), part_of=GPU
)
NVLINK_ERROR = EntityKind("nvlink_error", ("gpu", "link", "error"), part_of=GPU)
NVLINK_RECOVERY = EntityKind("nvlink_recovery", ("gpu", "link", "outcome"), part_of=GPU)
NVLINK_BER = EntityKind("nvlink_ber", ("gpu", "link", "stage"), part_of=GPU)
NVLINK_FEC = EntityKind("nvlink_fec", ("gpu", "link", "corrected_symbols"), part_of=GPU)

MIG = EntityKind(
    "mig",
    ("gpu", "mig"),
    (
        "profile",
        "gpu_instance",
        "compute_instance",
        "mig_index",
        "compute_slots",
        "memory_slots",  # [low, high) of the GPU's 840, as in claims
    ),
    part_of=GPU,
)
MIG_PIPE = EntityKind("mig_pipe", ("gpu", "mig", "pipe"), part_of=GPU)
CLAIM = EntityKind("claim", ("gpu", "claim"), part_of=GPU)
VGPU = EntityKind("vgpu", ("gpu", "vgpu"), ("vgpu_type", "virtual_machine"), part_of=GPU)

INTERFACE = EntityKind("interface", ("interface",))
"""Network interface of the kernel: without a rail, as RDMA traffic of a rail bypasses the kernel."""
NIC = EntityKind(
    "nic",
    ("interface",),
    ("driver", "pci_address", "firmware", "rdma_device", "rail", "role"),
)
NIC_PRIORITY = EntityKind("nic_priority", ("interface", "priority"), part_of=NIC)
NIC_WINDOW = EntityKind("nic_window", ("interface", "direction", "le"), part_of=NIC)
NIC_LANE = EntityKind("nic_lane", ("interface", "lane"), part_of=NIC)
NIC_TRAFFIC_CLASS = EntityKind("nic_traffic_class", ("interface", "traffic_class"), part_of=NIC)
NIC_BUFFER = EntityKind("nic_buffer", ("interface", "buffer"), part_of=NIC)
NIC_BUFFER_THRESHOLD = EntityKind(
    "nic_buffer_threshold", ("interface", "buffer", "threshold"), part_of=NIC
)
NIC_DIRECTION = EntityKind("nic_direction", ("interface", "direction"), part_of=NIC)
NIC_ECN = EntityKind("nic_ecn", ("interface", "side", "priority"), part_of=NIC)
NIC_DCQCN = EntityKind("nic_dcqcn", ("interface", "parameter"), part_of=NIC)
NIC_SETTINGS = EntityKind(
    "nic_settings",
    ("interface",),
    (
        "firmware",
        "mtu",
        "autonegotiation",
        "fec",
        "pause",
        "pfc",
        "trust",
        "dscp_map",
        "applications",
        "dcbx",
        "traffic_classes",
        "bandwidth",
        "scheduling",
        "rate_limits",
        "buffer_of_priority",
        "ecn_notification",
        "ecn_reaction",
        "np_cnp_dscp",
        "np_cnp_prio",
        "rdma_cm_tos",
        "rdma_cm_mode",
        "rdma_traffic_class",
        "gid_types",
    ),
    part_of=NIC,
)
NIC_TRANSCEIVER = EntityKind(
    "nic_transceiver",
    ("interface",),
    ("type", "vendor", "part_number", "revision", "serial", "media", "length_metres"),
    part_of=NIC,
)
NIC_TRANSCEIVER_THRESHOLD = EntityKind(
    "nic_transceiver_threshold", ("interface", "threshold"), part_of=NIC
)
NIC_NEIGHBOUR = EntityKind(
    "nic_neighbour",
    ("interface",),
    ("switch", "switch_port", "chassis", "management_address", "port_description", "vlan"),
    part_of=NIC,
)

RDMA_PORT = EntityKind(
    "rdma_port",
    ("device", "port"),
    (
        "driver",
        "pci_address",
        "firmware",
        "board",
        "hca",
        "link_layer",
        "interface",
        "rail",
        "role",
    ),
)
RDMA_COUNTER = EntityKind("rdma_counter", ("device", "port", "counter"), part_of=RDMA_PORT)

PCIE = EntityKind("pcie", ("pci_address",), ("role", "vendor", "device", "driver", "numa_node"))
PCIE_AER = EntityKind("pcie_aer", ("pci_address", "severity", "error"), part_of=PCIE)
PCIE_ERROR = EntityKind("pcie_error", ("pci_address", "severity"), part_of=PCIE)
PCIE_ROOT_ERROR = EntityKind("pcie_root_error", ("pci_address", "severity"), part_of=PCIE)

ENERGY_DOMAIN = EntityKind("energy_domain", ("domain",), part_of=NODE)
POWER_LIMIT = EntityKind("power_limit", ("domain", "limit"), part_of=NODE)
MEMORY_CONTROLLER = EntityKind("memory_controller", ("controller",), ("model",))
DIMM = EntityKind(
    "dimm",
    ("controller", "dimm"),
    ("slot", "location", "memory_type", "device_width", "edac_mode"),
    part_of=MEMORY_CONTROLLER,
)
SENSOR = EntityKind("sensor", ("chip", "address", "sensor"))
SENSOR_LIMIT = EntityKind("sensor_limit", ("chip", "address", "sensor", "limit"), part_of=SENSOR)
SENSOR_ALARM = EntityKind("sensor_alarm", ("chip", "address", "sensor", "alarm"), part_of=SENSOR)

GDS_OPERATION = EntityKind("gds_operation", ("operation",), part_of=NODE)
GDS_ERROR = EntityKind("gds_error", ("error",), part_of=NODE)
GPUDIRECT_MODULE = EntityKind("gpudirect_module", ("module",), ("version",), part_of=NODE)
NFS_MOUNT = EntityKind(
    "nfs_mount", ("export", "mount_point", "protocol"), ("version", "security", "connections")
)
NFS_EVENT = EntityKind(
    "nfs_event", ("export", "mount_point", "protocol", "event"), part_of=NFS_MOUNT
)
NFS_OPERATION = EntityKind(
    "nfs_operation", ("export", "mount_point", "protocol", "operation"), part_of=NFS_MOUNT
)
LUSTRE_CLIENT = EntityKind("lustre_client", ("filesystem", "client"))
LUSTRE_OPERATION = EntityKind(
    "lustre_operation", ("filesystem", "client", "operation"), part_of=LUSTRE_CLIENT
)
LUSTRE_TARGET = EntityKind(
    "lustre_target", ("filesystem", "client", "target"), part_of=LUSTRE_CLIENT
)
LUSTRE_REQUEST = EntityKind(
    "lustre_request", ("filesystem", "client", "target", "request"), part_of=LUSTRE_CLIENT
)
CEPH_CLIENT = EntityKind("ceph_client", ("cluster", "client"))
CEPH_OPERATION = EntityKind(
    "ceph_operation", ("cluster", "client", "operation"), part_of=CEPH_CLIENT
)
NVME_DRIVE = EntityKind(
    "nvme_drive", ("drive",), ("controller", "disks", "model", "serial", "firmware", "transport")
)
NVME_WARNING = EntityKind("nvme_warning", ("drive", "warning"), part_of=NVME_DRIVE)
NVME_DIRECTION = EntityKind("nvme_direction", ("drive", "direction"), part_of=NVME_DRIVE)

BOND = EntityKind("bond", ("bond",), ("mode",))
BOND_MEMBER = EntityKind("bond_member", ("bond", "interface"), part_of=BOND)
ECN_CODE = EntityKind("ecn_code", ("codepoint",), part_of=NODE)

XID = EntityKind("xid", ("pci_address", "xid"))
SXID = EntityKind("sxid", ("nvswitch", "sxid", "severity"))
GPU_ADDRESS = EntityKind("gpu_address", ("pci_address",))
GPU_EVENT = EntityKind("gpu_event", ("pci_address", "event"))
LINK_CHANGE = EntityKind("link_change", ("interface", "state"))
PORT_MODULE = EntityKind("port_module", ("pci_address", "module"))
AER_MESSAGE = EntityKind("aer_message", ("pci_address", "severity"))

SOURCE = EntityKind("source", ("source",))
ABSENCE = EntityKind("absence", ("source", "reason"), part_of=SOURCE)
BUDGET = EntityKind("budget", ("resource",), part_of=NODE)
HUNG_DEVICE = EntityKind("hung_device", ("device",), part_of=NODE)
DROP = EntityKind("drop", ("reason",), part_of=NODE)

CLUSTER = EntityKind("cluster", ())
RAIL = EntityKind("rail", ("rail",))
TENANT = EntityKind("tenant", ("tenant",))
TENANT_STATE = EntityKind("tenant_state", ("tenant", "state"), part_of=TENANT)
TENANT_PERIOD = EntityKind("tenant_period", ("tenant", "period"), part_of=TENANT)
JOB = EntityKind("job", ("tenant", "source", "workload"))
STRAGGLER = EntityKind(
    "straggler", ("tenant", "source", "workload", "measure", "node", "gpu"), part_of=JOB
)
GPU_HOLDER = EntityKind("gpu_holder", ("node", "gpu", "source", "workload"), ("tenant",))
ADMINISTRATORS_FILE = EntityKind("administrators_file", ("file",))
GPU_TIME_STATE = EntityKind("gpu_time_state", ("state",))
FLEET_NODE = EntityKind("fleet_node", ("node",))
FLEET_GPU = EntityKind("fleet_gpu", ("node", "gpu"))
INVENTORY_NODE = EntityKind("inventory_node", ("node", "state"))
INVENTORY_STATE = EntityKind("inventory_state", ("state",))
REJECTION = EntityKind("rejection", ("reason",))
