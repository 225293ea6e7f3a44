"""Container image of agent and collector as an OCI archive, written without a container runtime and without root.

Equal inputs give equal files. The first layer has the files of a few packages of Debian 12, which apt-get downloads; the second one
has the program of the Debian packages. Layout: https://github.com/opencontainers/image-spec.
"""

from __future__ import annotations

import hashlib
import io
import json
import platform
import re
import shutil
import subprocess
import sys
import tarfile
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import quote

import click

UID = 65532
PYTHON_LIBRARY = "usr/lib/python3.11"
BASE_PACKAGES = (
    "base-files", "ca-certificates", "gcc-12-base", "libbz2-1.0", "libc6", "libexpat1", "libffi8", "libgcc-s1", "liblzma5",
    "libpython3.11-minimal", "libpython3.11-stdlib", "libsqlite3-0", "libssl3", "libstdc++6", "libuuid1", "media-types", "netbase",
    "python3.11-minimal", "tzdata", "zlib1g",
)  # fmt: skip
"""Packages of Debian whose files are in the image. Their scripts are not run: `stage_base` does what is needed of them."""
MERGED = ("bin", "lib", "lib64", "sbin")
"""Directories of the root that are links to those of the same name in /usr."""
LEFT_OUT = re.compile(
    r"usr/share/(?:doc/(?!.*/copyright$)[^/]+/|man|info|locale|lintian|bash-completion|pixmaps|applications|common-licenses/\.keep)"
    r"|usr/share/doc-base|usr/share/binfmts|usr/share/python3?|usr/share/apps|usr/s?bin/(?!python3\.11$)"
    r"|etc/(?:dpkg|update-motd\.d|default|ca-certificates|cron\.|profile)|usr/lib/valgrind|var/(?:backups|cache|local|mail|spool)"
    rf"|{PYTHON_LIBRARY}/(?:lib-dynload/(?:_crypt|_curses|_curses_panel|_dbm|nis|readline)\.|ensurepip|pydoc_data|__pycache__)"
)
"""Paths that are not needed, or whose libraries are not in the image."""
DIRECTORIES: Mapping[str, tuple[int, int]] = {
    "dev": (0o755, 0),
    "etc/railscope": (0o755, 0),
    "proc": (0o755, 0),
    "run/railscope": (0o755, 0),
    "sys": (0o755, 0),
    "tmp": (0o1777, 0),
    "var/lib/railscope-agent": (0o700, UID),
    "var/lib/railscope-collector": (0o700, UID),
}
"""Mode and owner of directories that are mounted or written to."""
_LAYER = "application/vnd.oci.image.layer.v1.tar+gzip"
_CONFIG = "application/vnd.oci.image.config.v1+json"
_MANIFEST = "application/vnd.oci.image.manifest.v1+json"
_INDEX = "application/vnd.oci.image.index.v1+json"


# Base --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class DebianPackage:
    """One package of Debian in the image."""

    name: str
    version: str
    architecture: str
    control: str
    """Its fields, as dpkg stores them."""


def _run(*command: str, cwd: Path | None = None) -> bytes:
    try:
        return subprocess.run(command, cwd=cwd, capture_output=True, check=True).stdout  # noqa: S603 - the commands are in this file
    except subprocess.CalledProcessError as error:
        message = f"{command[0]}: exit status {error.returncode}: {error.stderr.decode()[-2000:]}"
        raise click.ClickException(message) from error


def download_base(directory: Path) -> list[Path]:
    """Download BASE_PACKAGES from the mirrors of this machine, which must have Debian 12; needs no root."""
    release = platform.freedesktop_os_release()
    if (release["ID"], release.get("VERSION_ID")) != ("debian", "12"):
        message = f"{release['PRETTY_NAME']}: expected Debian 12, whose packages are in the image"
        raise click.ClickException(message)
    state = directory / "apt"
    for name in ("lists/partial", "archives/partial"):
        (state / name).mkdir(parents=True)
    options = {
        "Dir::State::lists": state / "lists",
        "Dir::Cache": state,
        "Dir::State::status": "/dev/null",
        "APT::Sandbox::User": "root",
        "Acquire::Languages": "none",
    }
    apt = ["apt-get", "-qq", *(f"-o{key}={value}" for key, value in options.items())]
    _run(*apt, "update")
    _run(*apt, "download", *BASE_PACKAGES, cwd=directory)
    return sorted(directory.glob("*.deb"))


