"""Upload a verified bundle, with its model card, to a repository of a model hub, as one commit."""

from __future__ import annotations

import argparse
import json
import logging

from voxport.bundle.errors import UsageError
from voxport.bundle.manifest import MANIFEST, README, REPORT, VECTORS, Bundle
from voxport.bundle.names import HubName
from voxport.cli.arguments import add_bundle, add_json, set_up_hub_client

LICENCES = "LICENSE*", "LICENCE*", "NOTICE*"  # patterns of files beside those of the manifest
log = logging.getLogger(__name__)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_bundle(parser)
    purpose = "repository and branch, which are made if they are missing (default: the branch main)"
    parser.add_argument("repository", metavar="OWNER/NAME[@BRANCH]", help=purpose)
    help_text = "make a new repository private (default: everyone may read it)"
    parser.add_argument("--private", action="store_true", help=help_text)
    parser.add_argument("--unverified", action="store_true", help="also upload a bundle without verification")
    add_json(parser)


def run(arguments: argparse.Namespace) -> int:
    name, bundle = HubName.of_hub(arguments.repository), Bundle(arguments.bundle)
    bundle.check_hashes()
    if not bundle.is_verified and not arguments.unverified:
        advice = "export it with verification, or allow it with --unverified"
        raise UsageError(f"{bundle.folder}: is {bundle.manifest.verification.status}; {advice}")
    if not (bundle.folder / README).is_file():
        raise UsageError(f"{bundle.folder / README}: missing; it is the model card; export the bundle again")
    set_up_hub_client(name)
    from voxport.cli.hub import upload

    licences = {path.name for pattern in LICENCES for path in bundle.folder.glob(pattern) if path.is_file()}
    paths = {MANIFEST, README, *bundle.manifest.files, *licences}
    paths |= {name for name in (REPORT, VECTORS) if (bundle.folder / name).is_file()}
    readers = "you and your organisation" if arguments.private else "everyone"
    about = f"{len(paths)} files, {bundle.size / 1e6:.1f} MB; {readers} may read a new repository"
    log.info("%s: uploading %s", name, about)
    url, commit = upload(name, bundle.folder, sorted(paths), arguments.private)
    print(json.dumps({"url": url, "commit": commit}) if arguments.json else url)
    return 0
