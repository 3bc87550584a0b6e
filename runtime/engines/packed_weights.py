"""One packed copy of each weight, for all parts of ExecuTorch programs that multiply with it."""

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock
from typing import Any, Protocol
from weakref import WeakSet

from voxport.bundle.manifest import Bundle

# executorch::runtime::set_option(const char *, Span<BackendOption>), for which Python has no function
SET_OPTION = "_ZN10executorch7runtime10set_optionEPKcNS0_4SpanINS0_13BackendOptionEEE"
BACKEND, OPTION = b"XnnpackBackend", b"weight_cache_enabled"


class EngineOfBundle(Protocol):
    bundle: Bundle


_loading = Lock()
_sharing: WeakSet[EngineOfBundle] = WeakSet()
_is_usable = True


class _BackendOption(ctypes.Structure):
    """`BackendOption` of ExecuTorch 1.4: a name and a `std::variant<bool, int, std::array<char, 256>>`."""

    _fields_ = (("key", ctypes.c_char * 64), ("value", ctypes.c_int * 64), ("kind", ctypes.c_uint8))


@contextmanager
def packed_once(engine: EngineOfBundle, library: str) -> Iterator[None]:
    """Lets the methods that are loaded in it share packed weights with the others of their bundle.

    XNNPACK packs the weights of each part of a program. The predictor of Qwen3-TTS has 15 parts for each
    weight, one per step.

    XNNPACK's cache identifies weights by their integers and ignores their scales. Another bundle may have
    equal integers with other scales, so only one bundle of a process shares: the first that loads a method.
    Within a bundle, verification finds a weight with the scales of another. A method that fails to load may
    leave weights behind, so nothing is shared after it.
    `library` is the path of ExecuTorch's Python module. Builds that hide the function share nothing.
    """
    global _is_usable
    set_option = _find(library)
    with _loading:
        is_alone = all(other.bundle.manifest == engine.bundle.manifest for other in _sharing)
        if set_option is None or not is_alone or not _is_usable or _set(set_option, True):
            yield
            return
        _sharing.add(engine)
        try:
            yield
        except BaseException:
            _is_usable = False
            raise
        finally:
            _set(set_option, False)


def _find(library: str) -> Any:  # Any: a C function
    try:
        return getattr(ctypes.CDLL(library), SET_OPTION, None)
    except OSError:
        return None


def _set(set_option: Any, value: bool) -> int:
    """Returns 0 where the option has the value now."""
    option = _BackendOption(key=OPTION)
    option.value[0] = value
    set_option.argtypes = (ctypes.c_char_p, ctypes.POINTER(_BackendOption), ctypes.c_size_t)
    set_option.restype = ctypes.c_uint32
    return int(set_option(BACKEND, option, 1))
