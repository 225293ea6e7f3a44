"""Who holds the GPUs of this node, and who uses them without holding them.

    held, naming    a claim as one place tells it, whose word it is; names that people give to GPUs
    devices         the GPUs and MIG devices of the node by all their names
    kubernetes      pods, by the kubelet; pod_directories: which pods there are, by what it keeps of them
    slurm           jobs, by their control groups (slurm_groups) and what a prolog wrote (slurm_files)
    libvirt         virtual machines that GPUs were handed to (passthrough)
    claims_file     what an administrator wrote down
    told            what was told by `railscope claim`; endpoint: where it is told
    processes       who is on the GPUs; unclaimed: who of them nobody gave a GPU to
    book            what has begun and ended since the look before
    memory, durable what outlives the agent, and how it is written
    source          all of them together, as a source of the agent

A place that cannot be read ends nothing: what is not known is not free.
"""
