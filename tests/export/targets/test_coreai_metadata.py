"""A Core AI asset says what it is, and nothing of the machine that made it."""

import json
from pathlib import Path

import pytest

from voxport.bundle.manifest import ExportRequest
from voxport.export.model import Model
from voxport.export.resolve import Source, resolve
from voxport.export.targets.coreai.target import CoreAITarget
from voxport.model.voxtral_tts.family import VoxtralTTS


def test_an_asset_has_the_licence_and_the_functions_of_its_graph_and_no_date(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(VoxtralTTS, "licence_of", lambda self, folder, tensors, config: "CC BY-NC 4.0")
    source = Source(checkpoint)
    graph = Model(resolve(source, ExportRequest(quant="w8g32")), "BHSD", "float16").graph("embed_codes")
    CoreAITarget().lower(graph, tmp_path)
    found = json.loads((tmp_path / "embed_codes.aimodel/metadata.json").read_text())
    assert found.pop("producer").startswith("coreai-core ")
    (component,) = graph.components
    assert found == {
        "assetVersion": "2.0",
        "license": "CC BY-NC 4.0",
        "description": f"Voxtral-TTS: embed_codes\nembed_codes: {component.purpose}",
    }
    program = (tmp_path / "embed_codes.aimodel/main.mlirb").read_bytes()
    assert str(tmp_path).encode() not in program and b".py" not in program
