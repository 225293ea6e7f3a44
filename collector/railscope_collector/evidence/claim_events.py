"""Claims from events of agents (`railscope.catalog.tenancy`): starts, reports and ends.

A node reports claims of the GPUs that are in it: a claim holds only while the GPU is there. Starts
and ends are placed by the boot clock of the node where the event has it, else by its wall clock. Of
several reports of one claim `first_report_key` selects one, in whatever order they arrived.
"""

from __future__ import annotations

import re
from typing import NamedTuple, TypeAlias

import msgspec

from railscope import claim_terms, timestamps, wire
from railscope.catalog import tenancy
from railscope_collector.evidence import EvidenceError

STARTS = frozenset({tenancy.CLAIM_START_EVENT.name, tenancy.UNCLAIMED_START_EVENT.name})
ENDS = frozenset({tenancy.CLAIM_END_EVENT.name, tenancy.UNCLAIMED_END_EVENT.name})
_AUTHORITIES = {
    authority.label: authority
    for authority in claim_terms.ClaimAuthority
    if authority
    not in {claim_terms.ClaimAuthority.REVIEW, claim_terms.ClaimAuthority.SCHEDULER_LIST}
}
_WHOLE = (0, claim_terms.GPU_CAPACITY)
# At most 19 digits, which is a 64-bit integer: a longer text would cost time to convert.
_TIMESTAMP = re.compile(r"\d{1,19}", re.ASCII)
_COUNT = re.compile(r"[1-9]\d{0,3}", re.ASCII)
_KEY_WORDS = 2
MAX_CHARACTERS = 400
"""Maximum length of a name: a database cannot index much longer ones."""


_UNPLACED, _LISTED = "@", "/"

# Other facts are ignored and not an error: newer agents may add some.
_READ = frozenset({
    "level", "source", "owner", "tenant", "workload", "start_ns", "start_boot_ns", "end_ns",
    "end_boot_ns", "uncertainty_ns", "compute", "memory", "exclusive", "share", "count", "system",
    "allocated_twice", "profile",
})  # fmt: skip


def unplaced_key(node: str) -> str:
    """Return the key for a node's claims without a device, in mappings by GPU."""
    return _UNPLACED + node


def is_gpu(key: str) -> bool:
    """True for a GPU, false for a key from `unplaced_key`."""
    return not key.startswith(_UNPLACED)


def is_gpu_name(text: str) -> bool:
    """True for a name that a node may report a GPU by.

    Other keys of evidence and ledger begin with a character of their own, or are GPUs of job lists, `node/address`.
    """
    return len(text) <= MAX_CHARACTERS and is_gpu(text) and _LISTED not in text


class ClaimEventError(EvidenceError, ValueError):
    """Event that is not a valid claim; the message states the reason."""


class ReportedClaim(msgspec.Struct, frozen=True, array_like=True, order=True, gc=False):
    """A claim that a node reported; without a device, `gpu` is `unplaced_key` its node."""

    start_ns: int
    gpu: str
    node: str
    id: str
    authority: claim_terms.ClaimAuthority
    source: str = ""
    owner: str = ""
    tenant: str = ""
    workload: str = ""
    compute: tuple[int, int] = _WHOLE
    memory: tuple[int, int] = _WHOLE
    exclusive: bool = True
    system: bool = False
    uncertainty_ns: int = 0
    profile: str = ""
    boot: str = ""
    """Boot of the node in which it was reported, and the time of its first report in that boot."""
    reported_ns: int = 0
    share: str = ""
    """The fraction of the device, or of each device; empty for none (`exclusive` applies then)."""
    count: int = 0
    start_boot_ns: int = -1
    """The start on the boot clock, by which `start_ns` was placed; -1 where the event has none."""
    end_ns: int = 0
    """The end by the wall clock, of a claim that ended in an earlier boot than the event's; else 0."""
    trusted_from_ns: int = 0
    """Horizon of the report: the part of the claim before it was reported late. 0 for no limit."""
    received_ns: int = 0
    """Receipt of the report by a collector, which determines the order of reports; 0 where not recorded."""
    allocated_twice: bool = False
    """True if the scheduler gave the device to another claim as well, or one of the two has admin access."""


