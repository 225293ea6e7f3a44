"""Claims on the GPUs of this node, and use of GPUs without a claim.

    held, naming    the claim type with its authority; GPU names as users and administrators write them
    devices         GPUs and MIG devices of the node by all their names
    kubernetes      claims of pods, from the kubelet; pod_directories: pods in the kubelet's directories
    slurm           claims of jobs, from control groups (slurm_groups) and files of a prolog (slurm_files)
    libvirt         claims of virtual machines with passed-through GPUs (passthrough)
    claims_file     claims in a file of the administrator
    command_claims  claims made with `railscope claim`, which `agent.endpoint.claims_endpoint` receives
    processes       processes on the GPUs and their owners; unclaimed: use without a claim
    book            claims in force; starts and ends since the previous poll
    memory, durable state that survives a restart of the agent, and atomic file writes

`agent.sources.tenancy` combines them as a source of the agent.

A claim provider that cannot be read ends no claim: a device of unknown state is not assumed free.
"""
