"""Repositories of a model hub, and copies of their files in the hub's cache, with the hub's own client.

The client reads HF_ENDPOINT, HF_HOME, HF_TOKEN and HF_HUB_OFFLINE.
"""

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from httpx2 import TransportError
from huggingface_hub import (
    CommitOperationAdd,
    CommitOperationDelete,
    HfApi,
    errors,
    hf_hub_download,
    snapshot_download,
    try_to_load_from_cache,
)
from huggingface_hub.constants import ENDPOINT, HF_HUB_CACHE, HF_HUB_OFFLINE

from voxport.bundle.errors import UsageError, VoxportError, first_line
from voxport.bundle.files import files_below, folder_name, reason_of
from voxport.bundle.folder import could_be_read
from voxport.bundle.manifest import MANIFEST, UNLISTED, read_manifest
from voxport.bundle.names import HubName
from voxport.model.checkpoint_layout import SUFFIX
from voxport.model.foreign import ADAPTER_CONFIG, ADAPTER_WEIGHTS
from voxport.model.hub_checkpoint import files_to_read

CONFIGURATIONS = ("params.json", "config.json", ADAPTER_CONFIG)
LOG_IN = "log in with `hf auth login`, or set HF_TOKEN"
log = logging.getLogger(__name__)


class HubRepository:
    """One commit of a repository. `sizes` are bytes of its files; without the hub, 0 for cached ones."""

    def __init__(self, name: HubName):
        """Raises UsageError or VoxportError."""
        self.name, self.is_offline, self._licence = name, False, "not stated"
        with hub_errors(name):
            self._revision = HfApi().resolve_revision(name.repository, revision=name.revision)
            self.commit = self._revision.resolved
            self.sizes = self._list()

    def _list(self) -> dict[str, int]:
        repository = self.name.repository
        try:
            info = HfApi().model_info(repository, revision=self.commit, files_metadata=True)
        except (TransportError, errors.OfflineModeIsEnabled, errors.HfHubHTTPError) as error:
            if isinstance(error, errors.HfHubHTTPError) and error.response.status_code < 500:
                raise
            self.is_offline = True
            log.info("%s: the hub is not reached; the cached commit is %s", self.name, self.commit)
            found = snapshot_download(
                repository, revision=self._revision, local_files_only=True, allow_patterns=[]
            )
            return dict.fromkeys(files_below(Path(found)), 0)
        self._licence = getattr(info.card_data, "license", None) or self._licence
        return {file.rfilename: file.size or 0 for file in info.siblings or ()}

    def folder_with(self, path: str) -> Path:
        """The folder in the hub's cache, with this file. Raises VoxportError."""
        with hub_errors(self.name):
            found = Path(hf_hub_download(self.name.repository, path, revision=self._revision))
        return found.parents[path.count("/")]

    def fetch(self, paths: Sequence[str]) -> Path:
        """The folder in the hub's cache, with these files, fetched in this order. Raises VoxportError.

        One at a time: the client's threads would delay an interruption until each has finished its file.
        """
        name, commit = self.name, self.commit
        cached = (try_to_load_from_cache(name.repository, path, revision=commit) for path in paths)
        missing = [path for path, found in zip(paths, cached, strict=True) if not isinstance(found, str)]
        if missing and not self.is_offline:
            size = sum(self.sizes[path] for path in missing) / 1e6
            about = f"{size:,.1f} MB in {len(missing)} files, licence {self._licence}, commit {commit}"
            log.info("%s: fetching %s", name, about)
        folders = [self.folder_with(path) for path in paths]
        return folders[0]


def fetch_bundle(name: HubName) -> Path:
    """The folder of a bundle in the hub's cache. Raises UsageError if it is none, and VoxportError."""
    repository = HubRepository(name)
    if MANIFEST not in repository.sizes:
        advice = f"a checkpoint is exported first: voxport export --checkpoint {name} --target onnx"
        raise UsageError(f"{name}: holds no bundle: it has no {MANIFEST}; {advice}")
    listed = {*read_manifest(repository.folder_with(MANIFEST)).files}
    needed = listed.difference(UNLISTED) if repository.is_offline else set[str]()
    return repository.fetch([MANIFEST, *sorted(needed | ({*listed, *UNLISTED} & repository.sizes.keys()))])


