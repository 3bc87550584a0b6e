"""Names that a person types: of targets, recipes, families, voices and languages."""

import re
from collections.abc import Iterable

CODE = re.compile("[a-z]{2,3}")
NAMES = {  # languages and their codes
    "arabic": "ar",
    "chinese": "zh",
    "dutch": "nl",
    "english": "en",
    "french": "fr",
    "german": "de",
    "greek": "el",
    "hebrew": "he",
    "hindi": "hi",
    "italian": "it",
    "japanese": "ja",
    "korean": "ko",
    "persian": "fa",
    "polish": "pl",
    "portuguese": "pt",
    "russian": "ru",
    "spanish": "es",
    "thai": "th",
    "turkish": "tr",
    "ukrainian": "uk",
    "vietnamese": "vi",
}

OTHER_NAMES = {  # patterns of names in other programs; a name here begins what is the nearest to them
    r"[wq]?(int)?4[-_]?a(int)?8|w4a8.*": "8da4w",
    r"(b?f|b?float|fp)[-_]?16|half": "none with the compute precision float16",
    r"(f|float|fp)[-_]?32|full": "none",
    r"(awq|gptq)(-?int4)?": "w4g128",
    r"(u?int|[wqi]|i?q|fp|[mn][xvf](fp)?)?[-_]?[2-4]([-_]?bits?|[-_]\w+|a16)?|4b": "w4",
    r"(u?int|[wqi]|i?q|fp|mxfp)?[-_]?[5-8]([-_]?bits?|[-_]\w+|a16|a8)?|8b": "w8",
    r"tf-?lite|tf|litert|qnn|xnnpack|vulkan|pte|android|mobile": "executorch",
    r"openvino|ov|tensorrt|trt|ort|onnx-?runtime|directml|webgpu|wasm|cuda|gguf|ggml|torchscript": "onnx",
    r"core-?ml-?tools|ml(model|package|program)|ios|macos|apple|ane": "coreml",
    r"mlx": "coreml for Apple devices; `convert` writes weights for mlx",
    r"all|any|\*": "onnx and the other targets, separated by commas",
}


def find_name(name: str, names: Iterable[str]) -> str:
    """The one of `names` that equals `name`, or the only one that does so in another case; else `name`."""
    known = list(names)
    alike = [each for each in known if each.casefold() == name.casefold()]
    return alike[0] if name not in known and len(alike) == 1 else name


def did_you_mean(name: str, names: Iterable[str]) -> str:
    """The end of an error's message: the one of `names` that is close to `name`, or the nearest to what other
    programs call `name`; empty if there is none.
    """
    from difflib import get_close_matches  # only for errors

    known = list(names)
    for pattern, nearest in OTHER_NAMES.items():
        if nearest.split()[0] in known and re.fullmatch(pattern, name.strip(), re.IGNORECASE):
            return f"; the nearest is {nearest}"
    return "".join(f"; did you mean {close}?" for close in get_close_matches(name.casefold(), known, 1))


def language_code(language: str) -> str | None:
    """Returns an ISO 639 code as it is, of `en-US` the part before the region, and the code of an English
    name, all in any case; None for anything else.
    """
    name = str(language).lower()
    found = NAMES.get(name, name.replace("_", "-").partition("-")[0])
    return found if CODE.fullmatch(found) else None
