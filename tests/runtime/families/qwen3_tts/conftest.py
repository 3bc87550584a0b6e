"""A model of random weights and its task, in eager PyTorch."""

import pytest
from support.export.faulty_engines import Engines
from support.runtime.speech_tasks import qwen_engines, qwen_task

from voxport.runtime.families.qwen3_tts.task import QwenTextToSpeech


@pytest.fixture(scope="module")
def engines() -> Engines:
    return qwen_engines()


@pytest.fixture(scope="module")
def task(engines: Engines) -> QwenTextToSpeech:
    return qwen_task(engines)
