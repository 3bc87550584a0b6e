"""Documents say what is there: commands, links, figures, fields of the format, exit codes."""

import csv
import re
from collections.abc import Iterator
from itertools import dropwhile, takewhile
from pathlib import Path
from typing import Any

import pytest
from support.paths import ROOT
from test_structure import MAX_COLUMNS, MAX_FILES, MAX_FUNCTION_LINES, MAX_LINES, PRIVATE, source_files

from voxport.__main__ import main
from voxport.bundle import errors, manifest, spec
from voxport.export.targets import TARGETS
from voxport.model.families import FAMILIES

DOCUMENTS = {path: (ROOT / path).read_text(encoding="utf-8") for path in source_files("*.md")}
FORMAT = DOCUMENTS["bundle/FORMAT.md"]
MAX_DOCUMENT_LINES = 2150  # all documents together, without those of `examples`
LINK = re.compile(r"\]\((?!https?:)([^)#]*)(?:#([^)]+))?\)")
NUMBER = re.compile(r"\d+(?:,\d{3})*(?:\.\d+)?")
SECTIONS: dict[str, list[Any]] = {  # of FORMAT.md, with the records that each describes
    "Manifest": [manifest.Manifest],
    "FileEntry": [manifest.FileEntry],
    "ExportJob": [manifest.ExportJob],
    "Source": [manifest.SourceEntry],
    "ExportRequest": [manifest.ExportRequest],
    "RecipeEntry": [manifest.RecipeEntry, manifest.RuleEntry, manifest.SchemeEntry],
    "ComponentEntry": [manifest.ComponentEntry],
    "Signature": [spec.Signature, spec.TensorSpec, spec.StateSpec, spec.CacheSpec],
    "WeightError": [manifest.WeightError],
    "Verification": [manifest.Verification],
}
VALUES = {
    "kind": list(spec.Kind),
    "family": FAMILIES,
    "target": TARGETS,
}  # keys of FORMAT.md


def table(text: str, before: str) -> list[list[str]]:
    """Cells of the first table at or behind the line that begins with `before`."""
    lines = text[text.index(f"\n{before}") :].splitlines()
    rows = takewhile(is_row, dropwhile(lambda line: not is_row(line), lines))
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", row.strip("|"))] for row in rows]


def is_row(line: str) -> bool:
    return line.startswith("|")


def commands(text: str) -> Iterator[list[str]]:
    """The words of each call of voxport, and of each module of `tools`, in the blocks of a document."""
    blocks = "\n".join(line for line in text.splitlines() if line.startswith("    "))
    for line in blocks.replace("\\\n", " ").splitlines():
        for call in re.findall(r"(?:(?<!/)\bvoxport (?=[a-z-])|\bpython -m tools\.)[^|#>]*", line):
            yield re.sub(r'"[^"]*"', "TEXT", call).split()


@pytest.fixture(scope="module")
def helps() -> dict[str, str]:
    """The help of each command, when it was shown."""
    return {}


