"""Fetches public corpora by package name, unpacked but not installed, into the user's cache.

Owns which packages make which corpus. Nothing fetched is ever part of the repository. Licences: gimp-help-en
GFDL-NIV-1.2+, gnome-user-docs CC-BY-SA-3.0, moviepy MIT (its video: Big Buck Bunny, Blender Foundation,
CC-BY-3.0).
"""

import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path

from jobs.errors import JobError

CACHE = Path("~/.cache/omniloom").expanduser()


def fetch(corpus: str) -> list[Path]:
    """Return the folders of a corpus, downloading what is not in the cache yet.

    Raises:
        JobError: no such corpus, or a package could not be fetched; the message says what the package client
        said.
    """
    corpora: dict[str, dict[str, Callable[[Path], None]]] = {
        "demo": {
            "gimp-help-en": _debian("gimp-help-en", "usr/share/gimp/2.0/help/en"),
            "gnome-user-docs": _debian("gnome-user-docs", "usr/share/help/C"),
        },
        "demo-pip": {"moviepy": _moviepy},
    }
    if corpus not in corpora:
        raise JobError(f"{corpus!r} is no corpus; there are {', '.join(corpora)}")
    return [_cached(name, unpack) for name, unpack in corpora[corpus].items()]


def _cached(name: str, unpack: Callable[[Path], None]) -> Path:
    """Unpack into a temporary folder and rename it, so that a killed download leaves nothing half done."""
    target = CACHE / name
    if not target.exists():
        CACHE.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=CACHE, prefix=f".{name}-") as folder:
            unpacked = Path(folder) / "unpacked"
            unpack(unpacked)
            os.replace(unpacked, target)
    return target


def _debian(package: str, part: str) -> Callable[[Path], None]:
    """Download a Debian package and keep one folder of it; neither root nor installation is needed."""

    def unpack(target: Path) -> None:
        work = target.parent
        os.chmod(work, 0o755)  # the client drops its privileges for the download
        _call(["apt-get", "download", package], work)
        archive = next(work.glob(f"{package}_*.deb"))
        _call(["dpkg-deb", "-x", str(archive), str(work / "all")], work)
        os.replace(work / "all" / part, target)

    return unpack


def _moviepy(target: Path) -> None:
    """Download the moviepy source distribution: RST pages, pictures, and a ten-minute video inside a zip."""
    work = target.parent
    _call(
        [
            sys.executable,
            "-m",
            "pip",
            "download",
            "--quiet",
            "--no-deps",
            "--no-binary",
            "moviepy",
            "moviepy",
        ],
        work,
    )
    with tarfile.open(next(work.glob("moviepy-*.tar.gz"))) as archive:
        archive.extractall(work / "all", filter="data")
    os.replace(next((work / "all").glob("moviepy-*/docs")), target)
    for zipped in sorted(target.rglob("*.zip")):
        with zipfile.ZipFile(zipped) as archive:
            archive.extractall(zipped.parent)
        zipped.unlink()


def _call(command: list[str], folder: Path) -> None:
    if shutil.which(command[0]) is None:
        raise JobError(
            f"{command[0]} is not on this machine; `omniloom fetch demo-pip` fetches a corpus without it"
        )
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        lines = (done.stderr.strip() or done.stdout.strip()).splitlines()
        raise JobError(f"{' '.join(command)} failed: {lines[-1] if lines else 'no message'}")