class ReportedEnd(msgspec.Struct, frozen=True, array_like=True, order=True, gc=False):
    """End of a claim as reported by a node. It may be received before the claim is."""

    timestamp_ns: int
    gpu: str
    node: str
    id: str
    trusted_from_ns: int = 0
    """Horizon of the report, `MAX_AGE_NS` before its receipt: an earlier end counts from here. 0 for no limit."""

    @property
    def trusted_end_ns(self) -> int:
        """The end as it counts."""
        return max(self.timestamp_ns, self.trusted_from_ns)


ClaimFact: TypeAlias = ReportedClaim | ReportedEnd


class ReportingBoot(NamedTuple):
    """A node in one of its boots, and the start of the boot on the collector's clock."""

    node: str
    boot: str
    since_boot_ns: int


def parse_claim_event(reporter: ReportingBoot, event: wire.WireEvent) -> ClaimFact:
    """Parse a claim event. Raises ClaimEventError."""
    device, claim, facts = _claim_texts(event)
    gpu = device or unplaced_key(reporter.node)
    if event.name in ENDS:
        end_ns = _edge_timestamp(reporter, facts, "end", event.wall_ns)
        return ReportedEnd(end_ns, gpu, reporter.node, claim)
    if facts.get("level") not in _AUTHORITIES:
        expected = ", ".join(_AUTHORITIES)
        message = f"claim {claim!r}: invalid level {facts.get('level')!r}: expected {expected}"
        raise ClaimEventError(message)
    unclaimed = event.name == tenancy.UNCLAIMED_START_EVENT.name
    compute, share = _slots(facts, "compute"), _share(facts)
    return ReportedClaim(
        start_ns=_edge_timestamp(reporter, facts, "start", event.wall_ns),
        gpu=gpu,
        node=reporter.node,
        id=claim,
        authority=claim_terms.ClaimAuthority.PROCESS if unclaimed else _AUTHORITIES[facts["level"]],
        source=facts.get("source", ""),
        owner=facts.get("owner", ""),
        tenant=facts.get("tenant", ""),
        workload=facts.get("workload", ""),
        compute=compute,
        memory=_slots(facts, "memory") if facts.get("memory") else compute,
        exclusive=_is_exclusive(claim, facts) and not share,
        system=facts.get("system") == "true",
        uncertainty_ns=_timestamp(facts, "uncertainty_ns", 0),
        profile=facts.get("profile", ""),
        boot=reporter.boot,
        reported_ns=reporter.since_boot_ns + event.boot_ns,
        share=share,
        count=_count(device, claim, facts),
        start_boot_ns=_timestamp(facts, "start_boot_ns", -1),
        end_ns=_timestamp(facts, "end_ns", 0),
        allocated_twice=facts.get("allocated_twice") == "true",
    )


def with_receipt(fact: ClaimFact, horizon_ns: int, received_ns: int) -> ClaimFact:
    """Return the fact with the receipt and the horizon of its envelope, overriding stated values."""
    if isinstance(fact, ReportedEnd):
        return msgspec.structs.replace(fact, trusted_from_ns=horizon_ns)
    return msgspec.structs.replace(
        fact,
        reported_ns=max(fact.reported_ns, horizon_ns),
        trusted_from_ns=horizon_ns,
        received_ns=received_ns,
    )


def first_report_key(claim: ReportedClaim) -> tuple[int, int, bool, ReportedClaim]:
    """Sort key of the reports of one claim: the first one received counts, and no other.

    Of those in one envelope it is the first by the node's clocks, and of equal times the one by a
    boot clock: the report nearest to the start, where two clocks have drifted apart least. Only the
    receipt is beyond the control of the node, so a later report cannot precede an earlier one.
    """
    return claim.received_ns, claim.reported_ns, claim.start_boot_ns < 0, claim


def is_repetition(claim: ReportedClaim, other: ReportedClaim) -> bool:
    """True if another report adds nothing: agents report claims in force repeatedly."""
    if claim.reported_ns > other.reported_ns or claim.received_ns > other.received_ns:
        return False
    # The same start by the boot clock is placed a little differently by each envelope: that is no new report.
    is_same_start = claim.start_boot_ns >= 0 and claim.boot == other.boot
    is_same_start &= claim.start_boot_ns == other.start_boot_ns
    start_ns = claim.start_ns if is_same_start else other.start_ns
    is_same = claim == msgspec.structs.replace(
        other,
        reported_ns=claim.reported_ns,
        start_ns=start_ns,
        trusted_from_ns=claim.trusted_from_ns,
        received_ns=claim.received_ns,
    )
    return is_same and claim.trusted_from_ns <= other.trusted_from_ns


