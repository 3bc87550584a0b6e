"""All errors that voxport raises on purpose, and the exit code of each.

| code | meaning | raised as |
|---|---|---|
| 0 | success | |
| 2 | wrong usage: an option, a path, a request that cannot be served, a missing extra | `UsageError` |
| 3 | the work failed: export, an engine, a full disk | `VoxportError`, `ExportError` |
| 4 | an artifact does not match eager PyTorch | `VerificationError` |
| 5 | a file of a bundle or checkpoint is damaged, incomplete or not what it should be | `IntegrityError` |
| 130 | interrupted or terminated | |

A message is one line: what was wrong, where, what was expected, what to do.
"""

MAX_MESSAGE = 500  # characters; a message may quote a damaged file


class VoxportError(Exception):
    """Base of all. Exit code 3: the work failed. Its text is one printable line, whatever it quotes.

    `field` names the parameter or option that was wrong, as in `max_frames`; the message starts with it. A
    command line shows its flag instead.
    """

    exit_code = 3

    def __init__(self, *args: object, field: str | None = None):
        super().__init__(*args)
        self.field = field

    def __str__(self) -> str:
        return one_line(super().__str__())


class UsageError(VoxportError):
    """The request cannot be served. Exit code 2."""

    exit_code = 2


class IntegrityError(VoxportError):
    """A file is damaged, incomplete, or newer than this code. Exit code 5.

    `faults` has the messages of all faults that were found. The error's own text is the first one, and how
    many more there are.
    """

    exit_code = 5

    def __init__(self, *faults: str, field: str | None = None):
        more = f" (and {len(faults) - 1} more)" if len(faults) > 1 else ""
        super().__init__(*(f"{fault}{more}" for fault in faults[:1]), field=field)
        self.faults = tuple(map(one_line, faults))


class EngineUnavailable(UsageError):
    """The package of an engine or a target is not installed; the message names the extra to install."""


class RecipeError(UsageError):
    """A recipe, rule or override cannot be followed."""


class CheckpointNotFound(UsageError):
    """The path given as a checkpoint is not one."""


class ConfigError(IntegrityError):
    """The configuration of a checkpoint lacks a key, or a value makes no sense. The message names the key."""


class CheckpointError(IntegrityError):
    """A weight or voice file is missing, truncated, misshapen or of the wrong dtype.

    The message names file and tensor.
    """


class ExportError(VoxportError):
    """A component could not be lowered or written."""


class VerificationError(VoxportError):
    """An artifact does not match eager PyTorch. Exit code 4."""

    exit_code = 4


def one_line(message: object) -> str:
    """`message` as one printable line of at most `MAX_MESSAGE` characters."""
    printable = "".join(character if character.isprintable() else " " for character in str(message))
    return " ".join(printable.split())[:MAX_MESSAGE]


def first_line(message: object) -> str:
    """The first line of another library's message; its type name if the message is empty."""
    lines = str(message).strip().splitlines()
    return lines[0][:MAX_MESSAGE] if lines else type(message).__name__
