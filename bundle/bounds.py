"""Bounds of the numbers in checkpoints and manifests.

They are far above any model, and keep what is built from one number small: tables of filters, lists of
tokens, silence before a recording.
"""

from typing import Annotated

from pydantic import Field

Count = Annotated[int, Field(gt=0, le=2**24)]
Id = Annotated[int, Field(ge=0, lt=2**31)]
FRAME_RATE = 12.5  # frames of speech, or tokens of recognition, a second, in every family
FRAME_SECONDS = 1 / FRAME_RATE
MIN_RATE, MAX_RATE = 1000, 384_000  # Hz; a filter that resamples to 1 Hz takes hours to make
SampleRate = Annotated[int, Field(ge=MIN_RATE, le=MAX_RATE)]
MelBins = Annotated[int, Field(ge=1, le=1024)]
WindowSize = Annotated[int, Field(ge=2, le=2**14)]  # samples; the table of filters has a row for half of them
HopLength = Annotated[int, Field(ge=1, le=2**14)]  # samples
SilentTokens = Annotated[int, Field(ge=0, le=256)]  # each is a step of the decoder
TokenSamples = Annotated[int, Field(gt=0, le=2**16)]  # published: 1280
MAX_WINDOW_HOPS = 16  # hops of a window; published: 2.5
Codebooks = Annotated[int, Field(ge=2, le=256)]
EulerSteps = Annotated[int, Field(ge=1, le=256)]  # calls of the acoustic head per frame
MAX_VOICE_ROWS = 2**13  # 11 minutes at 12.5 rows per second; published voices have up to 218 rows
MAX_VOICE_BYTES = 2**28  # more than MAX_VOICE_ROWS rows of the published width in float32
MAX_SPECIAL_TOKENS = 2**16  # tokenizers of the published models have 1,000
MAX_TOKENIZER_BYTES = 2**28  # published: 15 MB
MAX_CODE_FRAMES = 45_000  # that are decoded at once: an hour at 12.5 per second, 0.35 GB of samples
MAX_TRACE_BYTES = 2**28  # inputs of a trace; the noise of a Qwen3-TTS frame takes 0.14 MB
