"""Claims on the GPUs of this node, and use of GPUs without a claim.

    claims            the claim type, reports of providers, conversion of wall clock times
    devices           GPUs and MIG devices of the node by all their names
    kubernetes        claims of pods, from the kubelet; pods: pods that run, and the shares they request
    slurm             claims of jobs, from control groups and files of a prolog (slurm_files)
    virtual_machines  claims of virtual machines with passed-through GPUs
    claims_file       claims in a file of the administrator
    command_claims    claims made with `railscope claim`, which `agent.endpoint.claims_endpoint` receives
    gpu_processes     processes on the GPUs and their owners; use without a claim
    claim_placement   devices for claims on a number of GPUs
    claim_tracker     claims in force; starts and ends since the previous poll; saved state

`agent.sources.tenancy` combines them as a source of the agent.

A claim provider that cannot be read ends no claim: a device of unknown state is not assumed free.
"""
