"""Live streams that begin, pause and end at any step: the tokens of each are those of it alone."""

from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple, cast

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.runtime.toy_realtime import CONSTANTS, DELAYS_MS, TOKEN, VOCAB, ToyEngine, ToyStream

from voxport.bundle.errors import UsageError
from voxport.runtime.engines.base import Arrays, Stream
from voxport.runtime.families.voxtral_realtime import task as live_task
from voxport.runtime.families.voxtral_realtime.decoder import DecodeOptions, Silence, StreamingDecoder
from voxport.runtime.families.voxtral_realtime.task import LiveSlots, SlotStream, VoxtralSpeechToText
from voxport.runtime.slots import move_states
from voxport.runtime.speech_to_text import LiveStream


class Sound(NamedTuple):
    """Begins at step `start`; has audio in the steps that are no multiple of `pause`; may be dropped."""

    seed: int
    tokens: int
    start: int = 0
    pause: int = 99
    delay: int = 0
    dropped_at: int | None = None

    @property
    def samples(self) -> np.ndarray:
        generator = np.random.default_rng(self.seed)
        count = self.tokens * TOKEN + 77 * self.seed
        level = np.repeat(10 ** generator.uniform(-3, 0, self.tokens + 1), TOKEN)[:count]
        return (0.3 * level * generator.standard_normal(count)).astype(np.float32)


def new_task(engine: ToyEngine | None = None) -> VoxtralSpeechToText:
    return VoxtralSpeechToText(engine or ToyEngine(), CONSTANTS, lambda token: b" a", True, max_live=8)


@cache
def single_request(seed: int, tokens: int, delay: int) -> list[int]:
    """Without a batch and without a stored silence."""
    decoder = StreamingDecoder(ToyEngine().stream(), CONSTANTS, DecodeOptions(delay, 1))
    samples = Sound(seed, tokens).samples
    found = [
        token
        for block in np.split(samples, range(TOKEN, len(samples), TOKEN))
        for token in decoder.feed(block)
    ]
    return [*found, *decoder.finish()]


class Running:
    def __init__(self, sound: Sound, stream: LiveStream) -> None:
        self.sound, self.stream, self.tokens = sound, stream, list[int]()
        self.fed, self.is_finished = 0, False

    def feed(self, step: int) -> None:
        """80 ms, or the end, unless the stream pauses or has a step to do."""
        if self.stream.is_due or self.is_finished or step % self.sound.pause == self.sound.pause - 1:
            return
        samples = self.sound.samples[self.fed : self.fed + TOKEN]
        self.fed += TOKEN
        if len(samples):
            self.stream.feed(samples)
        else:
            self.stream.finish()
            self.is_finished = True


def note_tokens(patch: pytest.MonkeyPatch, tokens: dict[Any, list[int]]) -> None:
    """Adds the tokens of each stream."""
    choose = StreamingDecoder.choose

    def noted(decoder: StreamingDecoder, logits: np.ndarray) -> int:
        tokens.setdefault(decoder, []).append(token := choose(decoder, logits))
        return token

    patch.setattr(StreamingDecoder, "choose", noted)


def concurrent(task: VoxtralSpeechToText, sounds: list[Sound], slots: int) -> dict[int, list[int]]:
    """Tokens by the number of a sound."""
    batch, running, found = task.live_batch(slots), dict[int, Running](), dict[int, list[int]]()
    waiting, step = list(enumerate(sounds)), 0
    with pytest.MonkeyPatch.context() as patch:
        tokens = dict[Any, list[int]]()
        note_tokens(patch, tokens)
        while waiting or running:
            for number, sound in [each for each in waiting if each[1].start <= step]:
                if batch.has_room:
                    running[number] = Running(sound, batch.begin(delay_ms=DELAYS_MS[sound.delay]))
                    waiting.remove((number, sound))
            for each in running.values():
                each.feed(step)
            batch.step()
            for number, each in list(running.items()):
                is_dropped = each.sound.dropped_at == step
                if is_dropped or (each.is_finished and not each.stream.is_due):
                    batch.end(each.stream)
                    found[number] = tokens.get(cast(SlotStream, each.stream).decoder, [])
                    del running[number]
            step += 1
    return found


def differing(task: VoxtralSpeechToText, sounds: list[Sound], slots: int) -> list[Sound]:
    """Sounds whose tokens are not those of the sound alone. A dropped one has the first of them."""
    wrong = []
    for number, tokens in concurrent(task, sounds, slots).items():
        sound = sounds[number]
        expected = single_request(sound.seed, sound.tokens, sound.delay)
        if tokens != (expected if sound.dropped_at is None else expected[: len(tokens)]):
            wrong.append(sound)
    return wrong


SOUNDS = st.builds(
    Sound,
    seed=st.integers(0, 3),
    tokens=st.integers(0, 24),
    start=st.integers(0, 12),
    pause=st.integers(2, 5),
    delay=st.integers(0, 1),
    dropped_at=st.none() | st.integers(0, 30),
)
MANY = [Sound(1, 20, 0, 3), Sound(2, 6, 1), Sound(3, 24, 2, 2, 1), Sound(1, 22, 5, 4), Sound(2, 24, 9, 3, 1)]


@settings(max_examples=30)
@given(sounds=st.lists(SOUNDS, min_size=1, max_size=6), slots=st.integers(1, 4))
def test_streams_that_come_and_go_have_the_tokens_of_each_alone(sounds: list[Any], slots: int) -> None:
    assert differing(new_task(), sounds, slots) == []


def test_the_toy_distinguishes_sounds_delays_and_positions() -> None:
    tokens = [tuple(single_request(seed, 20, delay)) for seed in (1, 2) for delay in (0, 1)]
    assert len(set(tokens)) == 4 and len(set(tokens[0])) >= 5 and max(tokens[0]) < VOCAB


