"""The toy family."""

from __future__ import annotations

from pathlib import Path
from string import ascii_lowercase
from typing import Any

import numpy as np
from exercises.toy_constants import Constants
from exercises.toy_model.config import Options, ToyConfig, parse_config
from exercises.toy_model.graphs import DecoderGraph, ToyWeights
from exercises.toy_model.layouts import LAYOUTS, LETTERS

from voxport.bundle.json_types import Json
from voxport.model.family import Decoder, Distribution, Family, Synthetic, VerificationPlan

DIM = 32


class ToySynthetic(Synthetic[ToyConfig]):
    version = 1
    sizes = ("tiny",)
    weight_files = {"model.safetensors": "", "head/model.safetensors": "head."}

    def documents(self, size: str) -> dict[str, Json]:
        return {"toy.json": {"toy_dim": DIM}}

    def distribution(self, name: str, shape: tuple[int, ...], config: ToyConfig) -> Distribution:
        return np.float32(0), np.float32(shape[-1] ** -0.5)

    def write_extra_files(self, folder: Path, size: str, seed: int) -> None:
        (folder / LETTERS).write_text((". " + ascii_lowercase + "0123456789")[:DIM])


class Toy(Family[ToyWeights, ToyConfig, Options]):
    name = "toy"
    title = "Toy"
    licence = "none"
    task = "text-to-speech"
    languages = ("en",)
    options = Options
    layouts = LAYOUTS
    synthetic = ToySynthetic()
    verification = VerificationPlan(decoders=(Decoder("prefill", "decode_step", output="y"),))
    parameter_groups = {"body.": "body", "head.": "head"}

    def parse_config(self, content: Any, source: str) -> ToyConfig:
        return parse_config(content, source)

    def size_config(self, size: str) -> Json:
        return {"toy_dim": DIM}

    def weights(self, config: ToyConfig) -> ToyWeights:
        return ToyWeights(config.toy_dim)

    def graphs(self, config: ToyConfig, options: Options) -> tuple[DecoderGraph, ...]:
        return (DecoderGraph(),)

    def constants(self, config: ToyConfig, options: Options) -> Constants:
        return Constants(dim=config.toy_dim, gain=2.0 if options.loud else 1.0)

    def longest_cache(self, config: ToyConfig) -> int:
        return 4096

    def default_cache(self, config: ToyConfig, options: Options) -> int:
        return 128

    def summary(self, config: ToyConfig) -> list[tuple[str, str]]:
        return [("toy", str(config.toy_dim))]

    def calls(self, config: ToyConfig, options: Options) -> str:
        return "Call `prefill` once, then `decode_step` for each letter."


FAMILY = Toy()
