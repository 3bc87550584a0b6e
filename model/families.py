"""The table of model families: all that export needs to know of one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from model.voxtral_tts import components as voxtral_tts
from model.voxtral_tts.config import Switches, load_config
from model.voxtral_tts.voices import load_voices


@dataclass(frozen=True)
class Family:
    """Functions of one family; configuration objects are opaque to the caller.

    `root(config, checkpoint)` checks a checkpoint and gives its meta-device module; `components(root, config, switches,
    cache_length, layout, only)` describes what is exported; `high_precision` and `constant` are module paths.
    """

    name: str
    title: str
    load_config: Callable[[Path], Any]
    root: Callable[..., Any]
    components: Callable[..., list]
    weights_of_graph: dict[str, tuple[str, ...]]
    constants: Callable[[Any], dict[str, Any]]
    voices: Callable[[Path, int], dict[str, Any]]
    high_precision: tuple[str, ...]
    constant: tuple[str, ...]
    switches: type


FAMILIES = {
    "voxtral_tts": Family(
        name="voxtral_tts",
        title="Voxtral-TTS",
        load_config=load_config,
        root=voxtral_tts.open_root,
        components=voxtral_tts.components,
        weights_of_graph=voxtral_tts.WEIGHTS_OF_GRAPH,
        constants=voxtral_tts.constants,
        voices=load_voices,
        high_precision=voxtral_tts.HIGH_PRECISION,
        constant=voxtral_tts.CONSTANT,
        switches=Switches,
    )
}
