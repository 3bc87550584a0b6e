"""Speech of Qwen3-TTS with one seed: streamed, whole, and in a batch with other texts.

    same_seed.py --targets onnx,executorch,coreml --folder FOLDER -o OUT.json

The models are CustomVoice and VoiceDesign of size `tiny`, without quantisation. Core ML bundles run in
float32. The rows of OUT.json are the largest differences of samples from those of the text alone and in one
piece. Exit code 1: one is above 1e-4, or numbers of samples differ. The tests compare the Base variant.
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

from voxport.bundle.json_types import Json
from voxport.export.__main__ import main as export
from voxport.model.synthetic.checkpoint import write_checkpoint
from voxport.runtime.engines.base import EngineOptions
from voxport.runtime.machine import describe_machine
from voxport.runtime.opening import open_task
from voxport.runtime.speech_request import SpeechOptions
from voxport.runtime.text_to_speech import TextToSpeech

CLOSE = 1e-4  # codec convolutions sum in another order for other lengths
FRAMES, SEED = 8, 5
TEXTS = ("Hello there.", "How are you today? I am well.", "Yes.")
MODES: dict[str, dict[str, SpeechOptions]] = {
    "custom-voice": {
        "speaker": {"voice": "ryan", "language": "english"},
        "dialect": {"voice": "dylan", "language": "beijing_dialect"},
        "auto, text before the frames": {"voice": "ryan", "text_layout": "non_streaming"},
    },
    "voice-design": {
        "description": {"instruct": "A calm old man with a low voice.", "language": "english"},
        "description, text with the frames": {"instruct": "A calm woman.", "text_layout": "streaming"},
    },
}


def measure(task: TextToSpeech, options: SpeechOptions) -> dict[str, float | None]:
    """The largest difference in each way to speak; None where numbers of samples differ."""
    common: dict[str, Any] = {**options, "seed": SEED, "max_frames": FRAMES}
    whole = [joined(task.speak(text, chunk_frames=FRAMES, **common)) for text in TEXTS]
    streamed = [joined(task.speak(text, chunk_frames=1, **common)) for text in TEXTS]
    pieces: list[list[np.ndarray]] = [[] for _ in TEXTS]
    for index, samples in task.speak_all(TEXTS, slots=len(TEXTS), **common):
        pieces[index].append(samples)
    return {"streamed": difference(streamed, whole), "in a batch": difference(map(joined, pieces), whole)}


def joined(pieces: Any) -> np.ndarray:
    return np.concatenate(list(pieces))


def difference(found: Any, expected: list[np.ndarray]) -> float | None:
    pairs = list(zip(found, expected, strict=True))
    if any(first.shape != second.shape for first, second in pairs):
        return None
    return max(float(np.abs(first - second).max()) for first, second in pairs)


def bundle_of(variant: str, target: str, folder: Path) -> Path:
    checkpoint, bundle = folder / variant, folder / f"{variant}-{target}"
    if not checkpoint.exists():
        write_checkpoint(checkpoint, f"tiny-{variant}", key="qwen3_tts")
    options = ["--checkpoint", str(checkpoint), "--target", target, "--quant", "none", "--no-verify"]
    options += ["--compute-precision", "float32"] if target == "coreml" else []
    if not bundle.exists() and export([*options, "--out", str(bundle)]):
        sys.exit(f"same_seed: {variant} for {target}: the export failed")
    return bundle


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--targets", default="onnx,executorch,coreml")
    parser.add_argument("--variants", default=",".join(MODES))
    parser.add_argument("--folder", type=Path, required=True, help="folder of checkpoints and bundles")
    parser.add_argument("-o", "--out", type=Path, required=True, help="JSON file")
    arguments = parser.parse_args()
    rows: Json = {}
    for variant in arguments.variants.split(","):
        for target in arguments.targets.split(","):
            precision = "float32" if target == "coreml" else None
            bundle = bundle_of(variant, target, arguments.folder)
            task = open_task(TextToSpeech, bundle, EngineOptions(compute_precision=precision))
            for mode, options in MODES[variant].items():
                rows[f"{target}, {variant}, {mode}"] = measure(task, options)
    content = {"machine": describe_machine(None, "torch"), "frames": FRAMES, "seed": SEED, "rows": rows}
    arguments.out.write_text(json.dumps(content, indent=1) + "\n")
    values = [value for row in rows.values() for value in row.values()]
    sys.exit(any(value is None or value > CLOSE for value in values))


if __name__ == "__main__":
    main()
