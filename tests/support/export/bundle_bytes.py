"""Equality of bundles, byte by byte."""

import json
import re
from pathlib import Path

from support.files import contents


def assert_same_bytes(verified: Path, unverified: Path) -> None:
    """Two bundles of the same inputs differ in the result of verification only."""
    first, again = contents(verified), contents(unverified)
    manifests = [json.loads(files.pop("manifest.json")) for files in (first, again)]
    readmes = [files.pop("README.md").decode() for files in (first, again)]  # these have the verification too
    for manifest in manifests:
        manifest["files"].pop("README.md")
    verification = re.compile(r"(?<=  verification:\n)(    .*\n)+")
    assert verification.sub("", readmes[0]) == verification.sub("", readmes[1])
    without = {"verification": None, "executed_by": None}
    assert manifests[0] | without == manifests[1] | without
    assert first.keys() - {"verify.json", "vectors.json"} == again.keys()
    assert [name for name in again if first[name] != again[name]] == []
