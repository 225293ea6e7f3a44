"""Where GPUs, network cards and drives sit, how far apart they are, and which rail is whose.

pci        the PCI tree of sysfs
nccl_xml   the tree of an NCCL topology file, for virtual machines that show none
distance   how far two devices are apart, in the words of `nvidia-smi topo -m`
rails      which card is whose, by distance, NUMA node and order
rules      what the settings say of rails and roles
network    network devices with role and rail
node       the whole node, with NVLinks
matrix     the table of `nvidia-smi topo -m`
render     a node as text and as JSON
"""
