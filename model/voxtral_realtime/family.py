"""The family's row: what export is told of Voxtral-Realtime."""

from __future__ import annotations

from typing import Any

from model.config import SHAPE, values_of
from model.family import Family
from model.verification_plan import ChunkedComponent, Decoder, VerificationPlan
from model.voxtral_realtime import components as voxtral_realtime
from model.voxtral_realtime.components import AUDIO
from model.voxtral_realtime.config import Switches, VoxtralRealtimeConfig, load_config, parse_config
from model.voxtral_realtime.synthetic import SYNTHETIC

PARTS = {
    f"{AUDIO}.tok_embeddings.": "token embeddings and head",
    f"{AUDIO}.whisper_encoder.": "audio encoder",
    f"{AUDIO}.audio_language_projection.": "adapter",
    "layers.": "decoder",
    "norm.": "decoder",
}
CALLS = """\
## Order of calls

Sound is mono, {rate} Hz, float32 in [-1, 1]; one token is {samples} samples. Let d be the delay in tokens ({delays}).

1. Silence: {left} * {samples} zeros before the sound; behind it zeros up to a multiple of {samples}, and (d + {behind}) * {samples} more.
2. Log-mel: {frames} frames a token, 0 to {frames} N - 1 for N tokens of padded sound. Frame k is centred at sample {hop} k: a periodic Hann window
   of {window}, |DFT|^2 of {bins} bins, {mels} triangular filters between {mels_2} points equally spaced from 0 to {nyquist} Hz on Slaney's mel scale
   (3 f / 200 below 1000 Hz, 15 + 27 ln(f / 1000) / ln 6.4 above), each times 2 / (its width in Hz); log10 of at least 1e-10, not below
   {least}, then (x + 4) / 4. Zeros lie beyond both ends.
3. `audio_encoder(mel, position)`, {frames} frames a token, as many tokens as the bounds of T allow, or `encode_chunk` (where there
   is one) for one; `position` counts the tokens encoded before. Their embeddings belong to positions 0, 1, 2 ... of the decoder.
4. The prompt has {left} + d + 1 ids: once {bos}, then {left} + d times the id {pad}. `prefill(embed_tokens(ids) + embeddings of positions
   0 ... {left} + d, position=0, delay)`; `delay` is an index into the delays above. Where the bounds of S are less, `decode_step` takes the others. The
   argmax of the last `logits` is the first token.
5. For each position behind the prompt: `decode_step(embed_tokens(the token before) + embedding, position, delay)`, then argmax, up to
   the last embedding. {eos} ends nothing.
6. Text: an id from {text} on is bytes: `token_bytes`, in base64, of the entry of `tekken.json`'s `vocab` whose `rank` is id - {text}. Join bytes
   before decoding them as UTF-8: a character may span tokens. All other ids print nothing; {word} begins a word, {pad} says that nothing
   is due. The first token is due when {ms} ms of sound are heard, each further one {ms} ms later.

A new recording starts at position 0; states need no clearing as long as they are finite. Caches roll: `position` may go on up to
16,773,119 in the decoder and 4,193,279 in the encoder (93 hours).
"""


def _calls(constants: dict[str, Any], switches: dict[str, Any]) -> str:
    pairs = zip(constants["delays_ms"], constants["delays"], strict=True)
    return CALLS.format(
        rate=constants["sample_rate"],
        samples=constants["samples_per_token"],
        delays=", ".join(f"{index}: {ms} ms, d = {tokens}" for index, (ms, tokens) in enumerate(pairs)),
        left=constants["left_pad_tokens"],
        behind=constants["flush_tokens"] + 1,
        hop=constants["hop_length"],
        window=constants["window_size"],
        bins=constants["window_size"] // 2 + 1,
        mels=constants["n_mels"],
        mels_2=constants["n_mels"] + 2,
        nyquist=constants["sample_rate"] // 2,
        least=constants["log_mel_least"],
        frames=constants["samples_per_token"] // constants["hop_length"],
        bos=constants["bos_id"],
        pad=constants["pad_id"],
        eos=constants["eos_id"],
        word=constants["word_id"],
        text=constants["first_text_id"],
        ms=1000 * constants["samples_per_token"] // constants["sample_rate"],
    )


def _summary(config: VoxtralRealtimeConfig) -> list[tuple[str, str]]:
    return [
        ("decoder", values_of(config, *SHAPE, "vocab_size", "sliding_window")),
        ("encoder", values_of(config.encoder, *SHAPE, "sliding_window")),
        ("front end", values_of(config.audio, "sampling_rate", "num_mel_bins", "window_size", "hop_length")),
        (
            "token",
            f"{config.samples_per_token} samples, {config.mel_frames_per_token} log-mel frames, {config.downsample} encoder frames",
        ),
    ]


FAMILY = Family(
    name="voxtral_realtime",
    title="Voxtral-Realtime",
    licence="the published Voxtral-Mini-4B-Realtime weights are Apache 2.0",
    parse_config=parse_config,
    load_config=load_config,
    build_root=voxtral_realtime.build_root,
    root=voxtral_realtime.open_root,
    components=voxtral_realtime.components,
    weights_of_graph=voxtral_realtime.WEIGHTS_OF_GRAPH,
    constants=voxtral_realtime.constants,
    switches=Switches,
    longest_cache=voxtral_realtime.longest_cache,
    default_cache=voxtral_realtime.longest_cache,
    verification=VerificationPlan(
        decoders=(Decoder("prefill", "decode_step", output="hidden"),),
        chunked=(ChunkedComponent("audio_encoder", "encode_chunk"),),
    ),
    parts=PARTS,
    summary=_summary,
    calls=_calls,
    synthetic=SYNTHETIC,
    high_precision=voxtral_realtime.HIGH_PRECISION,
    constant=voxtral_realtime.CONSTANT,
)
