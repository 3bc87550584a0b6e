"""The tokenizer files of a bundle."""

from pathlib import Path

from voxport.bundle.errors import UsageError
from voxport.bundle.manifest import Bundle


def tokenizer_paths(bundle: Bundle) -> list[Path]:
    """The tokenizer files of a bundle. Raises UsageError without any."""
    if not bundle.manifest.tokenizer:
        raise UsageError(
            f"{bundle.folder}: the bundle has no tokenizer; export from a checkpoint with its tokenizer files"
        )
    return tokenizer_files(bundle)


def tokenizer_files(bundle: Bundle) -> list[Path]:
    """The tokenizer files of a bundle, which may have none."""
    return [bundle.folder / name for name in bundle.manifest.tokenizer]
