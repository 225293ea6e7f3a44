"""Every kind of entity a metric or an event can be about."""

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
        "vbios",
        "driver",
        "rail",
    ),
)
GPU_CLOCK = EntityKind("gpu_clock", ("gpu", "clock"), part_of=GPU)
GPU_THROTTLE = EntityKind("gpu_throttle", ("gpu", "reason"), part_of=GPU)
GPU_ECC = EntityKind("gpu_ecc", ("gpu", "error", "lifetime"), part_of=GPU)
GPU_REMAP = EntityKind("gpu_remap", ("gpu", "cause"), part_of=GPU)

NIC = EntityKind(
    "nic",
    ("interface",),
    ("driver", "pci_address", "firmware", "rdma_device", "rail"),
)
NIC_PRIORITY = EntityKind("nic_priority", ("interface", "priority"), part_of=NIC)
NIC_LANE = EntityKind("nic_lane", ("interface", "lane"), part_of=NIC)

RDMA_PORT = EntityKind(
    "rdma_port",
    ("device", "port"),
    ("driver", "pci_address", "firmware", "board", "hca", "link_layer", "interface", "rail"),
)
RDMA_COUNTER = EntityKind("rdma_counter", ("device", "port", "counter"), part_of=RDMA_PORT)

PCIE = EntityKind("pcie", ("pci_address",), ("role", "vendor", "device", "driver", "numa_node"))
PCIE_AER = EntityKind("pcie_aer", ("pci_address", "severity", "error"), part_of=PCIE)

XID = EntityKind("xid", ("pci_address", "xid"))
SXID = EntityKind("sxid", ("nvswitch", "sxid", "severity"))
GPU_ADDRESS = EntityKind("gpu_address", ("pci_address",))
LINK_CHANGE = EntityKind("link_change", ("interface", "state"))
AER_MESSAGE = EntityKind("aer_message", ("pci_address", "severity"))

SOURCE = EntityKind("source", ("source",))
ABSENCE = EntityKind("absence", ("source", "reason"), part_of=SOURCE)
DROP = EntityKind("drop", ("reason",), part_of=NODE)

CLUSTER = EntityKind("cluster", ())
RAIL = EntityKind("rail", ("rail",))
TENANT = EntityKind("tenant", ("tenant",))
TENANT_STATE = EntityKind("tenant_state", ("tenant", "state"), part_of=TENANT)
GPU_TIME_STATE = EntityKind("gpu_time_state", ("state",))
FLEET_NODE = EntityKind("fleet_node", ("node",))
REJECTION = EntityKind("rejection", ("reason",))