def another_direction(batch: Stream, source: int, target: int, positions: int, component: str) -> Stream:
    MOVE(batch, target, source, positions, component)
    return batch.slot(target)


def half_of_the_rows(batch: Stream, source: int, target: int, positions: int, component: str) -> Stream:
    return MOVE(batch, source, target, positions // 2, component)


def not_at_all(batch: Stream, source: int, target: int, positions: int, component: str) -> Stream:
    return batch.slot(target)


def all_slots(stream: Stream, component: str, inputs: Arrays, active: object) -> Arrays:
    return stream.run(component, inputs)


def swapped(slots: LiveSlots, chosen: list[int]) -> dict[int, np.ndarray]:
    logits = DECODE(slots, chosen)
    return dict(zip(logits, reversed(list(logits.values())), strict=True))


def stale_delay(task: VoxtralSpeechToText, delay: object) -> Silence:
    return SILENCE(task, 0)


MOVE, DECODE, SILENCE = move_states, LiveSlots._decode, VoxtralSpeechToText._silence
FAULTS = [
    (live_task, "move_states", another_direction),
    (live_task, "move_states", half_of_the_rows),
    (live_task, "move_states", not_at_all),
    (ToyStream, "run_active", all_slots),
    (LiveSlots, "_decode", swapped),
    (VoxtralSpeechToText, "_silence", stale_delay),
]


@pytest.mark.parametrize("fault", [None, *FAULTS])
def test_faults_in_moves_slots_and_starts_are_found(
    monkeypatch: pytest.MonkeyPatch, fault: tuple[Any, str, Any] | None
) -> None:
    if fault:
        monkeypatch.setattr(*fault)
    assert bool(differing(new_task(), MANY, 3)) == bool(fault)


def test_streams_that_are_due_together_share_one_call() -> None:
    engine = ToyEngine()
    batch = new_task(engine).live_batch(4)
    streams = [batch.begin(delay_ms=80) for _ in range(3)]
    for _ in range(6):
        for stream in streams:
            stream.feed(np.zeros(TOKEN, np.float32))
        batch.step()
    engine.batches.clear()
    for stream in streams:
        stream.feed(np.zeros(TOKEN, np.float32))
    batch.step()
    calls = {component: size for component, size in engine.batches if component != "encode_chunk"}
    assert calls == {"embed_tokens": 3, "decode_step": 3}


@pytest.mark.parametrize("where", ["prefill", "decode_step", "after decode_step", "take"])
def test_an_error_of_one_stream_leaves_the_tokens_of_the_others(
    monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    """The call of three streams raises because of the second one; so does its own."""
    task, sounds = new_task(), [Sound(seed, 20) for seed in (1, 2, 3)]
    expected = [single_request(sound.seed, sound.tokens, sound.delay) for sound in sounds]
    batch = task.live_batch(3)
    streams = [batch.begin(delay_ms=DELAYS_MS[sound.delay]) for sound in sounds]
    running = [Running(sound, stream) for sound, stream in zip(sounds, streams, strict=True)]
    raise_for(monkeypatch, cast(SlotStream, streams[1]).decoder, where)
    tokens = dict[Any, list[int]]()
    note_tokens(monkeypatch, tokens)
    errors = []
    while running:
        for step, each in enumerate(running):
            each.feed(step)
        for stream, found in batch.step().items():
            if isinstance(found, Exception):
                errors.append((stream, str(found)))
                batch.end(stream)
                running = [each for each in running if each.stream is not stream]
        for each in [each for each in running if each.is_finished and not each.stream.is_due]:
            batch.end(each.stream)
            running.remove(each)
    assert errors == [(streams[1], "planted")]
    assert [tokens[cast(SlotStream, streams[index]).decoder] for index in (0, 2)] == [
        expected[0],
        expected[2],
    ]


def raise_for(monkeypatch: pytest.MonkeyPatch, decoder: StreamingDecoder, where: str) -> None:
    """Calls that serve this decoder raise: before or after they change its states, or behind the engine."""
    run, run_active = ToyStream.run, ToyStream.run_active

    def planted_run(stream: Stream, component: str, inputs: Arrays) -> Arrays:
        if component == where and stream is decoder.stream:
            raise ValueError("planted")
        return run(stream, component, inputs)

    def planted_active(stream: ToyStream, component: str, inputs: Arrays, active: Sequence[int]) -> Arrays:
        serves = decoder.position in [int(inputs["position"][slot]) for slot in active] and 1 in active
        if component == where and serves:
            raise ValueError("planted")
        outputs = run_active(stream, component, inputs, active)
        if f"after {component}" == where and serves:
            raise ValueError("planted")
        return outputs

    def planted_choose(logits: np.ndarray) -> int:
        if decoder.has_read_prompt:
            raise ValueError("planted")
        return StreamingDecoder.choose(decoder, logits)

    monkeypatch.setattr(ToyStream, "run", planted_run)
    monkeypatch.setattr(ToyStream, "run_active", planted_active)
    if where == "take":
        monkeypatch.setattr(decoder, "choose", planted_choose)


def test_the_silence_in_front_is_computed_once_per_delay() -> None:
    engine = ToyEngine()
    task = new_task(engine)
    for _ in range(3):
        for delay in DELAYS_MS:
            task.live_batch(2).begin(delay_ms=delay)
            task.begin(delay_ms=delay, live=True)
    calls = engine.batches
    assert calls["audio_encoder", 1] == 2 and calls["prefill", 1] == 2 + 1  # one to open every graph


def test_more_streams_than_the_engine_batches_are_refused() -> None:
    with pytest.raises(UsageError, match="at most 8 streams, not 9"):
        new_task().live_batch(9)
