"""`Bundle`: an opened bundle folder."""

from pathlib import Path

from bundle.errors import IntegrityError
from bundle.files import file_entry
from bundle.manifest import MANIFEST, ComponentEntry, ExportJob, read_manifest


class Bundle:
    """A folder with a manifest.

    Opening it checks that every file exists with its size. `check_hashes` reads all files.
    """

    def __init__(self, folder: Path | str):
        """Raises UsageError or IntegrityError."""
        self.folder = Path(folder)
        self.manifest = read_manifest(self.folder)
        self._check_sizes()
        self._check_references()

    @property
    def job(self) -> ExportJob:
        return self.manifest.job

    @property
    def components(self) -> tuple[ComponentEntry, ...]:
        return self.manifest.job.components

    @property
    def size(self) -> int:
        """Bytes of all files listed in the manifest."""
        return sum(entry.size for entry in self.manifest.files.values())

    @property
    def is_verified(self) -> bool:
        return self.manifest.verification.status == "passed"

    def component(self, name: str) -> ComponentEntry:
        return next(entry for entry in self.components if entry.name == name)

    def check_hashes(self) -> None:
        """Raises IntegrityError with the name of the first file whose bytes differ from the exported ones."""
        for name, entry in self.manifest.files.items():
            if file_entry(self.folder / name) != entry:
                raise IntegrityError(
                    f"{self.folder / name}: its bytes differ from the manifest's hash; "
                    "fetch or export the bundle again"
                )

    def _check_sizes(self) -> None:
        for name, entry in self.manifest.files.items():
            path = self.folder / name
            if not path.is_file() or not path.resolve().is_relative_to(self.folder.resolve()):
                raise IntegrityError(
                    f"{path}: missing, though the manifest lists it; export the bundle again"
                )
            size = path.stat().st_size
            if size != entry.size:
                raise IntegrityError(f"{path}: {size} bytes, expected {entry.size}; export the bundle again")

    def _check_references(self) -> None:
        """Every file that the manifest uses is one of its files."""
        manifest = self.manifest
        used = [*manifest.voices.values(), *(entry.file for entry in self.components), *manifest.tokenizer]
        for name in used:
            if not any(file == name or file.startswith(f"{name}/") for file in manifest.files):
                path = self.folder / MANIFEST
                raise IntegrityError(
                    f"{path}: {name} is used but is not among the files; export the bundle again"
                )
