"""Which files of a repository are fetched for a checkpoint."""

import pytest

from voxport.model.hub_checkpoint import files_to_read

SHARDS = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]
INDEX = "model.safetensors.index.json"
QWEN = ["README.md", "config.json", "merges.txt", "vocab.json", "speech_tokenizer/config.json"]
CODEC = "speech_tokenizer/model.safetensors"
MISTRAL = ["README.md", "config.json", "params.json", "tekken.json"]
OTHERS = [
    ".gitattributes",
    "LICENSE",
    "checkpoint-500/config.json",
    "checkpoint-500/model.safetensors",
    "model.gguf",
    "optimizer.pt",
    "onnx/model.onnx",
    "optimizer.safetensors",
    "pytorch_model.bin",
    "speech.wav",
]


@pytest.mark.parametrize(
    ("names", "weights", "expected"),
    [
        ([*MISTRAL, "consolidated.safetensors", "model.safetensors"], [], ["consolidated.safetensors"]),
        ([*MISTRAL, "consolidated.safetensors", INDEX, *SHARDS], [], ["consolidated.safetensors"]),
        ([*MISTRAL, INDEX, *SHARDS], [], [*SHARDS, INDEX]),
        ([*QWEN, "model.safetensors", CODEC, INDEX, *SHARDS], [], ["model.safetensors", CODEC]),
        (
            [*QWEN, "ema.safetensors", "model.safetensors", CODEC],
            ["ema.safetensors"],
            ["ema.safetensors", CODEC],
        ),
        ([*QWEN, "model.safetensors", CODEC, INDEX, *SHARDS], [SHARDS[1]], ["model.safetensors", CODEC]),
        (["adapter_config.json", "adapter_model.safetensors"], [], ["adapter_model.safetensors"]),
        (MISTRAL, [], []),
    ],
)
def test_one_set_of_weights_is_fetched_last(
    names: list[str], weights: list[str], expected: list[str]
) -> None:
    texts = [name for name in names if name.endswith((".json", ".txt", ".md")) and name != INDEX]
    assert files_to_read([*names, *OTHERS], weights) == sorted(texts) + expected


def test_voices_come_with_a_checkpoint() -> None:
    voices = ["voice_embedding/a.pt", "voice_embedding/b.safetensors"]
    found = files_to_read([*MISTRAL, *voices, "consolidated.safetensors", *OTHERS])
    assert found == [*MISTRAL, *voices, "consolidated.safetensors"]
