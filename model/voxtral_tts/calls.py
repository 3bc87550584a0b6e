"""The order of calls of a Voxtral-TTS bundle, for its README."""

from typing import Any

CALLS = """\
## Order of calls

1. Build the prompt. `ids` = {bos}, {begin}, one {audio} per voice row, [NEXT_AUDIO_TEXT], the ids of the
   text, [REPEAT_AUDIO_TEXT], {begin}. `tekken.json` gives the ids of the text and of the two markers.
   - The tokenizer is byte-level BPE over the pieces that the regular expression `pattern` splits (Unicode
     classes).
   - The id of a piece is its rank + `default_num_special_tokens`. Entries beyond `default_vocab_size` ids are
     not used.
   - The two markers are special tokens; their ids are their ranks. A special token typed in a text is encoded
     as text.
   - The text is encoded without normalisation.
2. Call `embed_text(ids{extra})`. Then overwrite the rows of the prompt's ids {audio} with the rows of the
   voice{but}.
3. Call `prefill(embeddings, position=0)`. Its `semantic_logits` and `condition` are those of the last row.
4. For each frame:
   a. The semantic code is the argmax of `semantic_logits` without row 0 and without rows from {rows} on. Code
      1 ends the speech.
   b. Draw `x`, {acoustic} standard normals. For `step` 0 ... {last_step}: `x = acoustic_step(x, step,
      condition).next_x`.
   c. The acoustic codes are round((clamp(x, -1, 1) + 1) / 2 * {top}) + 2, rounded half to even.
   d. Call `embed_codes(codes)`, then `decode_step(embeddings, position)`. `position` counts rows since the
      first of the prompt.
   e. Call `codec_step(codes, position)` for {samples} samples. `position` counts frames. The bounds of T are
      below.
   Stop as well when the caches have no row left for d.
5. The samples are {rate} Hz mono. Clip them to [-1, 1].

A new utterance starts at position 0. States need not be cleared if they are finite.
"""


def calls(constants: dict[str, Any], options: dict[str, Any]) -> str:
    """The text for a bundle with these constants and options of its manifest."""
    from_audio_token = options["first_frame"] == "audio_token"
    audio = constants["audio_id"]
    return CALLS.format(
        bos=constants["bos_id"],
        begin=constants["begin_audio_id"],
        audio=audio,
        extra=f" + [{audio}]" if from_audio_token else "",
        but="; the extra row keeps its embedding and gives frame 0" if from_audio_token else "",
        rows=2 + constants["semantic_codes"],
        acoustic=constants["n_codebooks"] - 1,
        last_step=constants["euler_steps"] - 1,
        top=constants["acoustic_levels"] - 1,
        samples=constants["samples_per_frame"],
        rate=constants["sample_rate"],
    )
