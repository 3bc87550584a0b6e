"""The tables of bundle/FORMAT.md, CONTRIBUTING.md and the exit codes have what the code has."""

import re
from collections.abc import Iterable
from dataclasses import fields, is_dataclass
from itertools import dropwhile, takewhile
from typing import Any

import pytest
from support.paths import ROOT
from test_structure import MAX_COLUMNS, MAX_FILES, MAX_FUNCTION_LINES, MAX_LINES, PRIVATE

from voxport.bundle import errors, manifest, spec
from voxport.export.targets import TARGETS
from voxport.export.targets.base import Target
from voxport.model import family
from voxport.model.checkpoint_format import CheckpointFormat
from voxport.model.families import FAMILIES
from voxport.quantize.schemes import Scheme
from voxport.runtime.batching import CodeSlots
from voxport.runtime.engines.base import Engine, Stream
from voxport.runtime.families import base
from voxport.runtime.speech_to_text import SpeechToText
from voxport.runtime.text_to_speech import TextToSpeech
from voxport.runtime.transcription import Transcription

FORMAT = (ROOT / "bundle" / "FORMAT.md").read_text(encoding="utf-8")
CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
NAME = re.compile(r"`(?:[A-Z]\w+\.)?([a-z_]\w*)(?:\([^`]*)?`")  # in `Stream.reset()` it is reset

SECTIONS: dict[str, list[Any]] = {  # of FORMAT.md, with the records that each describes
    "Manifest": [manifest.Manifest],
    "FileEntry": [manifest.FileEntry],
    "ExportJob": [manifest.ExportJob],
    "Source": [manifest.Source],
    "ExportRequest": [manifest.ExportRequest],
    "RecipeEntry": [manifest.RecipeEntry, manifest.RuleEntry, manifest.SchemeEntry],
    "ComponentEntry": [manifest.ComponentEntry],
    "Signature": [spec.Signature, spec.TensorSpec, spec.StateSpec, spec.CacheSpec],
    "WeightError": [manifest.WeightError],
    "Verification": [manifest.Verification],
}
VALUES = {"kind": list(spec.Kind), "family": FAMILIES, "target": TARGETS}  # of a key of FORMAT.md
# text before a table of CONTRIBUTING.md, and the classes whose members are in its first column
MEMBERS: dict[str, list[Any]] = {
    "`CheckpointFormat`, the files": [CheckpointFormat],
    "`Family`, the hooks": [family.Family],
    "`Synthetic`, random checkpoints": [family.Synthetic],
    "| member of `Target`": [Target],
    "An engine subclasses": [Engine, Stream],
    "| member of `Scheme`": [Scheme],
}
LISTS: dict[str, list[Any]] = {  # the same for members anywhere in the table
    "`RuntimeFamily` (": [
        base.RuntimeFamily,
        base.TraceWorkload,
        base.VerificationWorkload,
        base.BenchWorkload,
    ],
    "A task implements": [TextToSpeech, SpeechToText, CodeSlots, Transcription],
}


def section(title: str) -> str:
    """The text of FORMAT.md from a heading to the next one."""
    return re.split(rf"^## {title}\b.*$", FORMAT, flags=re.MULTILINE)[1].partition("\n## ")[0]


def table(text: str, before: str) -> list[list[str]]:
    """Cells of the first table at or behind the line that begins with `before`."""
    lines = text[text.index(f"\n{before}") :].splitlines()
    rows = takewhile(is_row, dropwhile(lambda line: not is_row(line), lines))
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]


def is_row(line: str) -> bool:
    return line.startswith("|")


def names(text: str) -> set[str]:
    return set(NAME.findall(text))


def members(kind: type) -> set[str]:
    """Fields of a dataclass, what a subclass must define, and all that a protocol asks for."""
    found = {field.name for field in fields(kind)} if is_dataclass(kind) else set(annotations(kind))
    if getattr(kind, "_is_protocol", False):
        found |= {name for parent in kind.__mro__ for name in vars(parent) if not name.startswith("_")}
    return found | getattr(kind, "__abstractmethods__", set())


