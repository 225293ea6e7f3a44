"""An agent and its collectors as text: frames that are stored, wait or are lost, and what the agent logs.

    agent [SETTING=VALUE]...       starts an agent, after the end of an earlier one; `collectors=b,a` are those of its settings,
                                   `node=NAME` is its name, and `database=yes` lets collectors store evidence later
    end                            ends the agent
    frames N [SIZE]                so many frames in one envelope; SIZE is that of each in bytes
    publish N                      so many frames for the next envelope
    shipped                        waits until each frame is stored, rejected or lost
    fails                          waits for a failed attempt; `retry` lets the pause after it pass, `pass S` some seconds
    answer NAME STATUS [TEXT] [HEADER=VALUE]   next answer of a collector; also `hang`, `vanish` and `deny NODE`
    down NAME, up NAME             a collector stops serving, or serves again
    stranger NAME, known NAME      its answers lack the mark that a collector derives from the node's token, or have it again
    store NAME, lose NAME LOG, forget NAME     its evidence is stored; its disk, or its shapes and names, are lost
    remove PATH, make PATH, damage PATH        in the state directory; PATH may end with *
    requests NAME                  number of its requests
    state                          frames at each collector, frames that this run shipped, envelopes that wait, failed attempts, lost frames

Below each line: warnings and errors in the agent's log.
"""

from __future__ import annotations

import asyncio
import re
import shutil
from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from aiohttp import web
from structlog.testing import capture_logs
from support import collector as scripted
from support.shipping import RunningShipper, StoringCollector, publish_large, run_shipper
from support.stories import Story

from railscope.frame import FrameOrigin
from railscope.wire import Envelope
from railscope_agent.config import CollectorLink

FIELDS = ("frames", "reason", "problem", "advice", "dropped_frames", "waiting_envelopes", "logs")


def spans(frames: list[scripted.FrameId]) -> str:
    """Return frames as text: `run-1 1-3 5`."""
    text, runs = [], dict[str, list[int]]()
    for _, run, _, sequence in frames:
        runs.setdefault(run, []).append(sequence)
    for run, numbers in runs.items():
        parts = list[list[int]]()
        for number in numbers:
            if parts and parts[-1][-1] + 1 == number:
                parts[-1].append(number)
            else:
                parts.append([number])
        shown = [str(p[0]) if len(p) == 1 else f"{p[0]}-{p[-1]}" for p in parts]
        text.append(" ".join([run, *shown]))
    return ", ".join(text)


