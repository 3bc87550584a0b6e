"""The head of a bundle's README is YAML that model hubs read, and claims no licence that does not apply."""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from ruamel.yaml import YAML
from safetensors.torch import load_file, save_file
from support.model.changed import changed

from voxport.bundle.manifest import SCHEMA_VERSION, ExportRequest, Manifest, Verification
from voxport.export.card import bundle_card, model_card
from voxport.export.job import make_job
from voxport.export.resolve import Source, resolve
from voxport.export.targets import open_target
from voxport.model.families import FAMILIES
from voxport.model.mistral_layout import WEIGHTS
from voxport.model.synthetic.checkpoint import random_checkpoint, write_checkpoint

# The keys of https://github.com/huggingface/hub-docs/blob/main/modelcard.md, and the one of this project.
KEYS = {"language", "license", "base_model", "base_model_relation", "pipeline_tag", "library_name", "tags"}

# As the client of the hub finds it.
FRONT_MATTER = re.compile(r"\s*---[\r\n]+([\S\s]*?)[\r\n]+---(?:\r\n|\r|\n|$)")


def manifest_of(source: Source, **request: Any) -> Manifest:
    job = make_job(resolve(source, ExportRequest(**request)), open_target("onnx", None), "tiny")
    return Manifest(
        schema_version=SCHEMA_VERSION, job=job, files={}, tokenizer=(), voices={}, weight_errors={}
    )


def parsed(card: str) -> dict[str, Any]:
    """The content, equal under the rules of YAML 1.1 and of YAML 1.2, which hubs follow."""
    block = FRONT_MATTER.match(card)
    assert block and not card[block.end() :].strip()
    content = block[1]
    found = yaml.safe_load(content)
    assert json.loads(json.dumps(YAML(typ="safe", pure=True).load(content))) == found
    result: dict[str, Any] = found
    return result


@pytest.mark.parametrize("family", FAMILIES)
def test_random_weights_claim_neither_licence_nor_base_model(family: str) -> None:
    source = Source(random_checkpoint(family))
    found = parsed(model_card(manifest_of(source, quant="w8"), source))
    assert found.keys() == KEYS - {"license", "base_model", "base_model_relation"} | {"voxport"}
    assert found["tags"] == ["voxport", "onnx", "w8", "random-weights"]
    assert found["library_name"] == "voxport" and "en" in found["language"]
    assert found["voxport"]["verification"] == {"status": "unverified", "executed_by": "not run", "checks": 0}


@pytest.mark.parametrize(
    ("family", "release", "licence", "task"),
    [
        ("voxtral_tts", "mistralai/Voxtral-4B-TTS-2603", "cc-by-nc-4.0", "text-to-speech"),
        (
            "voxtral_realtime",
            "mistralai/Voxtral-Mini-4B-Realtime-2602",
            "apache-2.0",
            "automatic-speech-recognition",
        ),
    ],
)
def test_weights_of_the_published_shapes_carry_licence_and_base_model(
    tmp_path: Path, family: str, release: str, licence: str, task: str
) -> None:
    folder = tmp_path / "tiny"
    write_checkpoint(folder, key=family)
    save_file(load_file(folder / WEIGHTS), folder / WEIGHTS)  # without the note that they are random
    source = Source(folder)
    assert parsed(model_card(manifest_of(source), source)).keys() == KEYS - {
        "license",
        "base_model",
        "base_model_relation",
    } | {"voxport"}
    source.family = changed(source.family, releases=(replace(source.family.releases[0], size="tiny"),))
    found = parsed(model_card(manifest_of(source), source))
    assert found.keys() == KEYS | {"voxport"}
    assert (found["base_model"], found["license"], found["pipeline_tag"]) == (release, licence, task)


def test_odd_values_remain_what_they_are() -> None:
    source = Source(random_checkpoint("voxtral_tts"))
    rules = ("*.wq=w8", "[!:#{]*attention.w?=none", "la*=none")
    manifest = manifest_of(source, rules=rules, quant_for=[("codec", "w8")])
    options = {
        "a": "no",
        "c": "x: y # z",
        "d": "---\nlicense: mit\n---",
        "e": "é\u2028\t",
        "f": None,
    }
    manifest = manifest.model_copy(update={"job": manifest.job.model_copy(update={"options": options})})
    found = parsed(model_card(manifest, source))["voxport"]
    assert (found["rules"], found["options"]) == (list(rules), options)
    assert found["recipe_of_component"] == {"codec": "w8"}


def test_the_result_of_verification_is_shown() -> None:
    source = Source(random_checkpoint("voxtral_tts"))
    rows = ({"check": "files", "passed": True, "detail": ""},) * 3
    manifest = manifest_of(source).model_copy(
        update={
            "verification": Verification(status="passed", rows=rows, reports={}),
            "executed_by": "ONNX Runtime",
        }
    )
    found = parsed(model_card(manifest, source))["voxport"]["verification"]
    assert found == {"status": "passed", "executed_by": "ONNX Runtime", "checks": 3}


@pytest.mark.slow
def test_the_card_of_an_export_shows_its_files(bundles: Path) -> None:
    out = bundles / "onnx"
    _, content, body = (out / "README.md").read_text().split("---\n", 2)
    sizes = yaml.safe_load(content)["voxport"]["bytes"]
    assert sizes["codec"] == sum(path.stat().st_size for path in out.glob("codec.*")) > 0
    written_later = ("README.md", "FORMAT.md", "manifest.json", "verify.json", "vectors.json")
    others = [path for path in out.rglob("*") if path.is_file() and path.name not in written_later]
    assert sizes["total"] == sum(path.stat().st_size for path in others)
    assert body.startswith("\n# voxtral-tts-tiny, onnx, w4\n")


def test_states_of_a_graph_that_exceeds_float16_are_float32(tmp_path: Path) -> None:
    source = Source(random_checkpoint("qwen3_tts"))
    resolved = resolve(source, ExportRequest(quant="w8", options={"split": "six"}))
    target = open_target("coreai", None)
    job = make_job(resolved, target, "tiny")
    manifest = manifest_of(source).model_copy(update={"job": job})
    text = bundle_card(manifest, resolved, target, tmp_path)
    states = re.findall(r"\| state \| (\w+?)_\w+ \| (\w+) \|", text)
    assert set(states) == {("CodeDecoder", "float16"), ("MultiCodeDecoder", "float32")}