@pytest.mark.parametrize("path", [path for path in DOCUMENTS if any(commands(DOCUMENTS[path]))])
def test_a_command_of_a_document_exists(
    path: str, helps: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    for words in commands(DOCUMENTS[path]):
        if words[0] == "python":
            module = ROOT / words[2].replace(".", "/")
            assert module.with_suffix(".py").is_file(), " ".join(words)
            continue
        name = next(word for word in words[1:] if word != "...")
        if name not in helps:
            with pytest.raises(SystemExit) as ended:
                main(["--help"] if name.startswith("-") else [name, "--help"])
            assert ended.value.code == 0, name
            helps[name] = capsys.readouterr().out
        for option in re.findall(r"(?<![\w-])--[a-z][\w-]*", " ".join(words)):
            assert re.search(rf"{option}\b", helps[name]), f"{' '.join(words)}: {option}"


@pytest.mark.parametrize("path", DOCUMENTS)
def test_a_link_of_a_document_leads_somewhere(path: str) -> None:
    for target, anchor in LINK.findall(DOCUMENTS[path]):
        found = (ROOT / path).parent / target if target else ROOT / path
        assert found.exists(), target
        titles = re.findall(r"^#+ (.*)$", found.read_text(), re.MULTILINE) if anchor else []
        anchors = {re.sub(r"[^\w -]", "", title).strip().lower().replace(" ", "-") for title in titles}
        assert not anchor or anchor in anchors, f"{target}#{anchor}"


@pytest.mark.parametrize("path", [path for path, text in DOCUMENTS.items() if "<!-- docs/figures/" in text])
def test_a_table_has_the_figures_of_its_csv(path: str) -> None:
    """The first cell of a row is an id. Every number of the other cells is in the row of this id."""
    for part in re.split(r"(?=^<!-- docs/figures/)", DOCUMENTS[path], flags=re.MULTILINE)[1:]:
        known = {row["id"]: row for row in csv.DictReader((ROOT / part.split()[1]).open(newline=""))}
        for name, *cells in table(f"\n{part}", "|")[2:]:
            figures = {number for value in known[name].values() for number in NUMBER.findall(value)}
            assert not {number for cell in cells for number in NUMBER.findall(cell)} - figures, name


def test_every_row_of_figures_says_where_when_and_with_what() -> None:
    for path in (ROOT / "docs" / "figures").glob("*.csv"):
        for row in csv.DictReader(path.open(newline="")):
            assert row["machine"] and row["date"] and row["commit"], f"{path.name}: {row['id']}"


def test_the_figures_of_the_embedded_models_reach_their_aims() -> None:
    """Wrong words in per cent: quantised speech is near full precision, live text equals whole text."""
    rows = csv.DictReader((ROOT / "docs" / "figures" / "evaluation.csv").open(newline=""))
    known = {row["id"]: row for row in rows}
    for target in TARGETS:
        is_slow = target == "coreai"  # 8 s of a core for a sentence
        for recipe, most in (("w8", 1.0), ("w4", 2.0)):
            row = known[f"voxtral-tts-tiny {target} {recipe}"]
            most += 2 * float(row["wer_difference_error"]) if is_slow else 0
            assert row["readings"] == ("1" if is_slow else "4")
            assert float(row["wer"]) - float(row["wer_full"]) <= most
            assert float(row["not_ended"]) <= 1
            heard = known[f"voxtral-realtime-tiny {target} {recipe}"]
            assert float(heard["wer"]) <= 5 and (is_slow or heard["live_equal"] == "100.0")
    whisper = known["voxtral-tts-tiny onnx none, Whisper"]
    assert float(whisper["wer"]) - float(whisper["wer_recordings"]) <= 10


def test_documents_are_short() -> None:
    own = [text for path, text in DOCUMENTS.items() if not path.startswith("examples/")]
    assert sum(len(text.splitlines()) for text in own) <= MAX_DOCUMENT_LINES


@pytest.mark.parametrize("title", SECTIONS)
def test_the_format_describes_every_field_of_a_record(title: str) -> None:
    section = re.split(rf"^## {title}\b.*$", FORMAT, flags=re.MULTILINE)[1].partition("\n## ")[0]
    rows = filter(is_row, section.splitlines())
    found = {name for row in rows for name in re.findall(r"`(\w+)`", row.split("|")[1])}
    for record in SECTIONS[title]:
        expected = getattr(record, "model_fields", None) or getattr(record, "__dataclass_fields__", {})
        assert not expected.keys() - found, record.__name__


def test_every_record_of_the_manifest_is_described() -> None:
    described = {record for records in SECTIONS.values() for record in records}
    bases = (manifest.Record, manifest.ManifestRecord, manifest.FamilyConstants)
    kinds = (each for each in vars(manifest).values() if isinstance(each, type))
    assert described >= {each for each in kinds if issubclass(each, manifest.Record) and each not in bases}


@pytest.mark.parametrize("key", VALUES)
def test_the_format_lists_every_value_of_a_key(key: str) -> None:
    row = next(line for line in FORMAT.splitlines() if line.startswith(f"| `{key}` |"))
    assert not {f"`{value}`" for value in VALUES[key]} - set(re.findall("`[^`]+`", row))


def test_the_format_lists_every_layout() -> None:
    assert [row[0] for row in table(FORMAT, "## Layouts")[2:]] == [f"`{layout}`" for layout in spec.LAYOUTS]


def test_both_tables_of_exit_codes_are_equal_and_those_of_the_classes() -> None:
    rows = table(errors.__doc__, "| code | meaning |")
    assert [row[:2] for row in rows] == table(DOCUMENTS["docs/commands.md"], "| code | meaning |")
    raised = {name: int(code) for code, _, classes in rows[2:] for name in re.findall(r"`(\w+)`", classes)}
    assert raised == {name: getattr(errors, name).exit_code for name in raised}


def test_the_rules_have_the_limits_and_the_private_packages_that_are_checked() -> None:
    text = " ".join(DOCUMENTS["CONTRIBUTING.md"].split())
    limits = f"files above {MAX_LINES} lines, functions above {MAX_FUNCTION_LINES} lines and folders above"
    assert f"Lines have at most {MAX_COLUMNS} columns" in text and f"{limits} {MAX_FILES} files" in text
    rules = " ".join(row[0] for row in table(DOCUMENTS["CONTRIBUTING.md"], "## Rules"))
    assert all(f"`{name.removeprefix('voxport.')}`" in rules for name in PRIVATE)


def test_files_that_documents_name_exist() -> None:
    """Paths in backquotes, with a folder of the tree in front."""
    folders = "bundle|model|quantize|export|runtime|cli|tools|tests|docs|artifacts"
    for path, text in DOCUMENTS.items():
        for name in re.findall(rf"`((?:{folders})/[\w./-]+)`", text):
            if not re.search(r"/(?:[A-Z]+|toy_\w+)(?:/|\b)", name):
                assert (ROOT / name).exists() or (Path(path).parent / name).exists(), f"{path}: {name}"