class Stage:
    """Collectors, the agent and its state directory."""

    def __init__(self, directory: Path, logs: list[Any]) -> None:
        self.directory, self.logs = directory, logs
        self.collectors = {name: StoringCollector(log=name) for name in "ab"}
        self.servers = {name: AsyncExitStack() for name in self.collectors}
        self.agent, self.runs = AsyncExitStack(), 0
        self.run: RunningShipper

    async def play(self, command: str) -> list[str]:
        """Run a command; return what it prints, and what the agent has logged."""
        name, *arguments = command.split()
        printed = await getattr(self, f"on_{name}")(*arguments)
        logged = [self._line(e) for e in self.logs if e["log_level"] in {"warning", "error"}]
        self.logs.clear()
        return [*(printed or ()), *logged]

    def _line(self, entry: dict[str, Any]) -> str:
        facts = [f"{key}={entry[key]}" for key in ("from_url", "to_url", *FIELDS) if key in entry]
        return self._named(" ".join([entry["event"], *facts]))

    def _named(self, text: str) -> str:
        for name, each in self.collectors.items():
            text = text.replace(f"127.0.0.1:{each.port}", name)
        return text.replace(str(self.directory), "STATE")

    async def close(self) -> None:
        """End all."""
        for stack in (self.agent, *self.servers.values()):
            await stack.aclose()

    async def on_agent(self, *settings: str) -> None:
        given = dict(setting.split("=", 1) for setting in settings)
        names, node = given.pop("collectors", "a").split(","), given.pop("node", "node-1")
        is_stored_later = bool(given.pop("database", ""))
        for name in names:
            self.collectors[name].has_database = is_stored_later
            if not self.collectors[name].port:
                await self.on_up(name)
        await self.agent.aclose()
        urls = [f"http://127.0.0.1:{self.collectors[name].port}" for name in names]
        where: dict[str, Any] = {"url": urls[0]} if len(urls) == 1 else {"urls": urls}
        numbers = {
            key: float(value) if "." in value else int(value) for key, value in given.items()
        }
        self.runs += 1
        link = CollectorLink(token="secret", **where, **numbers)  # type: ignore[arg-type]  # noqa: S106 - no secret
        origin = FrameOrigin(node, f"run-{self.runs}", "boot-1")
        self.run = await self.agent.enter_async_context(run_shipper(self.directory, link, origin))

    async def on_end(self) -> None:
        await self.agent.aclose()

    async def on_frames(self, count: str, size: str = "0") -> None:
        for _ in range(int(count)):
            publish_large(self.run, int(size))
        self.run.shipper.flush()

    async def on_publish(self, count: str) -> None:
        for _ in range(int(count)):
            self.run.publish()

    async def on_shipped(self) -> None:
        stats = self.run.stats
        async with asyncio.timeout(scripted.PATIENCE_SECONDS):
            while stats.shipped_frames + sum(stats.dropped_frames.values()) < len(self.run.sent):
                stats.changed.clear()
                await stats.changed.wait()
        await self.run.shipper.wait_until_sent()

    async def on_fails(self) -> None:
        await self.run.failed()

    async def on_retry(self) -> None:
        self.run.retry()

    async def on_pass(self, seconds: str) -> None:
        self.run.clock.advance(float(seconds))

    async def on_answer(self, name: str, status: str, *rest: str) -> None:
        steps = {"hang": scripted.hang, "vanish": scripted.take_and_vanish}
        headers = dict(each.split("=", 1) for each in rest if re.match(r"[A-Z][\w-]+=", each))
        body = " ".join(each for each in rest if each.partition("=")[0] not in headers)
        collector = self.collectors[name]
        if status == "deny":
            collector.script.append(_deny(body))
        elif status in steps:
            collector.script.append(steps[status])
        else:
            collector.script.append(web.Response(status=int(status), text=body, headers=headers))

    async def on_up(self, name: str) -> None:
        await self.servers[name].enter_async_context(self.collectors[name].serving())

    async def on_down(self, name: str) -> None:
        await self.servers[name].aclose()

    async def on_stranger(self, name: str) -> None:
        self.collectors[name].marks = False

    async def on_known(self, name: str) -> None:
        self.collectors[name].marks = True

    async def on_store(self, name: str) -> None:
        self.collectors[name].stored = self.collectors[name].position

    async def on_lose(self, name: str, log: str) -> None:
        self.collectors[name].lose(log)

    async def on_forget(self, name: str) -> None:
        self.collectors[name].parts.clear()

    async def on_remove(self, path: str) -> None:
        for found in sorted(self.directory.glob(path)):
            shutil.rmtree(found) if found.is_dir() else found.unlink()

    async def on_make(self, path: str) -> None:
        (self.directory / path).mkdir()

    async def on_damage(self, path: str) -> None:
        found = min(self.directory.glob(path))
        found.write_bytes(found.read_bytes()[:-2] + b"xx")

    async def on_requests(self, name: str) -> list[str]:
        return [str(len(self.collectors[name].requests))]

    async def on_state(self) -> Iterator[str]:
        return self._state()

    def _state(self) -> Iterator[str]:
        for name, each in self.collectors.items():
            for about, frames in (("has", each.taken), ("has again", each.duplicates)):
                if frames:
                    yield f"{name} {about} {spans(frames)}"
            for run in dict.fromkeys(f"{end.run} {end.streams}" for end in each.ended):
                yield f"{name} has recorded the end of {run}"
        stats = self.run.stats
        assert bool(stats.unstored_bytes) == bool(stats.unstored_envelopes)
        waiting = f"acknowledged {stats.shipped_frames}, waiting {stats.spool_envelopes}"
        yield waiting + (
            f", not stored {stats.unstored_envelopes}" if stats.unstored_envelopes else ""
        )
        if stats.failures:
            yield f"failed attempts {stats.failures}"
        for reason, count in stats.dropped_frames.items():
            if count:
                yield f"lost {reason} {count}"


def _deny(accepted: str) -> scripted.Step:
    """Return the answer of a collector to a credential of one node."""

    async def answer(self: Any, request: web.Request, envelope: Envelope) -> web.Response:
        if envelope.node == accepted:
            self.script.appendleft(_deny(accepted))
            taken: web.Response = await self.take(self, request, envelope)
            return taken
        self.script.appendleft(_deny(accepted))
        content = {"error": "of another node", "credential_node": accepted}
        return web.json_response(content, status=403)

    return answer


def test_story(story: Story, tmp_path: Path) -> None:
    with capture_logs() as logs, asyncio.Runner() as runner:
        stage = Stage(tmp_path, logs)  # type: ignore[arg-type]  # entries of any shape
        try:
            story.play(lambda command: runner.run(stage.play(command)))
        finally:
            runner.run(stage.close())
