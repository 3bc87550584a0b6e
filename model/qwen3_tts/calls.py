"""The order of calls of Qwen3-TTS, for authors of runners."""

from typing import Any

CALLS = """\
## Order of calls

All ids are in `constants` of `manifest.json`. Rows have {dim} values.

1. Encode the text: byte-level BPE of `vocab.json` and `merges.txt`, after NFC. Special tokens typed in a text
   are encoded as text. `embed_text(ids)` gives a row for each id.
2. Build two sequences of rows and add them position by position.
   a. An instruction, if any, comes first, as text only: im_start, the ids of "user" and a line break, those
      of the instruction, im_end, line break.
   b. Then text only: im_start, assistant, line break.
   c. Codes: think, think_bos, the language's id and think_eos; without a language nothink, think_bos and
      think_eos. Then the speaker's row, if any, and pad. Each is `embed_codes` of a frame whose code 0 is
      this id and whose other codes are -1; a voice from a recording gives its row itself. The text beside
      them is tts_pad, and tts_bos beside pad.
   d. With text added while frames are made: the first text row beside the code bos. Each later text row, then
      tts_eos, then tts_pad for ever, is added to a frame in 4d.
      With all text before the frames: each text row and tts_eos beside the code pad, then tts_pad beside bos.
3. Call `prefill(embeddings, position=0)`.
4. For each frame:
   a. Code 0 is drawn from `logits`: of the first {codes} ids and codec_eos_token_id, which ends the speech
      and is not drawn for the first two frames. Apply repetition penalty over earlier codes 0, temperature,
      top_k, top_p.
   b. Call `code_predictor` with the last row of `hidden`, code 0 and {others} codes of -1. `noise` are Gumbel
      values. For the codes with the largest logits give zeros as noise and 1 as temperature.
   c. Call `codec_step(codes, position)` for {samples} samples. `position` counts frames.
   d. Call `embed_codes(codes)`, add the text row of this frame, and call `decode_step(embeddings, position)`.
      `position` counts rows since the first of the prompt.
   Stop as well when the caches have no row left for d.
5. The samples are {rate} Hz mono, within [-1, 1].

A new utterance starts at position 0. States need not be cleared if they are finite.
"""


def calls(constants: dict[str, Any], options: dict[str, Any]) -> str:
    """The text for a bundle with these constants of its manifest."""
    return CALLS.format(
        dim=constants["dim"],
        codes=constants["first_codes"],
        others=constants["n_codebooks"] - 1,
        samples=constants["samples_per_frame"],
        rate=constants["sample_rate"],
    )