def stage_base(root: Path, debs: Iterable[Path]) -> list[DebianPackage]:
    """Create the root of the first layer from packages of Debian; return what they are."""
    for name in MERGED:
        (root / "usr" / name).mkdir(parents=True)
        (root / name).symlink_to(f"usr/{name}")
    packages = []
    for deb in debs:
        control = _run("dpkg-deb", "--field", str(deb)).decode()
        fields = dict(re.findall(r"^([\w-]+): (.*)$", control, re.MULTILINE))
        package = DebianPackage(
            fields["Package"], fields["Version"], fields["Architecture"], control
        )
        packages.append(package)
        with tarfile.open(
            fileobj=io.BytesIO(_run("dpkg-deb", "--fsys-tarfile", str(deb)))
        ) as files:
            for member in files:
                if (path := Path(member.name)).parts and not LEFT_OUT.match(
                    f"{path}/" if member.isdir() else str(path)
                ):
                    member.name = str(Path("usr", path) if path.parts[0] in MERGED else path)
                    files.extract(member, root, filter="tar")
        write(root / "var/lib/dpkg/status.d" / package.name, control)
    certificates = sorted((root / "usr/share/ca-certificates").rglob("*.crt"))
    write(
        root / "etc/ssl/certs/ca-certificates.crt",
        "".join(path.read_text() for path in certificates),
    )
    shutil.rmtree(root / "usr/share/ca-certificates")
    write(
        root / "etc/passwd", f"root:x:0:0:root:/:/none\nrailscope:x:{UID}:{UID}:railscope:/:/none\n"
    )
    write(root / "etc/group", f"root:x:0:\nrailscope:x:{UID}:\n")
    for name in DIRECTORIES:
        (root / name).mkdir(parents=True, exist_ok=True)
    modules = str(root / PYTHON_LIBRARY)
    _run(
        sys.executable, "-m", "compileall", "-q", "--invalidation-mode", "unchecked-hash", "-s", str(root), "-p", "/", modules,
    )  # fmt: skip
    for path in sorted(root.rglob("*"), reverse=True):
        is_needed = str(path.relative_to(root)) in {
            *DIRECTORIES,
            *(f"usr/{name}" for name in MERGED),
        }
        if path.is_dir() and not path.is_symlink() and not is_needed and not any(path.iterdir()):
            path.rmdir()
    return packages


def write(path: Path, text: str) -> None:
    """Write a file and the directories above it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def component(package: DebianPackage) -> dict[str, str]:
    """Return the entry of a package of Debian in a CycloneDX bill of materials."""
    version = quote(package.version, safe=":~")
    reference = (
        f"pkg:deb/debian/{package.name}@{version}?arch={package.architecture}&distro=debian-12"
    )
    return {
        "type": "library",
        "name": package.name,
        "version": package.version,
        "purl": reference,
        "bom-ref": reference,
    }


# Archive -----------------------------------------------------------------------------------------


class _LayerStream(io.RawIOBase):
    """Write-only file that compresses, and has the digests of what was written and of the result."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("wb")
        self._compressor = zlib.compressobj(6, wbits=31)
        self.plain = hashlib.sha256()
        self.packed = hashlib.sha256()

    def writable(self) -> bool:
        return True

    def write(self, data: bytes) -> int:  # type: ignore[override] # of bytes only
        self.plain.update(data)
        self._put(self._compressor.compress(data))
        return len(data)

    def finish(self) -> None:
        self._put(self._compressor.flush())
        self._file.close()

    def _put(self, packed: bytes) -> None:
        self.packed.update(packed)
        self._file.write(packed)


