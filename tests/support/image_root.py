"""A root directory with the settings of the Dockerfile, whose commands run in namespaces of their own without a container runtime."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

DOCKERFILE = Path(__file__).parents[2] / "deploy/packages/Dockerfile"


def image_settings() -> dict[str, str]:
    """Return the instructions of the last stage of the Dockerfile that occur once, such as USER."""
    text = DOCKERFILE.read_text().replace("\\\n", " ").rpartition("\nFROM ")[2]
    return dict(re.findall(r"^(USER|ENTRYPOINT|CMD|EXPOSE|VOLUME|ENV) (.+)$", text, re.MULTILINE))


class ImageRoot:
    """Root directory whose commands run as those of the image. Needs root."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.settings = image_settings()

    @contextmanager
    def sandbox(self, mounts: Mapping[str, Path]) -> Iterator[ImageSandbox]:
        """Mount directories and files in the root, make the rest read-only, and give it a network of its own."""
        script = ["set -e", "ip link set lo up", 'mount --bind "$1" "$1"']
        for target, source in mounts.items():
            place = self.root / target.lstrip("/")
            if source.is_dir():
                place.mkdir(parents=True, exist_ok=True)
            else:
                place.parent.mkdir(parents=True, exist_ok=True)
                place.touch()
            script.append(f"mount --bind '{source}' '{place}'")
        script += ['mount -o remount,bind,ro "$1"', "echo ready", "exec cat"]
        command = ["unshare", "--mount", "--net", "sh", "-c", "\n".join(script), "sh"]
        with subprocess.Popen(
            [*command, str(self.root)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as holder:
            assert holder.stdin is not None
            assert holder.stdout is not None
            assert holder.stdout.readline() == "ready\n"
            yield ImageSandbox(self, holder.pid)
            holder.stdin.close()


class ImageSandbox:
    """Namespaces in which commands of an image run, kept by a process."""

    def __init__(self, image: ImageRoot, pid: int) -> None:
        self._image = image
        self._pid = pid

    def command(self, *arguments: str, environment: Mapping[str, str]) -> tuple[list[str], dict[str, str]]:  # fmt: skip
        """Return a command with the user and the variables of the image, and its environment."""
        settings = self._image.settings
        variables = dict(entry.split("=", 1) for entry in settings["ENV"].split())
        variables["PATH"] = "/usr/bin"
        enter = ["nsenter", "--target", str(self._pid), "--mount", "--net"]
        enter += ["setpriv", "--bounding-set=-all,+sys_chroot,+setuid,+setgid", "--no-new-privs"]
        enter += [
            "/usr/sbin/chroot",
            f"--userspec={settings['USER']}",
            "--groups=",
            str(self._image.root),
        ]
        return [*enter, *arguments], {**variables, **environment}

    @contextmanager
    def started(self, *arguments: str, environment: Mapping[str, str], log: Path) -> Iterator[None]:
        """Run the image with arguments, as its entry point does, until the end of the block; it must end with 0."""
        entry = json.loads(self._image.settings["ENTRYPOINT"])
        command, variables = self.command(*entry, *arguments, environment=environment)
        with log.open("w") as output, subprocess.Popen(command, env=variables, stdout=output, stderr=output) as program:  # fmt: skip
            try:
                yield
            finally:
                program.terminate()
            assert program.wait() == 0, log.read_text()

    def run(self, *arguments: str) -> str:
        """Run a command in the image and return its output."""
        command, variables = self.command(*arguments, environment={})
        outcome = subprocess.run(
            command, env=variables, capture_output=True, text=True, check=False
        )
        assert outcome.returncode == 0, outcome.stderr
        return outcome.stdout
