"""`VerificationPlan`: the components of a family that verification calls in sequence."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Decoder:
    """Two components with the same caches: `prefill` fills them, and `step` continues at the next position.

    `output` names the output of `step` that long runs compare.
    """

    prefill: str
    step: str
    output: str


@dataclass(frozen=True)
class ChunkedComponent:
    """A component that takes `whole` inputs, and one that takes them in chunks with carried state.

    A bundle without the component `chunk` passes the chunks to `whole`.
    """

    whole: str
    chunk: str


@dataclass(frozen=True)
class VerificationPlan:
    """Sequences of calls to verify. A family without decoders or chunked components skips their checks."""

    decoders: tuple[Decoder, ...] = ()
    chunked: tuple[ChunkedComponent, ...] = ()
