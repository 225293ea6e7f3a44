"""Usage evidence in the ledger's database. All calls block, and raise UnusableLedgerError."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from hashlib import sha256
from typing import Any, NamedTuple

import structlog
from sqlalchemy import Connection, func, select

from railscope.timestamps import FOREVER_NS
from railscope_collector.evidence import (
    boot_starts,
    claim_events,
    evidence_contents,
    evidence_records,
    evidence_tables,
    further_parts,
    gpu_evidence,
    loaded_facts,
    node_intervals,
    node_parts,
)
from railscope_collector.ledger import audit_outbox, schema, transactions
from railscope_collector.ledger.database import Database

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

log = structlog.get_logger(__name__)

_LEVEL = 6


class EncodedInterval(NamedTuple):
    """An interval ready to be written: its name, node and time, and its content compressed with zstd."""

    name: str
    node: str
    start_ns: int
    end_ns: int
    gpus: dict[str, int]
    """First sample of each GPU in it."""
    content: bytes
    trusted_start_ns: int = 0
    """The latest trusted start of a boot that was reported late; 0 for none."""
    contents: str = ""
    """Subjects of its facts, for the index of contents."""
    boots: tuple[boot_starts.RecordedBoot, ...] = ()
    """Starts of its boot on its GPUs."""


def compress_interval(
    interval: node_intervals.EvidenceInterval,
    content: bytes,
    contacts: node_intervals.Contacts = node_intervals.NO_CONTACTS,
) -> EncodedInterval:
    """Return an interval ready to be written; `content` is its encoding."""
    # Of the uncompressed content: another version of zstd may compress it differently.
    name = sha256(content).hexdigest()
    gpus = {
        gpu: max(
            s.spans[0].first_ns,
            node_intervals.floor_ns(contacts, gpu, interval.node, [s.received_ns]),
        )
        for gpu, s in interval.gpus.items()
        if s.spans
    }
    packed = zstd.compress(content, _LEVEL)
    trusted_start_ns = max(
        (sighted.trusted_start_ns for sighted in interval.gpus.values()), default=0
    )
    edges = interval.node, interval.start_ns, interval.end_ns
    contents = evidence_contents.PartContents.collect(interval).encode()
    boots = boot_starts.RecordedBoot.collect(interval)
    return EncodedInterval(name, *edges, gpus, packed, trusted_start_ns, contents, boots)


def _recording_ns(connection: Connection, wall_ns: Callable[[], int]) -> int:
    """Return the present time, for rows that become visible soon after it, or never.

    Changes are searched by it: a process that is paused between this and its commit loses the transaction.
    """
    transactions.limit_idle_time(connection)
    return wall_ns()


def _find_new_boots(
    connection: Connection, boots: Iterable[boot_starts.RecordedBoot], recorded_ns: int
) -> list[dict[str, Any]]:
    """Return rows for starts of boots that were not recorded as early."""
    recorded_boots: list[boot_starts.RecordedBoot] = []
    for few in evidence_tables.group_items(sorted({boot.key for boot in boots})):
        recorded_boots += boot_starts.read_starts(connection.execute(boot_starts.select_known(few)))
    return boot_starts.lower_rows(recorded_boots, boots, recorded_ns)


class EvidenceStore:
    """Facts of all collectors that write this database."""

    def __init__(
        self,
        database: Database,
        quarantine: evidence_records.EvidenceQuarantine | None = None,
        check_term: Callable[[Connection], None] = lambda _connection: None,
    ) -> None:
        self._database = database
        self._check_term = check_term
        """Raises LostLeaseError if another collector is active, which stores the same facts."""
        self.quarantine = quarantine or evidence_records.EvidenceQuarantine()
        self._contents = evidence_contents.KnownContents()
        self._index = evidence_contents.ContentsIndex()

    # Writing -----------------------------------------------------------------------------------

    def write(
        self,
        intervals: Sequence[EncodedInterval],
        facts: Sequence[claim_events.ClaimFact],
        wall_ns: Callable[[], int],
        early: Mapping[tuple[str, str], int] | None = None,
    ) -> None:
        """Add facts; existing ones are not added again. Raises LostLeaseError.

        `early` has the start of claims that began before first contact with their GPU, by GPU and
        node.
        """
        trust = [
            {"fact": interval.name, "trusted_from_ns": interval.trusted_start_ns}
            for interval in intervals
            if interval.trusted_start_ns
        ]
        since = dict(early or {})
        for interval in intervals:
            for gpu, first_ns in interval.gpus.items():
                key = (gpu, interval.node)
                since[key] = min(first_ns, since.get(key, first_ns))
        with self._database.transaction(writes=True) as connection:
            self._check_term(connection)
            recorded_ns = _recording_ns(connection, wall_ns)
            self._index.begin(connection)
            remember_contents = self._index.record(connection, intervals)
            rows = [
                schema.to_row(
                    evidence_tables.evidence_intervals,
                    interval,
                    part=interval.name,
                    recorded_ns=recorded_ns,
                )
                for interval in intervals
            ]
            starts, ends = [], []
            for fact in facts:
                row = evidence_tables.claim_row(fact, recorded_ns)
                if isinstance(fact, claim_events.ReportedClaim):
                    starts.append(row)
                    if fact.allocated_twice:
                        trust.append({"fact": row["fact"], "trusted_from_ns": FOREVER_NS})
                    continue
                ends.append(row)
                if fact.trusted_from_ns:
                    trust.append({"fact": row["fact"], "trusted_from_ns": fact.trusted_from_ns})
            boots = [boot for interval in intervals for boot in interval.boots]
            for table, new in (
                (evidence_tables.evidence_intervals, rows),
                (boot_starts.boot_starts, _find_new_boots(connection, boots, recorded_ns)),
                (evidence_tables.reported_claims, starts),
                (evidence_tables.claim_ends, ends),
                (evidence_tables.claim_end_trust, trust),
                (evidence_tables.gpu_nodes, evidence_tables.find_new_homes(connection, since)),
            ):
                evidence_tables.insert_new_rows(connection, table, new)
            # Agents delete their frames after this commit, so it must be on the standby as well.
            transactions.await_standby(connection)
        remember_contents()

    def write_contacts(self, found: node_intervals.Contacts) -> None:
        """Add first receipts of GPUs. Raises LostLeaseError."""
        with self._database.transaction(writes=True) as connection:
            self._check_term(connection)
            rows = evidence_tables.contact_rows(found)
            evidence_tables.insert_new_rows(connection, evidence_tables.first_contacts, rows)
            transactions.await_standby(connection)

    def write_file(self, kind: str, text: str, wall_ns: Callable[[], int]) -> bool:
        """Add a version of a file, unless it is the newest already."""
        digest = sha256(text.encode()).hexdigest()
        with self._database.transaction(writes=True) as connection:
            recorded_ns = _recording_ns(connection, wall_ns)
            newest = evidence_tables.newest_file(connection, kind)
            if newest and newest.digest == digest:
                return False
            if newest:
                # Later than the newest version, whatever the clock: the order of versions decides which one counts.
                recorded_ns = max(recorded_ns, newest.recorded_ns + 1)
            before = newest.content if newest else ""
            version = evidence_records.FileVersion(kind, text, before, digest, recorded_ns)
            row = schema.to_row(evidence_tables.file_versions, version, content=text)
            evidence_tables.insert_new_rows(connection, evidence_tables.file_versions, [row])
            for name, draft in version.drafts():
                audit_outbox.put_record(connection, name, draft)
        return True

    def record_problems(self, problems: Sequence[evidence_records.EvidenceProblem]) -> None:
        """Put problems into the outbox of the audit log, each once."""
        if not problems:
            return
        with self._database.transaction(writes=True) as connection:
            for problem in problems:
                try:
                    audit_outbox.put_record(connection, problem.id, problem.draft())
                # One problem that cannot be recorded, such as one with an invalid name, must not withhold the others.
                except audit_outbox.OutboxError as error:
                    log.error(
                        "evidence_problem_write_failed",
                        kind=problem.kind,
                        gpu=problem.gpu,
                        problem=str(error),
                    )

    # Reading -----------------------------------------------------------------------------------

    def files(self) -> gpu_evidence.AdministratorInputs:
        """Return administrators' files by the newest version of each, and decisions."""
        with self._database.transaction() as connection:
            newest = {
                kind: evidence_tables.newest_file(connection, kind)
                for kind in evidence_tables.PARSERS
            }
            decided = evidence_tables.read_decisions(connection)
        parsed = {
            kind: evidence_tables.PARSERS[kind](row.content) for kind, row in newest.items() if row
        }
        return gpu_evidence.AdministratorInputs(**parsed, decisions=decided)

    def file(self, kind: str) -> str | None:
        """Return the newest version of one file; None if none was ever stored."""
        with self._database.transaction() as connection:
            row = evidence_tables.newest_file(connection, kind)
        return row.content if row else None

    def homes(self, gpus: Collection[str] | None = None) -> dict[str, dict[str, int]]:
        """Return for some GPUs, or all, the nodes they were seen in, and since when."""
        with self._database.transaction() as connection:
            return read_homes(connection, gpus)

    def contacts(self) -> node_intervals.Contacts:
        """Return first receipts of all GPUs, by node."""
        with self._database.transaction() as connection:
            return evidence_tables.read_contacts(connection)

    def count_contacts(self) -> int:
        """Return the number of rows of first receipts, of which none is ever changed or deleted."""
        with self._database.transaction() as connection:
            return connection.execute(
                select(func.count()).select_from(evidence_tables.first_contacts)
            ).scalar_one()

    def evidence(self, gpu: str, start_ns: int, end_ns: int) -> gpu_evidence.AssembledGpu:
        """Return everything about a GPU in a window, with the facts around it that affect it."""
        found = self.homes().get(gpu, {})
        loaded = self.load([gpu], {gpu: set(found)}, start_ns, end_ns)
        return loaded.assemble(gpu, self.files())

    def load(
        self,
        gpus: Sequence[str],
        homes_of: dict[str, set[str]],
        start_ns: int,
        end_ns: int,
        *,
        is_partial: bool = False,
    ) -> loaded_facts.LoadedFacts:
        """Return the facts about some GPUs in a window, with the facts around it that affect it.

        Raises ArchivedEvidenceError if some of them are only in the archive, unless `is_partial`.
        """
        nodes = sorted({node for gpu in gpus for node in homes_of.get(gpu, ())})
        window = (start_ns - evidence_tables.CONTEXT_NS, end_ns + evidence_tables.CONTEXT_NS)
        homes = {gpu: set(homes_of.get(gpu, ())) for gpu in gpus}
        with self._database.transaction() as connection:
            homes |= read_placement_homes(connection, nodes)
        nodes = sorted({node for gpu_nodes in homes.values() for node in gpu_nodes})
        # In a transaction of its own, as it writes: the snapshot below must see its rows.
        self._index.complete(self._database, nodes, self.quarantine.interval)
        with self._database.transaction() as connection:
            parts = {
                node: {
                    part: interval
                    for part, content in evidence_tables.read_intervals(
                        connection, node, start_ns, end_ns
                    )
                    if (interval := self.quarantine.interval(part, content))
                }
                for node in nodes
            }
            known_contacts = evidence_tables.read_contacts(connection, nodes)
            source = node_parts.PartSource(
                connection, self.quarantine, self._contents, self._index, is_partial
            )
            decided = evidence_tables.read_decisions(connection)
            counts_ns = loaded_facts.find_counts(
                connection, self.quarantine, nodes, (start_ns, end_ns)
            )
            shared = [gpu for gpu in sorted(homes) if len(homes[gpu]) > 1]
            starts_ns = loaded_facts.find_starts(
                connection, self.quarantine, shared, (start_ns, end_ns)
            )
            beyond = further_parts.BeyondWindow(
                source, window, parts, known_contacts, decided, counts_ns, starts_ns
            )
            found = {gpu: beyond.find(gpu, homes[gpu]) for gpu in sorted(homes) if homes[gpu]}
            for further in found.values():
                for node, further_intervals in further.by_node.items():
                    parts[node] |= further_intervals
            intervals = {node: list(parts[node].values()) for node in nodes}
            if not is_partial:
                for node in nodes:
                    evidence_contents.check_present(connection, node, intervals[node], window)
            loaded = loaded_facts.LoadedFacts(
                intervals, {}, {}, homes, self.quarantine, contacts=known_contacts
            )
            since_ns = {gpu: further.since_ns for gpu, further in found.items()}
            loaded.read_claims(connection, nodes, (start_ns, end_ns), since_ns)
            return loaded._replace(boots=loaded.read_boots(connection, end_ns))

    def load_each(
        self, gpus: Sequence[str], homes_of: dict[str, set[str]], start_ns: int, end_ns: int
    ) -> dict[str, Callable[[], loaded_facts.LoadedFacts]]:
        """Return a call per GPU that returns its facts: of all together or, if some are only in the archive, alone."""
        try:
            loaded = self.load(gpus, homes_of, start_ns, end_ns)
        # One GPU with archived evidence must not stop the metering of all others.
        except evidence_contents.ArchivedEvidenceError:
            return {gpu: partial(self.load, [gpu], homes_of, start_ns, end_ns) for gpu in gpus}
        return dict.fromkeys(gpus, lambda: loaded)

    def late_boots(self) -> dict[str, list[node_intervals.EvidenceInterval]]:
        """Return the intervals with boots that were reported late, by GPU."""
        intervals_by_gpu: dict[str, list[node_intervals.EvidenceInterval]] = {}
        query = select(
            evidence_tables.evidence_intervals.c.part, evidence_tables.evidence_intervals.c.content
        ).join(
            evidence_tables.claim_end_trust,
            evidence_tables.claim_end_trust.c.fact == evidence_tables.evidence_intervals.c.part,
        )
        with self._database.transaction() as connection:
            rows = connection.execute(
                query.order_by(evidence_tables.evidence_intervals.c.part)
            ).all()
        for row in rows:
            interval = self.quarantine.interval(row.part, row.content)
            if interval is None:
                continue
            for gpu, sighted in interval.gpus.items():
                if sighted.trusted_start_ns:
                    intervals_by_gpu.setdefault(gpu, []).append(interval)
        return intervals_by_gpu

    def claim_facts(self, gpus: Sequence[str], start_ns: int) -> list[claim_events.ClaimFact]:
        """Return the claims of GPUs that may have been in force after a timestamp, and their ends."""
        loaded = self.load(gpus, {}, start_ns, FOREVER_NS - evidence_tables.CONTEXT_NS)
        found: list[claim_events.ClaimFact] = []
        for gpu in gpus:
            found += loaded.claims.get(gpu, ())
            found += loaded.ended.get(gpu, ())
        return found

    def changes(self, recorded_after_ns: int) -> list[evidence_tables.EvidenceChange]:
        """Return the facts that were recorded after a timestamp."""
        with self._database.transaction() as connection:
            return list(evidence_tables.find_facts_recorded_after(connection, recorded_after_ns))

    def late(
        self, homes_of: Mapping[str, Iterable[str]], condition: evidence_tables.LateCondition
    ) -> list[evidence_tables.EvidenceChange]:
        """Return the late facts about some GPUs and the nodes that they were in."""
        nodes = sorted({node for nodes in homes_of.values() for node in nodes})
        with self._database.transaction() as connection:
            keys = [*sorted(homes_of), *map(claim_events.unplaced_key, nodes)]
            return list(evidence_tables.find_late_facts(connection, keys, nodes, condition))

    def spread(
        self,
        changes: Iterable[evidence_tables.EvidenceChange],
        homes_of: Mapping[str, Iterable[str]],
    ) -> set[evidence_tables.EvidenceChange]:
        """Return the changes, extended to nodes that have claims without a device.

        A change of a GPU's claims there affects the placement on all GPUs of the node.
        """
        extended = set(changes)
        nodes = sorted({node for late_fact in extended for node in homes_of.get(late_fact.gpu, ())})
        nodes_with_claims: set[str] = set()
        with self._database.transaction() as connection:
            for key_group in evidence_tables.group_items([*map(claim_events.unplaced_key, nodes)]):
                gpu = evidence_tables.reported_claims.c.gpu_uuid
                query = select(gpu).where(gpu.in_(key_group)).distinct()
                nodes_with_claims.update(connection.execute(query).scalars())
        return extended | {
            late_fact._replace(gpu=claim_events.unplaced_key(node))
            for late_fact in extended
            for node in homes_of.get(late_fact.gpu, ())
            if claim_events.unplaced_key(node) in nodes_with_claims
        }

    def newest_ends(self, nodes: Collection[str] | None, after_ns: int = 0) -> dict[str, int]:
        """Return the end of the newest evidence of some nodes; of all, what was recorded soon and after a timestamp."""
        of = evidence_tables.evidence_intervals.c
        soon = of.end_ns > of.recorded_ns - 2 * node_intervals.LATE_NS
        query = select(of.node, func.max(of.end_ns).label("end_ns")).group_by(of.node)
        query = query.where(
            of.recorded_ns > after_ns, soon if nodes is None else of.node.in_(nodes)
        )
        with self._database.transaction() as connection:
            return {row.node: row.end_ns for row in connection.execute(query)}


