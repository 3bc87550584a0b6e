"""`generation_config.json` of Qwen3-TTS: how codes are drawn, and how many."""

from pydantic import Field

from voxport.bundle.constants.qwen3_tts import Factor, SamplingConstants, TopK, TopP
from voxport.model.config import Section

GENERATION_CONFIG = "generation_config.json"


class GenerationConfig(Section):
    """`generation_config.json`. The defaults are those of the published package if the file is missing."""

    do_sample: bool = True
    temperature: Factor = 0.9
    top_k: TopK = 50
    top_p: TopP = 1.0
    repetition_penalty: Factor = 1.05
    subtalker_dosample: bool = True
    subtalker_temperature: Factor = 0.9
    subtalker_top_k: TopK = 50
    subtalker_top_p: TopP = 1.0
    max_new_tokens: int = Field(default=2048, ge=2, le=1 << 24)

    @property
    def max_frames(self) -> int:
        """Frames of one text. The last of the tokens gives none."""
        return self.max_new_tokens - 1

    def sampling(self) -> SamplingConstants:
        return SamplingConstants(
            temperature=self.temperature if self.do_sample else 0.0,
            top_k=self.top_k,
            top_p=self.top_p,
            repetition_penalty=self.repetition_penalty,
            others_temperature=self.subtalker_temperature if self.subtalker_dosample else 0.0,
            others_top_k=self.subtalker_top_k,
            others_top_p=self.subtalker_top_p,
        )
