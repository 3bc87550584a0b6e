"""Errors of the runtime: one line that says what, where, expected, what to do."""


class RuntimeFault(Exception):
    """Base of all; exit code 3: the work failed."""

    exit_code = 3


class UsageError(RuntimeFault):
    """What was asked for cannot be done with this bundle. Exit code 2."""

    exit_code = 2


class IntegrityError(RuntimeFault):
    """A bundle is damaged, incomplete, or newer than this runtime. Exit code 5."""

    exit_code = 5


class EngineUnavailable(UsageError):
    """The engine of the bundle's target is not installed; the message names the extra to install."""
