"""`railscope collector check`: check the settings, files and servers of a collector.

It creates no directory, key, ledger or audit record. To an existing database and to the server of InfluxDB it
writes one row or line of its own, as write access cannot be checked otherwise.
"""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
import socket
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from sqlalchemy.engine import URL, make_url

from railscope import __version__, durable_files, listen_address, tls_contexts
from railscope.settings import SettingsError, state_directory
from railscope_collector import administrator_files, archive_stores, tables
from railscope_collector.access import credentials, tokens_file, trial_access
from railscope_collector.audit import entry_archive, log_secrets
from railscope_collector.config import CollectorSettings
from railscope_collector.evidence import archive_files, fact_store
from railscope_collector.files import seller_file
from railscope_collector.ledger import ledger_probe
from railscope_collector.ledger.database import Database, FormerLedgerError, UnusableLedgerError
from railscope_collector.ledger.database_location import check_file, ledger_url
from railscope_collector.sinks import influx
from railscope_collector.switches.otlp_receiver import OtlpReceiver
from railscope_collector.switches.switch_polling import SwitchPolling
from railscope_collector.workloads.pod_jobs import compile_pattern

LOW_FREE_BYTES = 1 << 30
MAX_NAMED = 8
EXPOSED = "tokens can be read on the network"
NO_OPERATOR = "no operator: nobody can open the console; fix: railscope collector token --role operator --output FILE NAME"


class CheckResult(NamedTuple):
    """Result of one check: subject, success and detail."""

    subject: str
    passed: bool
    detail: str
    is_warning: bool = False
    """It passed, but the setting is probably a mistake."""

    def __str__(self) -> str:
        outcome = ("warning" if self.is_warning else "ok") if self.passed else "BROKEN"
        return f"{outcome:<8}{self.subject}: {self.detail}"


def check_collector(settings: CollectorSettings, report: Callable[[str], None]) -> bool:
    """Check everything that can be checked without running, one line each; true if all passed."""
    report(f"Railscope collector {__version__}")
    passed = True
    for finding in _run_checks(settings, state_directory(settings)):
        report(str(finding))
        passed &= finding.passed
    return passed


def _run_checks(settings: CollectorSettings, directory: Path) -> Iterator[CheckResult]:
    running = durable_files.is_locked(directory)
    yield _run_check("listen", lambda: _check_listen(settings.listen, running=running))
    tls = _run_check("tls", lambda: _check_tls(settings))
    yield tls._replace(is_warning=EXPOSED in tls.detail)
    yield _run_check("state_directory", lambda: _check_directory(directory, running=running))
    tokens = _run_check("tokens_file", lambda: _check_tokens(settings))
    yield tokens._replace(is_warning=NO_OPERATOR in tokens.detail)
    trial = _run_check("trial_token_file", lambda: _check_trial(settings, directory))
    yield trial._replace(is_warning=bool(settings.trial_token_file))
    files = administrator_files.AdministratorFiles.from_settings(settings)
    files.refresh()
    for file in files.all_files:
        if file.path:
            detail = f"{file.path} is valid" if file.is_valid else f"{file.path}: {file.problem}"
            yield CheckResult(f"{file.kind}_file", file.is_valid, detail)
    if listed := set(files.inventory.content.by_node):
        yield from _check_inventory(listed, settings, directory)
    yield _run_check("billing.seller_file", lambda: _check_seller(settings.billing.seller_file))
    yield _run_check("pod_job_pattern", lambda: _check_pattern(settings.pod_job_pattern))
    yield _run_check("ledger", lambda: _check_ledger(settings, directory))
    yield _run_check("audit.key_file", lambda: _check_audit_key(settings, directory))
    yield _run_check("archive", lambda: _check_archive(settings))
    server = settings.influx
    yield _run_check("influx", lambda: influx.probe(server) if server.url else "off: no influx.url")
    yield _run_check("switches", lambda: _check_switches(settings))
    yield _run_check("otlp_receiver", lambda: _check_otlp_receiver(settings, running=running))


def _run_check(subject: str, examine: Callable[[], str]) -> CheckResult:
    """Run one check; an error that it can raise is its result."""
    try:
        return CheckResult(subject, passed=True, detail=examine())
    except (SettingsError, UnusableLedgerError, archive_stores.ArchiveError, OSError) as error:
        return CheckResult(subject, passed=False, detail=str(error))


def _check_listen(address: str, *, running: bool) -> str:
    host, port = listen_address.split_address(address)
    addrs = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    family, kind, protocol, _, socket_address = addrs[0]
    with socket.socket(family, kind, protocol) as tried:
        # As the server does: closed connections of a stopped collector do not occupy the port.
        tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            tried.bind(socket_address)
        except OSError as error:
            if running and error.errno == errno.EADDRINUSE:
                return f"{address} is in use by a collector with this state directory"
            raise SettingsError(listen_address.unavailable(address, error)) from error
    return f"{address} is free"


def _check_tls(settings: CollectorSettings) -> str:
    tls = settings.tls
    tls_contexts.server_tls(tls.certificate_file, tls.key_file, tls.client_ca_file)
    if tls.certificate_file:
        return f"{tls.certificate_file} is usable"
    host = listen_address.split_address(settings.listen)[0]
    fix = "set tls.certificate_file, or listen on 127.0.0.1"
    exposed = (
        "" if listen_address.is_loopback(host) else f" on {settings.listen}: {EXPOSED}; fix: {fix}"
    )
    return f"off: plain HTTP{exposed}"


