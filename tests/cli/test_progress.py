"""Progress: a bar on a terminal, lines elsewhere."""

import logging
import os
import pty
import subprocess
import sys
import termios
from contextlib import suppress

from support.paths import ROOT

PROGRESS = """
import logging, sys, time
from voxport.cli.terminal import set_up_logging
from voxport.bundle.progress import advance, progress, shown_by
from voxport.cli.terminal import Progress
set_up_logging(int(sys.argv[1]))
with progress(1.0, "nothing"):
    advance(1.0, "not shown")
with shown_by(Progress), progress(10.0, "MB"):
    advance(5.0, "half")
    time.sleep(0.3)
    logging.getLogger("voxport.bundle").info("a line")
    with progress(3.0, "steps"):
        advance(2.0, "inner")
    time.sleep(0.3)
with Progress(10.0, "s") as shown:
    shown._last_line -= 60  # as if the work had begun a minute ago
    shown.update(5.0, "so far")
"""


def progress_on_a_terminal(level: int) -> str:
    """What a process with a terminal of 80 columns as its stderr writes there."""
    controller, terminal = pty.openpty()
    termios.tcsetwinsize(terminal, (24, 80))
    environment = os.environ | {"TERM": "xterm", "PYTHONPATH": str(ROOT / "src")}
    process = subprocess.Popen([sys.executable, "-c", PROGRESS, str(level)], stderr=terminal, env=environment)
    os.close(terminal)
    written = b""
    with suppress(OSError):  # the terminal is closed when the process ends
        while block := os.read(controller, 4096):
            written += block
    os.close(controller)
    assert process.wait() == 0
    return written.decode()


def test_progress_on_a_terminal_is_a_bar_below_the_lines() -> None:
    found = progress_on_a_terminal(logging.INFO)
    assert "\u2501" in found and "half" in found and "inner" in found
    assert "5/10 MB" in found and "7/10 MB" in found and "0:00:0" in found
    line = next(line for line in found.splitlines() if "a line" in line)
    assert line.rstrip().endswith("a line") and "\u2501" not in line.split("a line")[1]
    assert found.rstrip("\r\n").endswith("\x1b[2K") or found.rstrip().endswith(
        "\x1b[?25h"
    )  # removed at the end


def test_a_quiet_command_has_no_bar() -> None:
    assert progress_on_a_terminal(logging.WARNING) == ""


def test_progress_is_a_line_where_there_is_no_terminal() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRESS, str(logging.INFO)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert [line.split("] ")[1] for line in done.stderr.splitlines()] == ["a line", "so far"]
