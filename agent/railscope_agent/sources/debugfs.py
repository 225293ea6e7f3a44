"""Finding about a directory of debugfs, which only root may enter."""

from __future__ import annotations

from collections.abc import Iterator

from railscope.reading import Absent, reason_of
from railscope_agent.host import Host
from railscope_agent.sampling import probe_result

_REMEDY = "run the agent as root, or grant it CAP_DAC_READ_SEARCH"


def denied_findings(host: Host, subject: str, root: str) -> Iterator[probe_result.ProbeFinding]:
    """Yield a finding if the agent may not enter a directory of debugfs."""
    try:
        host.names(root)
    except OSError as error:
        if reason_of(error) is Absent.DENIED:
            detail = f"permission denied for {root}"
            yield probe_result.ProbeFinding(
                subject, probe_result.ProbeVerdict.DENIED, detail, _REMEDY
            )
