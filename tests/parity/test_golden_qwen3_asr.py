"""Qwen3-ASR beside the official package: features, encoder, tokens, prompts and answers.

Differences of 1e-4 are generous in float32: the package's own kernels differ by up to 7e-6.
"""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from support.paths import GOLDEN

from voxport.model.checkpoint import materialize
from voxport.model.layers.qwen_block import QwenStack
from voxport.model.qwen3_asr.config import Options
from voxport.model.qwen3_asr.family import FAMILY
from voxport.model.qwen3_asr.modules import Encoder, rows_of
from voxport.runtime.families.qwen3_asr.features import log_mel
from voxport.runtime.families.qwen3_asr.text import Tokenizer, forced_answer, parse_answer

FOLDER = GOLDEN / "qwen3_asr"
CLOSE, ROWS = 1e-4, 256
TEXTS = json.loads((FOLDER / "text.json").read_text(encoding="utf-8"))
CLIPS = ("tiny", "window", "odd", "silence", "unseen")


class Reference:
    """The recogniser in PyTorch."""

    def __init__(self, folder: Path):
        self.config = FAMILY.layout.load_config(folder)
        self.constants = FAMILY.constants(self.config, Options())
        paths = [folder / name for name in FAMILY.layout.tokenizer_files(folder)]
        self.tokenizer = Tokenizer(paths, self.constants)
        root = FAMILY.open_root(self.config, checkpoint := FAMILY.open_checkpoint(folder))
        materialize(root, checkpoint, ("thinker",))
        thinker, text = root.thinker, self.config.thinker_config.text_config
        self.table = thinker.model.embed_tokens.weight.clone()
        root.requires_grad_(False)
        self.encoder = Encoder(thinker.audio_tower, self.config.thinker_config.audio_config)
        self.decoder = QwenStack(thinker.model, thinker.lm_head, text, ROWS)
        shape = (1, ROWS, text.num_key_value_heads, text.head_dim)
        self.caches = [torch.zeros(shape) for _ in range(2 * text.num_hidden_layers)]

    def sound(self, mel: np.ndarray) -> torch.Tensor:
        """mel [frames, mels] -> rows [n, width], window by window."""
        size, rows = 100 * self.constants.window_chunks, list[torch.Tensor]()
        for start in range(0, len(mel), size):
            frames = torch.from_numpy(mel[start : start + size])
            padded = torch.nn.functional.pad(frames, (0, 0, 0, -len(frames) % 100)).reshape(1, -1, 100, 128)
            count = torch.tensor([len(frames)])
            found = self.encoder(padded, count, torch.tensor([int(len(mel) < 100)]))
            rows.append(found[0, : int(rows_of(count))])
        return torch.cat(rows)

    def logits(self, ids: np.ndarray, sound: torch.Tensor, tokens: np.ndarray) -> np.ndarray:
        """Logits from which each of the tokens is chosen."""
        prompt = torch.from_numpy(ids).long()
        rows = self.table[prompt].clone()
        rows[prompt == self.constants.audio_pad_id] = sound
        caches, found = [cache.clone() for cache in self.caches], list[torch.Tensor]()
        inputs, position = rows, 0
        for token in tokens:
            _, logits, *caches = self.decoder(inputs[None], torch.tensor([position]), *caches)
            found.append(logits[0])
            position += len(inputs)
            inputs = self.table[int(token)][None]
        return torch.stack(found).numpy()


@pytest.fixture(scope="module")
def golden() -> dict[str, np.ndarray]:
    return dict(np.load(FOLDER / "asr.npz"))


@pytest.fixture(scope="module")
def reference() -> Reference:
    return Reference(FOLDER / "asr")


@pytest.mark.parametrize("clip", CLIPS)
def test_features_and_encoder(reference: Reference, golden: dict[str, np.ndarray], clip: str) -> None:
    mel = log_mel(golden[f"{clip}_pcm"].astype(np.float32) / 32768, reference.constants)
    assert np.abs(mel.T - golden[f"{clip}_mel"]).max() < CLOSE
    sound = reference.sound(np.ascontiguousarray(golden[f"{clip}_mel"].T))
    assert np.abs(sound.numpy() - golden[f"{clip}_sound"]).max() < CLOSE


@pytest.mark.parametrize("run", TEXTS["runs"])
def test_tokens_and_answer(reference: Reference, golden: dict[str, np.ndarray], run: str) -> None:
    clip, forced = run.split("_")[0], {"odd_forced": "English", "unseen_forced": "Korean"}.get(run)
    ids, tokens = golden[f"{run}_ids"], golden[f"{run}_tokens"]
    sound = torch.from_numpy(golden[f"{clip}_sound"])
    context = "harbour, 3 friends" if run == "odd_context" else ""
    assert reference.tokenizer.prompt(len(sound), context, forced_answer(forced)) == ids.tolist()
    logits = reference.logits(ids, sound, tokens)
    assert np.abs(logits - golden[f"{run}_logits"]).max() < CLOSE
    assert logits.argmax(axis=1).tolist() == tokens.tolist()
    expected, raw = TEXTS["runs"][run], reference.tokenizer.decode(tokens)
    assert raw == expected["raw"]
    assert parse_answer(raw, forced) == (expected["language"], expected["text"])


@pytest.mark.parametrize("case", TEXTS["parse"])
def test_answers(case: dict[str, str]) -> None:
    assert parse_answer(case["raw"], case["forced"] or None) == (case["language"], case["text"])


@pytest.mark.parametrize("case", TEXTS["tokenizer"])
def test_ids_of_texts(reference: Reference, case: dict[str, list[int]]) -> None:
    assert reference.tokenizer.encode(str(case["text"])) == case["ids"]
