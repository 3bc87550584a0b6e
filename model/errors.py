"""Errors about what a person hands to voxport as a checkpoint: each is one line that a person can act on."""


class ModelError(Exception):
    """A checkpoint, its configuration or its tokenizer is not what it must be. Exit code 5: integrity.

    Its text is one printable line, whatever it quotes.
    """

    exit_code = 5

    def __str__(self) -> str:
        return " ".join("".join(character if character.isprintable() else " " for character in super().__str__()).split())


class ConfigError(ModelError):
    """`params.json` lacks a key, or a value makes no sense. The message names the key."""


class CheckpointError(ModelError):
    """A weight or voice file is missing, truncated, misshapen or of the wrong dtype. The message names file and tensor."""


class CheckpointNotFound(ModelError):
    """The path given as a checkpoint is not one. Exit code 2: usage."""

    exit_code = 2


class OutputError(ModelError):
    """A checkpoint cannot be written as asked. Exit code 2: usage."""

    exit_code = 2


class UnknownFamily(ModelError):
    """No family has that name. Exit code 2: usage."""

    exit_code = 2
