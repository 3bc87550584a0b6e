"""The commands of `python -m export`."""

from bundle.command import Command

COMMANDS = (
    Command(
        "export",
        "export a checkpoint to ONNX, ExecuTorch or Core ML",
        "export.commands.export",
        "run the same command again to continue after the finished graphs",
    ),
    Command("verify", "verify a bundle against eager PyTorch again", "export.commands.verify"),
    Command("list", "list models, targets, recipes, components and module paths", "export.commands.list"),
    Command("bench", "measure the speed of a bundle, and of eager PyTorch", "export.commands.bench"),
    Command("trace", "write all intermediate values of eager PyTorch", "export.commands.trace"),
)
