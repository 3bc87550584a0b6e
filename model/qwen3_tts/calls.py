"""The order of calls of Qwen3-TTS, for authors of runners."""

from voxport.bundle.constants.qwen3_tts import WINDOW_CONTEXT, QwenConstants
from voxport.model.qwen3_tts.config import Options
from voxport.model.qwen3_tts.split_six.graphs import DECODER_FRAMES

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


SPLIT_SIX_CALLS = """\
## Order of calls

All ids are in `constants` of `manifest.json`. Rows have {dim} values, and are [1, {dim}, 1, 1] between
graphs. `TextProjector` gives the row of an id of text, `CodeEmbedder` that of an id of the talker's
vocabulary, `MultiCodeEmbedder` that of code g > 0 of a frame; its id is {size} * (g - 1) + code.

`CodeDecoder` and `MultiCodeDecoder` take one position p at a call, from 0 on, as `cache_length`. Give
`key_padding_mask` 0 for rows 0 to p and -1e4 for the others, and `kv_cache_update_mask` 1 for row p and
0 for the others. Their two caches are states, with channels in the order layer, head, dimension.

1. Encode the text: byte-level BPE of `vocab.json` and `merges.txt`, after NFC.
2. Build two sequences of rows and add them position by position.
   a. Text only: the instruction, if any (im_start, "user" and a line break, its ids, im_end, line
      break), then im_start, assistant, line break.
   b. Codes: think, think_bos, the language's id and think_eos; without a language nothink, think_bos
      and think_eos. Then the speaker's row, if any, and pad. The text beside them is tts_pad, and
      tts_bos beside pad.
   c. Each text row and tts_eos beside the code pad, then tts_pad beside the code bos.
3. Call `CodeDecoder` with each row.
4. For each frame:
   a. Code 0 is drawn from `logits`: of the first {codes} ids and codec_eos_token_id, which ends the
      speech and is not drawn for the first two frames. Apply repetition penalty over earlier codes 0,
      temperature, top_k, top_p.
   b. Call `MultiCodeDecoder` with `hidden_states` of `CodeDecoder` at position 0 and with the row of
      code 0 at position 1; row 0 of `all_logits` then gives code 1. Call it with the row of code g at
      position g + 1; row g gives code g + 1. The frame has {books} codes.
   c. Add the rows of all codes of the frame and that of tts_pad. Call `CodeDecoder` with the sum.
   Stop as well when the cache has no row left.
5. Call `SpeechDecoder` with the codes of up to {frames} frames, and zeros behind them. Each frame gives
   {samples} samples of {rate} Hz, mono, within [-1, 1]. Cut off the others. For longer speech put the
   last {context} frames before the next ones, and cut off their samples.

The graphs have the names, inputs and outputs of the models of speech-swift. Differences: caches are
states; products are linear operators, not convolutions of size 1; a Base model also has its two
encoders.
"""


def calls(constants: QwenConstants, options: Options) -> str:
    """The text for a bundle with these constants of its manifest."""
    return (SPLIT_SIX_CALLS if options.is_split_six else CALLS).format(
        dim=constants.dim,
        size=constants.other_codes,
        books=constants.n_codebooks,
        frames=DECODER_FRAMES,
        context=WINDOW_CONTEXT,
        codes=constants.first_codes,
        others=constants.n_codebooks - 1,
        samples=constants.samples_per_frame,
        rate=constants.sample_rate,
    )
