"""What should be there against what is there.

inventory_file   which GPUs and RDMA ports administrators say a node must show
shown            what the schemas and the newest frames of nodes show
compare          the one held against the other
watch            both together, and GPUs that are gone or retired, at each refresh of the views
view             the result as cells and as JSON
"""