def read_homes(
    connection: Connection, gpus: Collection[str] | None = None
) -> dict[str, dict[str, int]]:
    """Return for some GPUs, or all, the nodes they were seen in, and since when."""
    of, homes = evidence_tables.gpu_nodes.c, dict[str, dict[str, int]]()
    query = select(of.gpu_uuid, of.node, func.min(of.since_ns)).group_by(of.gpu_uuid, of.node)
    queries = [query]
    if gpus is not None:
        groups = evidence_tables.group_items(sorted(gpus))
        queries = [query.where(of.gpu_uuid.in_(gpu_group)) for gpu_group in groups]
    for home_query in queries:
        for gpu, node, first_ns in connection.execute(home_query):
            homes.setdefault(gpu, {})[node] = first_ns
    return homes


def read_placement_homes(connection: Connection, nodes: Iterable[str]) -> dict[str, set[str]]:
    """Return all GPUs of those nodes that ever had claims without a device, each with its nodes."""
    keys = {claim_events.unplaced_key(node): node for node in nodes}
    homes: dict[str, set[str]] = {}
    key, of = evidence_tables.reported_claims.c.gpu_uuid, evidence_tables.gpu_nodes.c
    for few in evidence_tables.group_items(list(keys)):
        claimed = connection.execute(select(key).where(key.in_(few)).distinct()).scalars()
        gpus = select(of.gpu_uuid).where(of.node.in_([keys[each] for each in claimed]))
        query = select(of.gpu_uuid, of.node).where(of.gpu_uuid.in_(gpus)).distinct()
        for gpu, node in connection.execute(query):
            homes.setdefault(gpu, set()).add(node)
    return homes