def fetch_checkpoint(name: HubName, weights: Sequence[str] = ()) -> Path:
    """The folder of a checkpoint in the hub's cache. `weights` are files to read in place of the usual ones.

    Weights come last: if they are there, an interruption has left nothing out. Raises UsageError if the
    repository holds none, and VoxportError.
    """
    repository = HubRepository(name)
    names = repository.sizes
    if MANIFEST in names and not any(each in names for each in CONFIGURATIONS):
        raise UsageError(f"{name}: holds a bundle, expected a checkpoint; say, serve and others read it")
    found = files_to_read(names, weights)
    if not any(each.endswith(SUFFIX) for each in found):
        place = " in the cache, without the hub," if repository.is_offline else ""
        there = ", ".join(sorted(names, key=lambda each: -names[each])[:3]) or "no file"
        reason = f"weights: {name} has{place} no weights that are read, but {there}"
        raise UsageError(f"{reason}; name a repository or a file of safetensors", field="weights")
    return repository.fetch(found)


def fetch_adapter(name: HubName) -> Path:
    """The folder of an adapter in the hub's cache, with its two files only: its base may be in the same
    repository. Raises UsageError if there is none, and VoxportError.
    """
    repository = HubRepository(name)
    for each in (ADAPTER_CONFIG, ADAPTER_WEIGHTS):
        if each not in repository.sizes:
            raise UsageError(f"adapter {name}: has no {each} of peft", field="adapter")
    return repository.fetch([ADAPTER_CONFIG, ADAPTER_WEIGHTS])


@contextmanager
def hub_errors(name: HubName) -> Iterator[None]:
    """Raises UsageError or VoxportError in place of the errors of the hub's client."""
    address = f"{ENDPOINT}/{name.repository}"
    try:
        yield
    except errors.GatedRepoError:
        raise UsageError(f"{name}: accept its licence at {address}, and {LOG_IN}") from None
    except errors.RevisionNotFoundError:
        raise UsageError(f"{name}: there is no such revision; {address}/tree/main lists them") from None
    except (errors.RepositoryNotFoundError, errors.HFValidationError):
        reason = "is neither a folder here nor a repository of the hub that you may use"
        raise UsageError(f"{name}: {reason}; correct the name, or {LOG_IN} if it is private") from None
    except (
        TransportError,
        errors.LocalEntryNotFoundError,
        errors.OfflineModeIsEnabled,
        errors.RevisionResolutionError,
    ):
        is_off = ", because HF_HUB_OFFLINE is set" if HF_HUB_OFFLINE else ""
        reason = f"no such folder; as a name of the hub: {address} is not reached{is_off}"
        reason += ", and the cache does not have all of it"
        raise VoxportError(f"{name}: {reason}; connect and try again: finished files are kept") from None
    except errors.HfHubHTTPError as error:
        status, said = error.response.status_code, error.server_message or first_line(error)
        if status in (401, 403):
            raise UsageError(f"{name}: the hub refuses ({status}: {said}); {LOG_IN}") from None
        raise VoxportError(f"{name}: the hub answered {status}: {said}; try again later") from None
    except RuntimeError as error:  # one of several uploads failed
        raise VoxportError(f"{name}: {first_line(error)} {first_line(error.__cause__)}") from None
    except OSError as error:
        if not error.errno:  # the network failed
            raise VoxportError(f"{name}: {first_line(error)}; try again later") from None
        raise VoxportError(f"{name}: cannot be stored in {HF_HUB_CACHE}: {reason_of(error)}") from None


def upload(name: HubName, folder: Path, paths: Sequence[str], is_private: bool) -> tuple[str, str]:
    """Commits the files `paths` of a bundle to a repository, which is made if it is missing. Returns the URL
    and the hash of the commit.

    Files of an older bundle that are not in this one are deleted. Raises UsageError if the repository holds
    something else, and VoxportError.
    """
    client, repository, branch = HfApi(), name.repository, name.revision or "main"
    added = [CommitOperationAdd(path, folder / path) for path in paths]
    with hub_errors(name):
        client.create_repo(repository, private=is_private or None, exist_ok=True)
        if name.revision:
            client.create_branch(repository, branch=branch, exist_ok=True)
        info = client.model_info(repository, revision=branch)
        there = {file.rfilename for file in info.siblings or ()}
        old = sorted(path for path in there.difference(paths) if could_be_read(path))
        if old and MANIFEST not in there:
            raise UsageError(f"{name}: holds {old[0]}, which is no bundle; name another repository or branch")
        deleted = [CommitOperationDelete(path) for path in old]
        message = f"Upload a bundle of voxport: {folder_name(folder)}"
        made = client.create_commit(
            repository, [*added, *deleted], commit_message=message, revision=branch, parent_commit=info.sha
        )
    return made.commit_url, made.oid
