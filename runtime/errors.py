"""Errors of the runtime: one line that says what, where, expected, what to do."""

LONGEST = 500  # characters of a message; what quotes a file may quote any nonsense


class RuntimeFault(Exception):
    """Base of all; exit code 3: the work failed. Its text is one printable line, whatever it quotes."""

    exit_code = 3

    def __str__(self) -> str:
        return one_line(super().__str__())


class UsageError(RuntimeFault):
    """What was asked for cannot be done with this bundle. Exit code 2."""

    exit_code = 2


class IntegrityError(RuntimeFault):
    """A bundle is damaged, incomplete, or newer than this runtime. Exit code 5."""

    exit_code = 5


class EngineUnavailable(UsageError):
    """The engine of the bundle's target is not installed; the message names the extra to install."""


def one_line(message: object) -> str:
    """All of a message, of what may quote anything."""
    return " ".join("".join(character if character.isprintable() else " " for character in str(message)).split())[:LONGEST]


def system_error(error: OSError) -> str:
    """What the system says, and of which file."""
    return one_line(f"{str(error.filename)[:200] + ': ' if error.filename else ''}{error.strerror or error}")


def first_line(message: object) -> str:
    """What matters of another library's message, which may have many lines or none."""
    lines = str(message).strip().splitlines()
    return lines[0][:LONGEST] if lines else type(message).__name__
