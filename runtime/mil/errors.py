"""What may be wrong with a package or a call of it: one line each."""


class MilError(Exception):
    """Base of all; also what an operation raises on values that it is not defined for."""


class PackageError(MilError):
    """The package is damaged, incomplete, or no ML program."""


class CallError(MilError):
    """An input, state or function that the program does not have, or of another shape or type."""


class UnsupportedError(MilError):
    """An operation, attribute or type that the executor does not know. It never guesses."""