def annotations(kind: type) -> dict[str, object]:
    found: dict[str, object] = vars(kind).get("__annotations__", {})
    return found


@pytest.mark.parametrize("title", SECTIONS)
def test_the_format_describes_every_field_of_a_record(title: str) -> None:
    records = SECTIONS[title]
    found = {name for row in filter(is_row, section(title).splitlines()) for name in names(row.split("|")[1])}
    for record in records:
        expected = getattr(record, "model_fields", None) or getattr(record, "__dataclass_fields__", {})
        assert not expected.keys() - found, record.__name__


def test_every_record_of_the_manifest_is_compared() -> None:
    compared = {record for records in SECTIONS.values() for record in records}
    assert compared >= {each for each in vars(manifest).values() if is_record(each)}


def is_record(each: object) -> bool:
    return isinstance(each, type) and issubclass(each, manifest.Record) and each is not manifest.Record


@pytest.mark.parametrize("key", VALUES)
def test_the_format_lists_every_value_of_a_key(key: str) -> None:
    row = next(line for line in FORMAT.splitlines() if line.startswith(f"| `{key}` |"))
    assert not {f"`{value}`" for value in VALUES[key]} - set(re.findall("`[^`]+`", row))


def test_the_format_lists_every_layout() -> None:
    rows = table(FORMAT, "## Layouts")
    assert [row[0] for row in rows[2:]] == [f"`{layout}`" for layout in spec.LAYOUTS]


def test_both_tables_of_exit_codes_are_equal_and_those_of_the_classes() -> None:
    rows = table(errors.__doc__, "| code | meaning |")
    assert [row[:2] for row in rows] == table(
        (ROOT / "docs" / "commands.md").read_text(), "| code | meaning |"
    )
    raised = {name: int(code) for code, _, classes in rows[2:] for name in re.findall(r"`(\w+)`", classes)}
    assert raised == {name: getattr(errors, name).exit_code for name in raised}
    assert {kind.exit_code for kind in vars(errors).values() if is_error(kind)} == set(raised.values())


def is_error(kind: object) -> bool:
    return isinstance(kind, type) and issubclass(kind, errors.VoxportError)


@pytest.mark.parametrize("before", MEMBERS)
def test_a_table_of_an_interface_has_its_members_and_no_others(before: str) -> None:
    kinds = MEMBERS[before]
    found = names(" ".join(row[0] for row in table(CONTRIBUTING, before)[1:]))
    known = {
        name for kind in kinds for parent in kind.__mro__ for name in {*dir(parent), *annotations(parent)}
    }
    assert not {name for kind in kinds for name in members(kind)} - found
    assert not found - known - {name for kind in kinds for name in members(kind)}


@pytest.mark.parametrize("before", LISTS)
def test_a_table_of_several_interfaces_has_all_their_members(before: str) -> None:
    found = names(" ".join(" ".join(row) for row in table(CONTRIBUTING, before)))
    for kind in LISTS[before]:
        assert not members(kind) - found, kind.__name__


def test_the_classes_of_a_family_are_in_the_table_of_imports() -> None:
    row = next(line for line in CONTRIBUTING.splitlines() if line.startswith("| `model.family` |"))
    defined = {
        kind.__name__
        for kind in vars(family).values()
        if getattr(kind, "__module__", "") == "voxport.model.family"
    }
    assert {name for name in defined if is_dataclass(getattr(family, name))} == set(
        re.findall(r"`([A-Z]\w+)`", row)
    )


def test_the_rules_have_the_limits_and_the_private_packages_that_are_checked() -> None:
    text = " ".join(CONTRIBUTING.split())
    limits = f"files above {MAX_LINES} lines, functions above {MAX_FUNCTION_LINES} lines and folders above"
    assert f"Lines have at most {MAX_COLUMNS} columns" in text
    assert f"{limits} {MAX_FILES} files" in text
    packages = names_with_dots(row[0] for row in table(CONTRIBUTING, "## Rules"))
    assert {name.removeprefix("voxport.") for name in PRIVATE} <= packages


def names_with_dots(cells: Iterable[str]) -> set[str]:
    return set(re.findall(r"`([\w.]+)`", " ".join(cells)))
