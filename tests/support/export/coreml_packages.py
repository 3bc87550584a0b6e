"""Files in a Core ML package, and short verification of its bundle."""

from pathlib import Path

from voxport.export.__main__ import main as export

MODEL, WEIGHTS = "Data/com.apple.CoreML/model.mlmodel", "Data/com.apple.CoreML/weights/weight.bin"


def verify(bundle: Path, *more: str) -> int:
    return export(["verify", str(bundle), "--steps", "30", *more])
