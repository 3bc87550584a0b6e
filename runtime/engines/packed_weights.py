"""One packed copy of each weight, for all parts of ExecuTorch programs that multiply with it."""

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock
from typing import Any, Protocol
from weakref import WeakSet

from bundle.manifest import Bundle

# executorch::runtime::set_option(const char *, Span<BackendOption>), for which Python has no function
SET_OPTION = "_ZN10executorch7runtime10set_optionEPKcNS0_4SpanINS0_13BackendOptionEEE"
BACKEND, OPTION = b"XnnpackBackend", b"weight_cache_enabled"


class EngineOfBundle(Protocol):
    bundle: Bundle


_loading = Lock()
_sharing: WeakSet[EngineOfBundle] = WeakSet()


class _BackendOption(ctypes.Structure):
    """`BackendOption` of ExecuTorch 1.4: a name and a `std::variant<bool, int, std::array<char, 256>>`."""

    _fields_ = (("key", ctypes.c_char * 64), ("value", ctypes.c_int * 64), ("kind", ctypes.c_uint8))


@contextmanager
def packed_once(engine: EngineOfBundle, library: str) -> Iterator[None]:
    """Methods that are loaded within share packed weights with the others of this bundle.

    XNNPACK packs the weights of each part of a program. The predictor of Qwen3-TTS has 15 parts for each
    weight, one per step: 1.3 GB for 80 MB of weights, and calls that take 85 ms in place of 60.

    The cache of XNNPACK finds packed weights by their integers, and does not compare scales. Other bundles
    may have equal integers with other scales, so bundles do not share it: it serves the first bundle of a
    process. Within a bundle, verification finds a weight that got the scales of another.
    `library` is the path of ExecuTorch's Python module. Builds that hide the function share nothing.
    """
    set_option: Any = getattr(ctypes.CDLL(library), SET_OPTION, None)  # Any: a C function
    if set_option is None:
        yield
        return
    with _loading:
        is_alone = all(other.bundle.manifest == engine.bundle.manifest for other in _sharing)
        if is_alone:
            _sharing.add(engine)
        _set(set_option, is_alone)
        try:
            yield
        finally:
            _set(set_option, False)


def _set(set_option: Any, value: bool) -> None:
    option = _BackendOption(key=OPTION)
    option.value[0] = value
    set_option.argtypes = (ctypes.c_char_p, ctypes.POINTER(_BackendOption), ctypes.c_size_t)
    set_option.restype = ctypes.c_uint32
    set_option(BACKEND, option, 1)
