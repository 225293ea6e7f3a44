"""Requests to a switch by SNMP, version 2c or 3, and the library that exchanges the messages.

The library decodes datagrams in
Rust: a malformed one that it does not reject ends in an exception of its own, which is converted here.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

from railscope import extras
from railscope_collector.switches.snmp_values import SnmpValue
from railscope_collector.switches.switch_reading import SwitchReadError
from railscope_collector.switches.switch_settings import ConfiguredSwitch, SnmpCredential

_REPETITIONS, _FEW_REPETITIONS = 32, 12
"""Rows of one response: numbers that fit in a datagram that is not fragmented, and texts of 255 bytes that fit in the 4,080 bytes that the library receives."""
_ATTEMPTS = 2
_PANIC = "PanicException"
"""Exception of a library in Rust, which is no `Exception`, for a state that it does not handle."""
T = TypeVar("T")


class SnmpSession(Protocol):
    """Requests to one agent."""

    async def get(self, oids: Sequence[str]) -> Mapping[str, SnmpValue]:
        """Return the values of those objects that exist. Raises SwitchReadError."""

    def walk(self, oid: str) -> AsyncIterator[tuple[str, SnmpValue]]:
        """Yield the objects below an OID as the agent returns them. Raises SwitchReadError."""


# The library -------------------------------------------------------------------------------------


def check_library() -> None:
    """Raise SettingsError if the library is missing."""
    with extras.importing("switches", "switches.file", "gufo-snmp"):
        import gufo.snmp  # noqa: F401, PLC0415 - an extra: only collectors that poll switches have it


class GufoSession:
    """Requests by gufo-snmp; each is repeated once. Made by `open_session`."""

    def __init__(self, session: Any, error: type[Exception]) -> None:
        self._session, self._error = session, error
        self._repetitions = _REPETITIONS

    async def refresh(self) -> None:
        """Determine the engine of an agent with SNMP version 3. Raises SwitchReadError."""
        await self._request(self._session.refresh)

    async def get(self, oids: Sequence[str]) -> Mapping[str, SnmpValue]:
        """Return the values of those objects that exist. Raises SwitchReadError."""
        return await self._request(lambda: self._session.get_many(oids))

    async def walk(self, oid: str) -> AsyncIterator[tuple[str, SnmpValue]]:
        """Yield the objects below an OID. Raises SwitchReadError.

        After a response that cannot be decoded, and may be too long, this and further walks request fewer rows at a time.
        """
        count = 0
        while True:
            position = 0
            try:
                async for row in self._rows(oid):
                    position += 1
                    # Rows that were yielded before the failure are skipped: the walk begins again at its start.
                    if position > count:
                        count = position
                        yield row
            except SwitchReadError as error:
                if error.reason != "error" or self._repetitions == _FEW_REPETITIONS:
                    raise
                self._repetitions = _FEW_REPETITIONS
            else:
                return

    async def _rows(self, oid: str) -> AsyncIterator[tuple[str, SnmpValue]]:
        rows = self._session.getbulk(oid, self._repetitions)
        while True:
            try:
                row = await self._request(rows.__anext__)
            except StopAsyncIteration:
                return
            yield row

    async def _request(self, send: Callable[[], Awaitable[T]]) -> T:
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                return await send()
            except TimeoutError as error:
                if attempt == _ATTEMPTS:
                    message = "no answer: expected one of an SNMP agent that accepts the credential"
                    raise SwitchReadError(message, "timeout") from error
            except (self._error, OSError, RuntimeError, ValueError, OverflowError) as error:
                message = f"invalid answer: {type(error).__name__}: {str(error)[:200]}"
                raise SwitchReadError(message) from error
            except BaseException as error:
                # By its name: the class is not exported by the library.
                if type(error).__name__ != _PANIC:
                    raise
                message = "malformed answer"
                raise SwitchReadError(message) from error
        message = "no attempt"
        raise AssertionError(message)


async def open_session(switch: ConfiguredSwitch) -> GufoSession:
    """Return a session with a switch. Raises SwitchReadError."""
    from gufo import snmp  # noqa: PLC0415 - an extra
    from gufo.snmp import aio  # noqa: PLC0415 - as above

    loop = asyncio.get_running_loop()
    try:
        # Resolved here: the library accepts addresses only.
        found = await loop.getaddrinfo(switch.host, switch.port, type=socket.SOCK_DGRAM)
        credential = switch.credential
        session = aio.SnmpSession(
            str(found[0][4][0]),
            port=switch.port,
            community=credential.community,
            user=_user(snmp, credential) if credential.user else None,
            timeout=switch.timeout_seconds,
        )
    except (OSError, ValueError) as error:
        message = f"cannot reach {switch.host}: {error}"
        raise SwitchReadError(message) from error
    opened = GufoSession(session, snmp.SnmpError)
    await opened.refresh()
    return opened


def _user(snmp: Any, credential: SnmpCredential) -> Any:
    authentication, privacy = credential.authentication, credential.privacy
    auth_key = getattr(snmp, f"{authentication.capitalize()}Key", None)
    privacy_key = getattr(snmp, f"{privacy.capitalize()}Key", None)
    return snmp.User(
        credential.user,
        auth_key=auth_key(credential.authentication_password.encode()) if auth_key else None,
        priv_key=privacy_key(credential.privacy_password.encode()) if privacy_key else None,
    )