def _check_directory(directory: Path, *, running: bool) -> str:
    if running:
        return f"{directory} is in use by a running collector"
    # A directory that does not exist yet is created below the nearest one that does.
    nearest = next(path for path in (directory, *directory.absolute().parents) if path.exists())
    if not os.access(nearest, os.W_OK | os.X_OK):
        message = f"cannot write {nearest} as this user (uid {os.geteuid()}); fix: set another state_directory, or run this as the user of the collector"
        raise SettingsError(message)
    free = shutil.disk_usage(nearest).free
    if free < LOW_FREE_BYTES:
        message = (
            f"{nearest} has {free >> 20} MiB free: expected at least {LOW_FREE_BYTES >> 20} MiB;"
            " fix: free space, or set another state_directory"
        )
        raise SettingsError(message)
    state = "exists" if nearest == directory else "will be created"
    return f"{directory} {state}, {free >> 30} GiB free"


def _check_tokens(settings: CollectorSettings) -> str:
    path = Path(settings.tokens_file)
    entries = tokens_file.load_credentials(path).entries.values()
    roles = Counter(str(entry.credential.role) for entry in entries)
    counts = ", ".join(f"{role}: {count}" for role, count in sorted(roles.items()))
    # Client certificates may name operators, too.
    may_read = settings.allow_anonymous_read or settings.tls.client_ca_file
    note = "" if may_read or str(credentials.Role.OPERATOR) in roles else f"; {NO_OPERATOR}"
    found = f"{path} has credentials ({counts})" if counts else f"{path} has no credentials yet"
    return f"{found}{note}"


def _check_trial(settings: CollectorSettings, directory: Path) -> str:
    trial = trial_access.TrialAccess.from_settings(settings, directory)
    if trial is None:
        return "off: each node has its own token"
    entries = tokens_file.load_credentials(Path(settings.tokens_file)).entries
    if holder := entries.get(trial.key):
        message = f"trial_token_file has the token of {holder.credential.label}, which all agents would have; fix: another token"
        raise SettingsError(message)
    return f"{trial_access.BANNER}; bound: {len(trial.read_nodes())} of {trial_access.MAX_NODES}"


def _check_inventory(
    listed: Collection[str], settings: CollectorSettings, directory: Path
) -> Iterator[CheckResult]:
    """Compare the nodes of the inventory with those that have a credential or reported GPUs."""
    try:
        entries = tokens_file.load_credentials(Path(settings.tokens_file)).entries.values()
        expected_nodes = {
            row.credential.name for row in entries if row.credential.role is credentials.Role.NODE
        }
        expected_nodes |= _reporting_nodes(settings, directory)
    except (SettingsError, UnusableLedgerError, OSError):
        return  # reported by the other checks
    findings = (
        (expected_nodes - set(listed), "nodes without a row: their GPUs are not metered"),
        (set(listed) - expected_nodes, "rows of nodes that have no credential and reported no GPU"),
    )
    for nodes, problem in findings:
        if nodes:
            names = ", ".join(sorted(nodes)[:MAX_NAMED])
            remainder = f" and {len(nodes) - MAX_NAMED} more" if len(nodes) > MAX_NAMED else ""
            yield CheckResult(
                "inventory", passed=True, is_warning=True, detail=f"{problem}: {names}{remainder}"
            )


@contextmanager
def _check_database(url: URL) -> Iterator[Database | None]:
    """Context manager of an existing database; None for a file that does not exist."""
    if url.get_backend_name() == "sqlite" and not Path(url.database or "").exists():
        yield None
        return
    database = Database(url.render_as_string(hide_password=False), tables.metadata, make=False)
    try:
        yield database
    finally:
        database.close()


def _reporting_nodes(settings: CollectorSettings, directory: Path) -> set[str]:
    """The nodes that have reported a GPU, from the ledger's database."""
    with _check_database(make_url(ledger_url(settings.ledger, directory))) as database:
        return set(fact_store.FactStore(database).nodes()) if database else set()


def _check_seller(path: str) -> str:
    if not path:
        return "not set: each tenant is billed on its own account"
    return f"{path} is valid: bills are issued by {seller_file.find_seller(path, ()).provider}"


def _check_pattern(text: str) -> str:
    compile_pattern(text)
    return "is valid" if text else "off: each pod is a job"


def _check_ledger(settings: CollectorSettings, directory: Path) -> str:
    url = make_url(ledger_url(settings.ledger, directory))
    if settings.ledger.url or settings.ledger.url_file:  # else created at the start
        check_file(url)
    try:
        with _check_database(url) as database:
            if database is None:
                return f"{url.render_as_string()} will be created at the first start"
            ledger_probe.commit_probe(database)
            return f"{database.name} is writable"
    except FormerLedgerError:
        return f"{url.render_as_string()} is of release 0.3.0: the first start raises it"


def _check_switches(settings: CollectorSettings) -> str:
    polling = SwitchPolling.from_settings(settings.switches, time.time_ns, lambda: True)
    return asyncio.run(polling.probe())


def _check_otlp_receiver(settings: CollectorSettings, *, running: bool) -> str:
    receiver = OtlpReceiver.from_settings(settings, time.time_ns, lambda: True)
    listen = settings.otlp_receiver.listen
    if not listen:
        return "off: no otlp_receiver.listen"
    return f"{_check_listen(listen, running=running)}; {len(receiver.switches)} switches push"


def _check_archive(settings: CollectorSettings) -> str:
    archive_files.compile_pod_pattern(settings.archive.pod_pattern)
    store = entry_archive.open_entry_archive(settings)
    if store is None:
        return "off: evidence stays in the database, and entries in the audit log"
    archive_files.import_pyarrow()
    return store.probe()


def _check_audit_key(settings: CollectorSettings, directory: Path) -> str:
    path = Path(settings.audit.key_file or directory / "audit.key")
    key = log_secrets.load_or_generate_key(path, settings.audit.origin)
    return f"{path} signs {key.name}" if path.exists() else f"{path} will be created"
