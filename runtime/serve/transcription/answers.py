"""The answers of POST /v1/audio/transcriptions: those of OpenAI, with what clients of Mistral read."""

from collections.abc import AsyncIterator, Iterable

from fastapi.responses import JSONResponse, PlainTextResponse, Response

from voxport.bundle.bounds import FRAME_SECONDS
from voxport.bundle.json_types import Json
from voxport.runtime.audio.captions import Word, as_srt, as_vtt, cues, timed_fields
from voxport.runtime.serve.fields import TranscriptionBody
from voxport.runtime.serve.speech.answers import event
from voxport.runtime.serve.transcription.job import TranscriptionJob

# Fields of a segment that clients of Whisper read, which the models do not measure
NOT_MEASURED = dict.fromkeys(("temperature", "avg_logprob", "compression_ratio", "no_speech_prob"), 0.0)
SEGMENT = "transcription_segment"


class Answer:
    """The text of a job in the form that a request asks for.

    `model` is the name of the bundle; `language` an ISO 639 code, or None if it is not known.
    """

    def __init__(self, job: TranscriptionJob, body: TranscriptionBody, model: str, language: str | None):
        self._job, self._body, self._model, self._language = job, body, model, language

    def response(self) -> Response:
        """The answer, once the job has ended."""
        job = self._job
        match self._body.response_format:
            case "text":
                return PlainTextResponse(f"{job.transcript}\n")
            case "srt":
                return PlainTextResponse(as_srt(job.words))
            case "vtt":
                return PlainTextResponse(as_vtt(job.words), media_type="text/vtt")
            case "json":
                return JSONResponse(self._content() | self._captions())
        wanted = self._body.timestamp_granularities or ("segment",)
        content = self._content() | {"task": "transcribe", "duration": round(job.seconds, 3)}
        if "word" in wanted:
            content["words"] = [timed_fields(word) for word in job.words]
        if "segment" in wanted:
            content["segments"] = self._segments(cues(job.words))
        return JSONResponse(content)

    def _content(self) -> Json:
        seconds = self._job.seconds
        usage = {
            "type": "duration",
            "seconds": round(seconds, 3),
            "prompt_audio_seconds": round(seconds),
            **self._tokens("prompt_tokens", "completion_tokens"),
        }
        return {
            "text": self._job.transcript,
            "model": self._model,
            "language": self._language,
            "usage": usage,
        }

    def _captions(self) -> Json:
        """The segments of Mistral's API, which are words or captions, if a request wants them."""
        wanted, words = self._body.timestamp_granularities, self._job.words
        return {"segments": self._segments(words if "word" in wanted else cues(words))} if wanted else {}

    def _segments(self, texts: Iterable[Word]) -> list[Json]:
        return [
            {
                "id": index,
                "type": SEGMENT,
                **timed_fields(each, "text"),
                "seek": 0,
                "tokens": [],
                **NOT_MEASURED,
            }
            for index, each in enumerate(texts)
        ]

    def _tokens(self, heard: str, written: str) -> Json:
        """Numbers of tokens, one per 80 ms of audio and one per word, by the names of a dialect."""
        audio, words = round(self._job.seconds / FRAME_SECONDS), len(self._job.words)
        return {heard: audio, written: words, "total_tokens": audio + words}

    async def events(self) -> AsyncIterator[bytes]:
        """Server-sent events while the job runs."""
        kind, name = "transcript.text", "delta"
        if self._body.is_mistral:
            kind, name = "transcription.text", "text"
        while (delta := await self._job.read()) is not None:
            if delta.text:
                yield event({"type": f"{kind}.delta", name: delta.text})
        if self._body.is_mistral:
            captions = self._captions()
            for segment in captions.get("segments", ()):
                yield event({**segment, "type": "transcription.segment"})
            yield event({"type": "transcription.done", **self._content(), **captions})
            return
        tokens = self._tokens("input_tokens", "output_tokens")
        details = {"text_tokens": 0, "audio_tokens": tokens["input_tokens"]}
        usage = {"type": "tokens", **tokens, "input_token_details": details}
        yield event({"type": "transcript.text.done", "text": self._job.transcript, "usage": usage})
