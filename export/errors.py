"""What may go wrong in an export, each with its exit code."""


class ExportError(Exception):
    """A component could not be lowered or written. Exit code 3."""

    exit_code = 3


class VerificationError(Exception):
    """An artifact does not match. Exit code 4."""

    exit_code = 4
