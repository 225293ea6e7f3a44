"""Expected against present devices: the administrators' inventory and the fleet."""

from railscope.catalog.declare import Kind, Metric, Unit, per
from railscope.catalog.entities import (
    FLEET_GPU,
    INVENTORY_NODE,
    INVENTORY_STATE,
)

DEVICES = (
    "present, missing and unknown (of a stale node, or without any answer) add up to what the "
    "inventory states; unexpected are those beyond it"
)

INVENTORY_NODE_STATE = Metric(
    "railscope_inventory_node",
    Kind.GAUGE,
    INVENTORY_NODE,
    help="Whether a node is present, stale, missing (in the inventory, but it has never reported) or "
    "unexpected (it reports and is not in the inventory); 1 for the state it is in.",
    origin="inventory file, frames",
)
INVENTORY_NODES = Metric(
    "railscope_inventory_nodes",
    Kind.GAUGE,
    INVENTORY_STATE,
    help="Nodes in each state of railscope_inventory_node.",
    origin="inventory file, frames",
)
INVENTORY_GPUS = Metric(
    "railscope_inventory_gpus",
    Kind.GAUGE,
    INVENTORY_NODE,
    help=f"GPUs of a node that is in the inventory, by state: {DEVICES}.",
    origin="inventory file, frames of the GPU source",
)
INVENTORY_RDMA_PORTS = Metric(
    "railscope_inventory_rdma_ports",
    Kind.GAUGE,
    INVENTORY_NODE,
    help=f"RDMA ports of a node that is in the inventory, by state: {DEVICES}.",
    origin="inventory file, frames of the RDMA source",
)
GONE_GPU_AGE = Metric(
    "railscope_gone_gpu_age_seconds",
    Kind.GAUGE,
    FLEET_GPU,
    unit=Unit.SECONDS,
    scale=per(10**9),
    help="Time since the last sample of a GPU that its node showed before and does not show now, "
    "nor does another; the account holds it for unknown until it is back or retired.",
    origin="frames of the GPU source, retired file",
)
RETIRED_GPU_REPORTING = Metric(
    "railscope_retired_gpu_reporting",
    Kind.GAUGE,
    FLEET_GPU,
    help="Whether a GPU that is retired reports all the same (1) or not (0); it has no capacity in the "
    "account. The node is the one that it reports from, or was in last.",
    origin="frames of the GPU source, retired file",
)
