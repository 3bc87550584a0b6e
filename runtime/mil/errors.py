"""Errors of packages and calls. Each message is one line."""


class MilError(Exception):
    """Base class. Raised as such by an operation whose result is undefined for the given values."""


class PackageError(MilError):
    """The package is damaged, incomplete, or not an ML program."""


class CallError(MilError):
    """An unknown or missing input, state or function, or an array of another shape or type than declared."""


class UnsupportedError(MilError):
    """The executor does not implement an operation, attribute or type."""


def require(condition: object, message: str, error: type[Exception] = MilError) -> None:
    """Raises the error unless the condition holds."""
    if not condition:
        raise error(message)
