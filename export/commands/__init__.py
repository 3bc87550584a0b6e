"""The commands of `python -m export`."""

from voxport.bundle.command import EXAMPLE_BUNDLE, Command

COMMANDS = (
    Command(
        "export",
        "export a checkpoint to ONNX, ExecuTorch or Core ML",
        "voxport.export.commands.export",
        "run the same command again to continue after the finished graphs",
        example="--checkpoint Voxtral-4B-TTS-2603 --target onnx --quant w4g128",
    ),
    Command(
        "verify",
        "verify a bundle against eager PyTorch again",
        "voxport.export.commands.verify",
        example=EXAMPLE_BUNDLE,
    ),
    Command(
        "evaluate",
        "measure how well a bundle speaks or transcribes",
        "voxport.export.commands.evaluate",
        example=EXAMPLE_BUNDLE,
    ),
    Command(
        "sweep",
        "measure what each part of a model loses by quantisation",
        "voxport.export.commands.sweep",
        example=f"{EXAMPLE_BUNDLE} --layers",
    ),
    Command(
        "convert",
        "convert weights to and from mlx-audio, or to another precision",
        "voxport.export.commands.convert",
        "run the same command again to continue after the finished files",
        example="Qwen3-TTS-12Hz-0.6B-Base qwen-mlx --to mlx --quant w4",
    ),
    Command(
        "list",
        "list models, targets, recipes, components and module paths",
        "voxport.export.commands.list",
        example="--json",
    ),
    Command(
        "trace",
        "write all intermediate values of eager PyTorch",
        "voxport.export.commands.trace",
        example="--quant w8 --target onnx --inputs inputs.npz -o eager.npz",
    ),
)
