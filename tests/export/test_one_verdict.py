"""`inspect` and `export` have one verdict: what is loadable exports, and what is not does not.

Each case changes a file. The verdict of an export is that of all checks before the first graph is lowered.
"""

import base64
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from support.commands import error_line

from voxport.bundle.errors import VoxportError
from voxport.bundle.manifest import ExportRequest
from voxport.export.__main__ import main as export
from voxport.export.job import make_job
from voxport.export.resolve import Source, resolve
from voxport.export.targets import open_target
from voxport.model.__main__ import main as model
from voxport.model.inspection import inspect_checkpoint
from voxport.model.synthetic.checkpoint import random_checkpoint
from voxport.runtime.families import read_constants

QWEN, TTS, REALTIME = "qwen3_tts", "voxtral_tts", "voxtral_realtime"
CODEC = "speech_tokenizer/config.json"
DELETE = object()


def edit(file: str, path: str, value: Any) -> Callable[[Path], None]:
    """Sets or deletes a value of a JSON file; a dotted path leads into sections and lists."""

    def damage(folder: Path) -> None:
        content = json.loads((folder / file).read_text())
        *sections, last = path.split(".")
        section = content
        for name in sections:
            section = section[int(name) if isinstance(section, list) else name]
        if value is DELETE:
            del section[last]
        else:
            section[int(last) if isinstance(section, list) else last] = value
        (folder / file).write_text(json.dumps(content))

    return damage


def rename_token(token: str) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        text = (folder / "tekken.json").read_text()
        assert json.dumps(token) in text
        (folder / "tekken.json").write_text(text.replace(json.dumps(token), '"<other>"'))

    return damage


def swapped_markers(folder: Path) -> None:
    """The ids of two markers are exchanged."""
    text = (folder / "tekken.json").read_text()
    for old, new in (("[AUDIO]", "[x]"), ("[BEGIN_AUDIO]", "[AUDIO]"), ("[x]", "[BEGIN_AUDIO]")):
        text = text.replace(json.dumps(old), json.dumps(new))
    (folder / "tekken.json").write_text(text)


def larger_vocabulary(folder: Path) -> None:
    content = json.loads((folder / "tekken.json").read_text())
    rank = len(content["vocab"])
    token = base64.b64encode(f"token {rank}".encode()).decode()
    content["vocab"].append({"rank": rank, "token_bytes": token, "token_str": None})
    content["config"] |= {
        "num_vocab_tokens": rank + 1,
        "default_vocab_size": content["config"]["default_num_special_tokens"] + rank + 1,
    }
    (folder / "tekken.json").write_text(json.dumps(content))


def overwrite(file: str, text: str) -> Callable[[Path], object]:
    return lambda folder: (folder / file).write_text(text)


def nan_in_a_voice(folder: Path) -> None:
    path = next((folder / "voice_embedding").glob("*.pt"))
    torch.save(torch.full_like(torch.load(path), torch.nan), path)


def huge_id(folder: Path) -> None:
    edit("vocab.json", "zzz", 10**6)(folder)


