"""Names of events in words."""

_TITLES = {"claim_start": "job started", "claim_end": "job ended", "link_change": "link", "gpu_event": "driver event"}  # fmt: skip
_NAMES = {"gpu": "GPU", "nic": "NIC", "pcie": "PCIe", "sxid": "SXid", "nccl": "NCCL"}


def title_of(name: str) -> str:
    """Return the name of an event in words, as the beginning of a line."""
    words = _TITLES.get(name, name.replace("_", " "))
    first, _, rest = words.partition(" ")
    return f"{_NAMES.get(first, first.capitalize())} {rest}".rstrip()
