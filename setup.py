"""Refuses to build a wheel without the embedded bundles, which are not in git."""

from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py
from setuptools.command.sdist import sdist
from setuptools.errors import FileError

BUNDLES = Path("src", "voxport", "bundles")


def check_bundles() -> None:
    """Raises FileError if a bundle is missing."""
    for name in ("voxtral-tts-tiny", "voxtral-realtime-tiny"):
        if not (BUNDLES / name / "manifest.json").is_file():
            raise FileError(
                f"{BUNDLES / name}: no bundle; run `make wheel`, which exports it and then builds "
                "(a clone is installed with `pip install -e`, which needs no bundle)"
            )


class BuildPy(build_py):  # type: ignore[misc]  # setuptools has no types
    def run(self) -> None:
        if not self.editable_mode:
            check_bundles()
        super().run()


class Sdist(sdist):  # type: ignore[misc]
    def run(self) -> None:
        check_bundles()
        super().run()


setup(cmdclass={"build_py": BuildPy, "sdist": Sdist})