# family, change, what is said; None if the checkpoint is loadable
CASES: dict[str, tuple[str, Callable[[Path], object], str | None]] = {
    "no [AUDIO]": (TTS, rename_token("[AUDIO]"), "has no token [AUDIO]"),
    "no text marker": (TTS, rename_token("[NEXT_AUDIO_TEXT]"), "has no token [NEXT_AUDIO_TEXT]"),
    "no [AUDIO], which transcription does not need": (REALTIME, rename_token("[AUDIO]"), None),
    "no padding token": (REALTIME, rename_token("[STREAMING_PAD]"), "[STREAMING_PAD]"),
    "markers of other ids": (TTS, swapped_markers, "id of [AUDIO]: 25, expected 24 from params.json"),
    **{
        f"{name} of {family}": (family, edit("tekken.json", path, value), said)
        for family in (TTS, REALTIME)
        for name, path, value, said in (
            ("default_vocab_size", "config.default_vocab_size", 150000, "do not have the ranks and sizes"),
            (
                "smaller vocabulary",
                "config.default_vocab_size",
                1400,
                "size of the vocabulary: 1400, expected",
            ),
            ("no special_tokens", "special_tokens", DELETE, "has no token ["),
            ("version", "config.version", "v99", "Unknown version: v99"),
            ("no config", "config", DELETE, "config is missing"),
            ("no vocab", "vocab", DELETE, "vocab is missing"),
            ("a pattern that is none", "config.pattern", "(", "not a tokenizer"),
        )
    },
    "larger vocabulary": (TTS, larger_vocabulary, "size of the vocabulary"),
    "tekken as a bare array": (TTS, overwrite("tekken.json", "[]"), "holds a bare array"),
    "vocab.json is empty": (QWEN, overwrite("vocab.json", "{}"), "not a readable vocabulary"),
    "vocab.json is a list": (QWEN, overwrite("vocab.json", "[1]"), "not a readable vocabulary"),
    "merges of unknown tokens": (
        QWEN,
        overwrite("merges.txt", "#version: 0.2\nqqqq zzzz\n"),
        "not a readable",
    ),
    "an id beyond the text table": (QWEN, huge_id, "'zzz' is 1000000, below 1536 expected"),
    "another id of the assistant": (
        QWEN,
        edit("vocab.json", "assistant", 5),
        "'assistant' is 5, ",
    ),
    "another id of the start": (
        QWEN,
        edit("tokenizer_config.json", "added_tokens_decoder", {"1402": {"content": "<|im_start|>"}}),
        "'<|im_start|>' is 1402, 1401 expected from im_start_token_id",
    ),
    "added tokens of an odd kind": (
        QWEN,
        edit("tokenizer_config.json", "added_tokens_decoder", {"x": 3, "7": "y", "8": {"content": ["z"]}}),
        None,
    ),
    "added tokens as a list": (QWEN, edit("tokenizer_config.json", "added_tokens_decoder", [1]), None),
    **{
        f"{key} {rate}": (QWEN, edit(CODEC, key, rate), f"{key} {rate}, but 12.5 frames of ")
        for key in ("output_sample_rate", "input_sample_rate")
        for rate in (48000, 22050, 23999)
    },
    "decode_upsample_rate": (QWEN, edit(CODEC, "decode_upsample_rate", 960), "decode_upsample_rate 960"),
    "encode_downsample_rate": (QWEN, edit(CODEC, "encode_downsample_rate", 960), "encode_downsample_rate"),
    "upsample_rates": (QWEN, edit(CODEC, "decoder_config.upsample_rates.0", 4), "decode_upsample_rate 1920"),
    "rate of Voxtral-TTS": (
        TTS,
        edit("params.json", "multimodal.audio_tokenizer_args.sampling_rate", 48000),
        "sampling_rate is 48000",
    ),
    "frame rate of Voxtral-TTS": (
        TTS,
        edit("params.json", "multimodal.audio_model_args.audio_encoding_args.frame_rate", 25),
        "frame_rate is 25.0; the codec makes 12.5",
    ),
    "rate of Voxtral-Realtime": (
        REALTIME,
        edit(
            "params.json",
            "multimodal.whisper_model_args.encoder_args.audio_encoding_args.sampling_rate",
            22050,
        ),
        "hop and strides make",
    ),
    "a speaker of no row": (
        QWEN,
        edit("config.json", "talker_config.spk_id", {"anna": 10**7}),
        "spk_id.anna",
    ),
    "a language of no row": (
        QWEN,
        edit("config.json", "talker_config.codec_language_id", {"english": 10**7}),
        "codec_language_id.english",
    ),
    "no languages": (QWEN, edit("config.json", "talker_config.codec_language_id", {}), None),
    "a temperature that no runtime takes": (
        QWEN,
        edit("generation_config.json", "temperature", 101),
        "temperature",
    ),
    "a temperature of 100": (QWEN, edit("generation_config.json", "temperature", 100), None),
    "top_k beyond all codes": (QWEN, edit("generation_config.json", "top_k", 2**24 + 1), "top_k"),
    "endless frames": (QWEN, edit("generation_config.json", "max_new_tokens", 2**24 + 1), "max_new_tokens"),
    "a voice that is not finite": (TTS, nan_in_a_voice, "not finite"),
}


def verdict_of_export(folder: Path) -> str | None:
    """Why the checkpoint does not export; None if the lowering would begin."""
    try:
        resolved = resolve(source := Source(folder), ExportRequest())
        assert len(source.voices) >= 0
        read_constants(make_job(resolved, open_target("onnx"), "tiny"))
    except VoxportError as error:
        return str(error)
    return None


@pytest.mark.parametrize(("family", "damage", "said"), CASES.values(), ids=CASES)
def test_both_say_the_same(
    tmp_path: Path, family: str, damage: Callable[[Path], object], said: str | None
) -> None:
    folder = Path(shutil.copytree(random_checkpoint(family), tmp_path / family))
    damage(folder)
    found, exported = inspect_checkpoint(folder), verdict_of_export(folder)
    assert found["loadable"] == (exported is None) == (said is None), f"{found['problems']} {exported}"
    if said is not None:
        assert exported and said in exported
        assert any(said in problem for problem in found["problems"])


def test_a_tokenizer_that_does_not_fit_is_found_before_the_export_starts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = Path(shutil.copytree(random_checkpoint(TTS), tmp_path / "tiny"))
    rename_token("[AUDIO]")(folder)
    assert model(["inspect", str(folder)]) == 5
    assert "has no token [AUDIO]" in error_line(capsys)
    assert export(["--target", "onnx", "--checkpoint", str(folder), "--dry-run"]) == 5
    assert "has no token [AUDIO]" in error_line(capsys)