@dataclass
class OciArchive:
    """Blobs of an image, in a directory until `write` puts them into one tar."""

    directory: Path
    epoch: int
    _layers: list[tuple[str, str, str]] = field(default_factory=list)
    """Digest, digest without compression, and history entry of each layer."""

    def add_layer(
        self, trees: Sequence[Path], created_by: str, below: tuple[str, ...] = ("",)
    ) -> None:
        """Add files of trees, those below some paths, as a layer. They belong to root, except for DIRECTORIES."""
        members = {
            name: path
            for tree in trees
            for path in tree.rglob("*")
            if (name := str(path.relative_to(tree))).startswith(below)
        }
        partial = self.directory / "layer.partial"
        stream = _LayerStream(partial)
        with tarfile.open(fileobj=stream, mode="w|", format=tarfile.PAX_FORMAT) as layer:
            for name, path in sorted(members.items()):
                layer.addfile(*self._member(name, path))
        stream.finish()
        digest = stream.packed.hexdigest()
        partial.rename(self.directory / digest)
        self._layers.append((digest, stream.plain.hexdigest(), created_by))

    def _member(self, name: str, path: Path) -> tuple[tarfile.TarInfo, io.BytesIO | None]:
        member = tarfile.TarInfo(name)
        member.mtime = self.epoch
        member.uname = member.gname = ""
        if path.is_symlink():
            member.type, member.linkname = tarfile.SYMTYPE, str(path.readlink())
            member.mode = 0o777
            return member, None
        member.mode = path.stat().st_mode & 0o777
        if path.is_dir():
            member.type = tarfile.DIRTYPE
            member.mode, member.uid = DIRECTORIES.get(name, (0o755, 0))
            member.gid = member.uid
            return member, None
        content = path.read_bytes()
        member.size = len(content)
        return member, io.BytesIO(content)

    def write(self, target: Path, name: str, architecture: str, labels: Mapping[str, str]) -> None:
        """Write the archive of an image with these layers, with `name` as its reference."""
        created = _format_time(self.epoch)
        config = {
            "architecture": architecture,
            "os": "linux",
            "created": created,
            "config": {
                "User": f"{UID}:{UID}",
                "ExposedPorts": {"9469/tcp": {}, "9470/tcp": {}},
                "Env": [
                    "PATH=/usr/bin",
                    "LANG=C.UTF-8",
                    "MALLOC_ARENA_MAX=2",
                    "SSL_CERT_FILE=/etc/ssl/certs/ca-certificates.crt",
                ],
                "Entrypoint": ["railscope"],
                "Cmd": ["--help"],
                "Volumes": {f"/{name}": {} for name, (_, uid) in DIRECTORIES.items() if uid},
                "WorkingDir": "/",
                "Labels": labels,
            },
            "rootfs": {"type": "layers", "diff_ids": [f"sha256:{plain}" for _, plain, _ in self._layers]},
            "history": [{"created": created, "created_by": text} for _, _, text in self._layers],
        }  # fmt: skip
        described_config = self._blob(_CONFIG, config)
        manifest = {
            "schemaVersion": 2,
            "mediaType": _MANIFEST,
            "config": described_config,
            "layers": [self._descriptor(_LAYER, digest) for digest, _, _ in self._layers],
            "annotations": labels,
        }
        described = self._blob(_MANIFEST, manifest) | {
            "platform": {"architecture": architecture, "os": "linux"},
            "annotations": {
                # containerd stores it unchanged, and Kubernetes requests images by their full names.
                "io.containerd.image.name": f"docker.io/library/{name}",
                "org.opencontainers.image.ref.name": name.rpartition(":")[2],
            },
        }
        index = {"schemaVersion": 2, "mediaType": _INDEX, "manifests": [described]}
        blobs = [_blob_path(digest) for digest, _, _ in self._layers]
        docker = {
            "Config": _blob_path(str(described_config["digest"])),
            "RepoTags": [name],
            "Layers": blobs,
        }
        with tarfile.open(target, "w", format=tarfile.PAX_FORMAT) as archive:
            self._add(archive, "oci-layout", b'{"imageLayoutVersion":"1.0.0"}')
            self._add(archive, "index.json", _json(index))
            self._add(archive, "manifest.json", _json([docker]))  # of Docker before version 25
            for blob in sorted(self.directory.iterdir()):
                self._add(archive, _blob_path(blob.name), blob.read_bytes())

    def _add(self, archive: tarfile.TarFile, name: str, content: bytes) -> None:
        member = tarfile.TarInfo(name)
        member.mtime, member.size = self.epoch, len(content)
        archive.addfile(member, io.BytesIO(content))

    def _blob(self, media_type: str, content: object) -> dict[str, object]:
        data = _json(content)
        digest = hashlib.sha256(data).hexdigest()
        (self.directory / digest).write_bytes(data)
        return self._descriptor(media_type, digest)

    def _descriptor(self, media_type: str, digest: str) -> dict[str, object]:
        size = (self.directory / digest).stat().st_size
        return {"mediaType": media_type, "digest": f"sha256:{digest}", "size": size}


def _format_time(epoch: int) -> str:
    return datetime.fromtimestamp(epoch, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _blob_path(digest: str) -> str:
    return f"blobs/sha256/{digest.removeprefix('sha256:')}"


def _json(content: object) -> bytes:
    return json.dumps(content, sort_keys=True, separators=(",", ":")).encode()


@dataclass(frozen=True)
class ImageOrigin:
    """Commit and its time in seconds; no commit in a build of a directory."""

    revision: str
    epoch: int


def write_image(
    trees: Sequence[Path], version: str, origin: ImageOrigin, work: Path, target: Path
) -> list[dict[str, str]]:
    """Write the image of agent and collector; return the entries of its base for the bill of materials."""
    for name in ("debs", "base", "blobs"):
        (work / name).mkdir()
    packages = stage_base(work / "base", download_base(work / "debs"))
    archive = OciArchive(work / "blobs", origin.epoch)
    archive.add_layer([work / "base"], "packages of Debian 12")
    below = ("opt/", "usr/bin/", "usr/share/doc/", "usr/share/railscope")
    archive.add_layer(trees, "packages of Railscope", below)
    labels = {
        "created": _format_time(origin.epoch),
        "description": "Telemetry of GPU clusters: agent and collector",
        "licenses": "Apache-2.0",
        "revision": origin.revision,
        "title": "railscope",
        "version": version,
    }
    labels = {f"org.opencontainers.image.{name}": text for name, text in labels.items() if text}
    reference = f"railscope:{version}"
    (architecture,) = {package.architecture for package in packages} - {"all"}
    archive.write(target / f"railscope-{version}-oci.tar", reference, architecture, labels)
    return [component(package) for package in packages]
