"""Names of events in words."""

_TITLES = {
    "claim_start": "job started",
    "claim_end": "released by job",
    "unclaimed_use_start": "use without a claim began",
    "unclaimed_use_end": "use without a claim ended",
    "link_change": "link",
    "gpu_event": "driver event",
}
_NAMES = {"gpu": "GPU", "nic": "NIC", "pcie": "PCIe", "sxid": "SXid", "nccl": "NCCL"}


def title_of(name: str) -> str:
    """Return the name of an event in words, as the beginning of a line."""
    words = _TITLES.get(name, name.replace("_", " "))
    first, _, rest = words.partition(" ")
    return f"{_NAMES.get(first, first.capitalize())} {rest}".rstrip()
