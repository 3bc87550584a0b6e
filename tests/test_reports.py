"""The tables that tools/reports writes into documents have the figures of docs/bench."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from support.paths import ROOT
from test_structure import source_files

BENCH = ROOT / "docs" / "bench"
COMMANDS = {  # that write the tables of a document: the tool, the files in docs/bench, the option before it
    "docs/performance.md": [
        ("bench_report", f"{family}/*.json", "--document")
        for family in ("voxtral_tts", "qwen3_tts", "voxtral_realtime")
    ],
    "README.md": [("bench_report", "voxtral_*/*.json", "--summary")],
    "docs/evaluation.md": [
        ("evaluation_report", "evaluation/*.json", "--document"),
        ("evaluation_report", "evaluation/noise/*.json", "--noise-document"),
    ],
    "docs/serving.md": [("serving_report", "serving/speech.json", "--document")],
}
TABLE = re.compile(
    r"(?P<begin><!-- bench (?P<name>[^:]*): made by tools/reports/\w+\.py -->\n)"
    r".*?(?P<end><!-- /bench (?P=name) -->)",
    re.DOTALL,
)


@pytest.mark.parametrize("document", COMMANDS)
def test_a_document_has_the_tables_of_its_results(document: str, tmp_path: Path) -> None:
    """All tables are taken out and written again: a result or a table that was changed alone is found."""
    text, copy = (ROOT / document).read_text(), tmp_path / Path(document).name
    copy.write_text(TABLE.sub(r"\g<begin>\g<end>", text))
    for tool, pattern, option in COMMANDS[document]:
        results = [str(path) for path in sorted(BENCH.glob(pattern))]
        command = [sys.executable, f"tools/reports/{tool}.py", *results, option, str(copy)]
        subprocess.run(command, cwd=ROOT, env=os.environ | {"PYTHONPATH": str(ROOT / "src")}, check=True)
    assert copy.read_text() == text


def test_every_document_with_tables_is_compared() -> None:
    found = {path for path in source_files("*.md") if TABLE.search((ROOT / path).read_text())}
    assert found == set(COMMANDS)
