"""Names of events in words."""

_TITLES = {
    "claim_start": "job started",
    "claim_end": "released by job",
    "unclaimed_use_start": "use without a claim began",
    "unclaimed_use_end": "use without a claim ended",
    "link_change": "link",
    "gpu_event": "driver event",
}
_WORDS = {
    "aer": "AER",
    "ecc": "ECC",
    "fec": "FEC",
    "gpu": "GPU",
    "mig": "MIG",
    "nccl": "NCCL",
    "nic": "NIC",
    "nvlink": "NVLink",
    "pcie": "PCIe",
    "rdma": "RDMA",
    "sxid": "SXid",
    "xid": "Xid",
}


def in_words(name: str) -> str:
    """Return a name with underscores in words."""
    return " ".join(_WORDS.get(word, word) for word in name.split("_"))


def title_of(name: str) -> str:
    """Return the name of an event in words, as the beginning of a line."""
    title = in_words(_TITLES.get(name, name))
    return title[:1].upper() + title[1:]
