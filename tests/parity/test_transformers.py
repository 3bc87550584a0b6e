"""Comparison with Voxtral-Realtime of transformers, for random configurations in the published format.

transformers stores queries and keys differently (half-split rotation). The rotation base of its encoder must
be given, because its default differs.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.model.transformers_model import Sizes, assert_equals_transformers, build, published


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Sizes], tuple[Any, Path]]:
    made = {}

    def get(sizes: Sizes) -> tuple[Any, Path]:
        key = (sizes.encoder_window, sizes.decoder_window, sizes.heads, sizes.kv_heads)
        if key not in made:
            model = build(sizes)
            made[key] = model, published(model, sizes, tmp_path_factory.mktemp("published") / "checkpoint")
        return made[key]

    return get


CASES = [
    Sizes(),
    Sizes(delay=1),
    Sizes(delay=15),
    Sizes(encoder_window=750, decoder_window=8192),  # longer than the audio
    Sizes(encoder_window=5, decoder_window=2),
    Sizes(encoder_window=13, decoder_window=53, delay=2),  # the window is one short of the last position
    Sizes(heads=6, kv_heads=6),
    *(Sizes(samples=count) for count in (0, 1, 1279, 4001)),
]


@pytest.mark.parametrize("sizes", CASES, ids=str)
@pytest.mark.parametrize("live", [False, True])
def test_embeddings_logits_and_tokens_equal_transformers(
    models: Callable[[Sizes], tuple[Any, Path]], sizes: Sizes, live: bool
) -> None:
    model, folder = models(sizes)
    assert_equals_transformers(model, folder, sizes, live=live)


@pytest.mark.parametrize("fault", ["delay", "rotation base"])
def test_a_wrong_delay_or_rotation_base_is_detected(fault: str, tmp_path: Path) -> None:
    model, sizes = build(Sizes()), Sizes(delay=5)
    folder = published(model, sizes, tmp_path / "checkpoint")
    if fault == "delay":
        forward = model.forward
        model.forward = lambda **inputs: forward(**{**inputs, "num_delay_tokens": 6})
    else:
        content = json.loads((folder / "params.json").read_text())
        content["multimodal"]["whisper_model_args"]["encoder_args"]["rope_theta"] = 1e4
        (folder / "params.json").write_text(json.dumps(content))
    with pytest.raises(AssertionError, match="Not equal to tolerance"):
        assert_equals_transformers(model, folder, sizes)