def _claim_texts(event: wire.WireEvent) -> tuple[str, str, dict[str, str]]:
    """Return the GPU (empty for none), the claim id and the supported facts. Raises ClaimEventError."""
    key = event.entity.key
    if len(key) != _KEY_WORDS or not key[1] or not is_gpu(key[0]) or _LISTED in key[0]:
        message = f"invalid key of a claim {key}: expected a GPU, which may be empty, and an id"
        raise ClaimEventError(message)
    gpu, claim = key
    facts = {name: text for name, text in event.facts.items() if name in _READ}
    # PostgreSQL stores no NUL in texts.
    if any("\0" in text or len(text) > MAX_CHARACTERS for text in (gpu, claim, *facts.values())):
        message = (
            f"invalid claim {claim[:MAX_CHARACTERS]!r}: expected texts of at most {MAX_CHARACTERS}"
            " characters without NUL"
        )
        raise ClaimEventError(message)
    return gpu, claim, facts


def _edge_timestamp(
    reporter: ReportingBoot, facts: dict[str, str], edge: str, otherwise: int
) -> int:
    """Return the start or end of a claim on the collector's clock.

    It is placed by the boot clock, or else by the wall clock. Raises ClaimEventError.
    """
    boot_ns = _timestamp(facts, f"{edge}_boot_ns", -1)
    # The wall clock of the node only if the event has no other: it may be wrong, or have been stepped since.
    if boot_ns < 0:
        wall_ns = _timestamp(facts, f"{edge}_ns", otherwise)
        if not 0 <= wall_ns < timestamps.FOREVER_NS:
            message = f"invalid time of the event {wall_ns}: expected nanoseconds since 1970"
            raise ClaimEventError(message)
        return wall_ns
    placed_ns = reporter.since_boot_ns + boot_ns
    if not 0 <= placed_ns < timestamps.FOREVER_NS:
        message = f"invalid {edge}_boot_ns {boot_ns}: expected a time within this boot"
        raise ClaimEventError(message)
    return placed_ns


def _timestamp(facts: dict[str, str], name: str, otherwise: int) -> int:
    text = facts.get(name, "")
    if not text:
        return otherwise
    if not _TIMESTAMP.fullmatch(text) or int(text) >= timestamps.FOREVER_NS:
        message = f"invalid {name} {text!r}: expected nanoseconds"
        raise ClaimEventError(message)
    return int(text)


def _count(gpu: str, claim: str, facts: dict[str, str]) -> int:
    """Return the number of GPUs of a claim without a device; 0 for one with a device."""
    text = facts.get("count", "")
    if gpu and not text:
        return 0
    if gpu or not _COUNT.fullmatch(text) or int(text) > claim_terms.MAX_COUNT:
        message = f"claim {claim!r}: invalid count {text!r}: expected 1 to {claim_terms.MAX_COUNT} without a GPU"
        raise ClaimEventError(message)
    return int(text)


def _is_exclusive(claim: str, facts: dict[str, str]) -> bool:
    """True unless the event has `exclusive=false`. Raises ClaimEventError."""
    text = facts.get("exclusive", "")
    if text not in {"", "true", "false"}:
        message = f"claim {claim!r}: invalid exclusive {text!r}: expected true or false"
        raise ClaimEventError(message)
    return text != "false"


def _share(facts: dict[str, str]) -> str:
    """Return the fraction in lowest terms; empty for none. Raises ClaimEventError."""
    text = facts.get("share", "")
    try:
        return claim_terms.share_text(claim_terms.parse_share(text)) if text else ""
    except claim_terms.ShareError as error:
        raise ClaimEventError(*error.args) from error


def _slots(facts: dict[str, str], name: str) -> tuple[int, int]:
    try:
        return claim_terms.parse_slots(facts[name]) if facts.get(name) else _WHOLE
    except claim_terms.SlotsError as error:
        message = f"invalid {name} {error}"
        raise ClaimEventError(message) from error
