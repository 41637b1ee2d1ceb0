"""Fetches public files by package name, unpacked but not installed, into the user's cache.

Owns which packages make which corpus, and how a Debian package, a source distribution or a wheel is unpacked.
Nothing fetched is ever part of the repository. Licences: gimp-help-en GFDL-NIV-1.2+, gnome-user-docs
CC-BY-SA-3.0, moviepy MIT (its video: Big Buck Bunny, Blender Foundation, CC-BY-3.0).

A corpus is `demo`, `demo-pip`, or one package: `debian:NAME`, `sdist:NAME`, `wheel:NAME`.
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

Unpack = Callable[[Path], None]  # fills a folder that is not there yet; works beside it


def fetch(corpus: str) -> list[Path]:
    """Return the folders of a corpus, downloading what is not in the cache yet.

    Raises:
        JobError: no such corpus, or a package could not be fetched; the message says what the package client
        said.
    """
    corpora: dict[str, dict[str, Unpack]] = {
        "demo": {
            "gimp-help-en": _debian("gimp-help-en", "usr/share/gimp/2.0/help/en"),
            "gnome-user-docs": _debian("gnome-user-docs", "usr/share/help/C"),
        },
        "demo-pip": {"moviepy": _moviepy},
    }
    source, _, package = corpus.partition(":")
    packages: dict[str, Callable[[str], Unpack]] = {"debian": _debian, "sdist": _sdist, "wheel": _wheel}
    if package and source in packages:
        return [_cached(f"{source}-{package}", packages[source](package))]
    if corpus not in corpora:
        raise JobError(
            f"{corpus!r} is no corpus; there are {', '.join(corpora)}, and single packages as "
            "debian:NAME, sdist:NAME, wheel:NAME"
        )
    return [_cached(name, unpack) for name, unpack in corpora[corpus].items()]


def _cached(name: str, unpack: Unpack) -> Path:
    """Unpack into a temporary folder and rename it, so that a killed download leaves nothing half done."""
    target = CACHE / name
    if not target.exists():
        CACHE.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=CACHE, prefix=f".{name}-") as folder:
            unpacked = Path(folder) / "unpacked"
            unpack(unpacked)
            if not target.exists():  # another process may have been faster
                os.replace(unpacked, target)
    return target


def _debian(package: str, part: str = ".") -> Unpack:
    """Download a Debian package and keep one folder of it; neither root nor installation is needed."""

    def unpack(target: Path) -> None:
        work = target.parent
        os.chmod(work, 0o755)  # the client drops its privileges for the download
        _call(["apt-get", "download", package], work)
        archive = next(work.glob(f"{package}_*.deb"))
        _call(["dpkg-deb", "-x", str(archive), str(work / "all")], work)
        os.replace(work / "all" / part, target)

    return unpack


def _sdist(package: str, part: str = ".") -> Unpack:
    """Download a source distribution and keep one folder of it."""

    def unpack(target: Path) -> None:
        work = target.parent
        _pip_download(["--no-binary", package, package], work)
        with tarfile.open(next(work.glob("*.tar.gz"))) as archive:
            archive.extractall(work / "all", filter="data")
        os.replace(next((work / "all").iterdir()) / part, target)

    return unpack


def _wheel(package: str) -> Unpack:
    """Download a wheel and unpack it."""

    def unpack(target: Path) -> None:
        _pip_download([package], target.parent)
        with zipfile.ZipFile(next(target.parent.glob("*.whl"))) as archive:
            archive.extractall(target)

    return unpack


def _moviepy(target: Path) -> None:
    """Take moviepy's source: RST pages, pictures, and a ten-minute video inside a zip."""
    _sdist("moviepy", "docs")(target)
    for zipped in sorted(target.rglob("*.zip")):
        with zipfile.ZipFile(zipped) as archive:
            archive.extractall(zipped.parent)
        zipped.unlink()


def _pip_download(arguments: list[str], folder: Path) -> None:
    _call([sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", *arguments], folder)


def _call(command: list[str], folder: Path) -> None:
    if shutil.which(command[0]) is None:
        raise JobError(
            f"{command[0]} is not on this machine; `omniloom fetch demo-pip` fetches a corpus without it"
        )
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        lines = (done.stderr.strip() or done.stdout.strip()).splitlines()
        raise JobError(f"{' '.join(command)} failed: {lines[-1] if lines else 'no message'}")
