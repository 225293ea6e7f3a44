"""Claims in a CSV file of the node's administrator, with dates.

Its authority is that of a scheduler: only files of the collector rank above it.

    gpu,tenant,from,to
    0,team-red,2026-01-01T00:00:00Z,2026-02-01T00:00:00Z

The format is that of `railscope.claims_file`, where `gpu` may also be an index, a PCI address or /dev/nvidiaN; `*`
stands for all GPUs here. Without `from` the claim starts when the agent first reads the line. Lines about GPUs
of other nodes are ignored.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from railscope.claim_terms import ClaimAuthority
from railscope.claims_file import ClaimsFileError, ClaimsFileLine, parse_claims_file
from railscope_agent.host import Host
from railscope_agent.sampling.probe_result import ProbeFinding, format_count
from railscope_agent.tenancy import claim_provider, claims, devices as naming
from railscope_agent.tenancy.devices import ClaimableDevice, NodeDevices

SUBJECT = "claims by file"


@dataclass(slots=True)
class ClaimsFile:
    """Claims of a file, which is read at each poll and parsed when it has changed."""

    path: str
    node: Callable[[], str]
    name: str = "file"
    _content: bytes = b""
    _lines: tuple[ClaimsFileLine, ...] = ()

    def poll(
        self, host: Host, devices: NodeDevices, in_force: tuple[claims.NodeClaim, ...]
    ) -> claim_provider.ClaimReport:
        """Return the claims on this node. An invalid file changes nothing."""
        if not self.path:
            return claim_provider.absent_report(SUBJECT, "tenancy.claims_file is not set")
        try:
            content = host.read(self.path)
            if content != self._content:
                self._lines = parse_claims_file(content.decode())
                # After the parsing: an invalid file is reported in each poll, not only in the first.
                self._content = content
        # An editor may save half of a file: the claims in force must not end for it.
        except (OSError, UnicodeDecodeError, ClaimsFileError) as error:
            return claim_provider.failed_report(
                SUBJECT, error, f"correct {self.path}; its previous claims stay in force until then"
            )
        claims_here = tuple(
            claim for line in self._lines for claim in self._claims_of_line(line, devices, in_force)
        )
        detail = (
            f"{format_count(len(self._lines), 'claim')} in {self.path}, {len(claims_here)} on "
            "devices of this node"
        )
        return claim_provider.ClaimReport(claims_here, (ProbeFinding.supported(SUBJECT, detail),))

    def _claims_of_line(
        self, line: ClaimsFileLine, devices: NodeDevices, in_force: tuple[claims.NodeClaim, ...]
    ) -> Iterator[claims.NodeClaim]:
        """Yield the claims of a line on this node; a line for all GPUs includes lost ones."""
        node = self.node()
        # A file written for a cluster has short host names, while the agent's name may be a full one.
        of_node = line.gpu == "*" or line.gpu in {node, node.partition(".")[0]}
        if of_node:
            named_devices = [devices.gpu(gpu.uuid) for gpu in devices.present]
        else:
            named = naming.find_device(line.gpu, devices)
            named_devices = [named] if named else []
        by_device = {
            device.id: self._claim(line, device, node if of_node else "")
            for device in named_devices
        }
        yield from by_device.values()
        for active in in_force if of_node else ():
            # A GPU that fell off the bus is still paid for: its claim stays until the line changes.
            if active.part not in by_device and self._claim(
                line, devices.gpu(active.gpu), node
            ).has_same_content(active):
                yield active

    def _claim(self, line: ClaimsFileLine, device: ClaimableDevice, node: str) -> claims.NodeClaim:
        return claims.NodeClaim(
            source=claims.FILE_PROVIDER,
            authority=ClaimAuthority.SCHEDULER,
            workload=line.workload,
            owner=line.owner,
            tenant=line.tenant,
            node=node,
            gpu="",
            reference="" if line.start_ns is None else str(line.start_ns),
            exclusive=line.exclusive,
            system=line.system,
            start_ns=line.start_ns,
            end_ns=line.end_ns,
            uncertainty_ns=None if line.start_ns is None else 0,
        ).claim_on_device(device, line.share)
