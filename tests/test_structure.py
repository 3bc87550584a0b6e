"""The structure of the source: what packages import, circles of imports, and lengths of lines, files and
functions.

Every import statement counts: those inside functions and those for the type checker too.
"""

import ast
import subprocess
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from support.paths import ROOT

# Packages, and those that each may import, as in CONTRIBUTING.md.
LAYERS = {
    "bundle": set(),
    "model": {"bundle"},
    "quantize": {"bundle"},
    "runtime": {"bundle"},
    "export": {"bundle", "model", "quantize", "runtime"},
    "cli": {"bundle", "model", "quantize", "runtime", "export"},
    "voxport": {"cli", "bundle", "runtime"},
}
TORCH, WITHOUT_TORCH = {"torch", "torchao"}, {"bundle", "runtime"}
ONNX_RUNTIME = "voxport.runtime.engines.onnx"
TORCH_ENGINE = "voxport.runtime.engines.executorch"  # the only module there that may import torch
# Packages that only the named modules may import, besides their own.
PRIVATE = {"voxport.runtime.serve": {"voxport.cli.commands.serve"}}
MAX_LINES, MAX_FUNCTION_LINES, MAX_FILES = 350, 45, 19
MAX_COLUMNS = 110  # of a line that is no row of a table
TEXTS = ("*.py", "*.md", "*.js", "*.css", "*.html", "*.j2", "*.toml", "*.conf", "Makefile", ".ci/run")

FUNCTIONS = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Module:
    name: str
    path: str  # relative to the root of the checkout
    lines: int
    nodes: tuple[ast.AST, ...]  # its import statements and functions, at any depth

    @property
    def package(self) -> str:
        return package_of(self.name)


def source_files(*patterns: str) -> list[str]:
    """Paths of the tracked files. Without git or a checkout: of all files outside hidden folders."""
    try:
        command = ["git", "-C", str(ROOT), "ls-files", "--", *patterns]
        tracked = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    except (OSError, subprocess.CalledProcessError):
        tracked = []
    if tracked:
        return [path for path in tracked if (ROOT / path).is_file()]
    found = (path.relative_to(ROOT) for pattern in patterns for path in ROOT.rglob(pattern))
    return [path.as_posix() for path in found if not any(part.startswith(".") for part in path.parts)]


@cache
def modules() -> dict[str, Module]:
    """All modules by name."""
    return {module.name: module for module in map(read, source_files("*.py"))}


def read(path: str) -> Module:
    text = (ROOT / path).read_text(encoding="utf-8")
    name = path.removesuffix(".py").removesuffix("/__init__").replace("/", ".").removeprefix("src.")
    if name.partition(".")[0] in LAYERS:
        name = f"voxport.{name}"
    kinds = ast.Import | ast.ImportFrom | FUNCTIONS
    nodes = tuple(node for node in statements(ast.parse(text, path)) if isinstance(node, kinds))
    return Module(name, path, len(text.splitlines()), nodes)


def statements(node: ast.AST) -> Iterator[ast.AST]:
    """The statements below a node, at any depth. Expressions hold none."""
    for field in ("body", "orelse", "finalbody", "handlers", "cases"):
        for child in getattr(node, field, ()):
            yield child
            yield from statements(child)


def in_packages() -> Iterator[Module]:
    return (module for module in modules().values() if module.package in LAYERS)


@cache
def imports(module: Module) -> list[tuple[str, int]]:
    """The modules that a module imports, with lines. `from a import b` is `a.b` if that is a module here."""
    found = []
    for node in module.nodes:
        if isinstance(node, ast.Import):
            found += [(alias.name, node.lineno) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = absolute(module, node)
            names = [f"{base}.{alias.name}" for alias in node.names]
            found += [(name if name in modules() else base, node.lineno) for name in names]
    return found


def absolute(module: Module, node: ast.ImportFrom) -> str:
    """The module that a statement names, also with leading dots."""
    if not node.level:
        return node.module or ""
    parts = module.name.split(".")
    is_package = module.path.endswith("/__init__.py")
    base = parts[: len(parts) - node.level + is_package]
    return ".".join([*base, node.module] if node.module else base)


def package_of(name: str) -> str:
    """`bundle` of `voxport.bundle.files`. The modules of `src/voxport` belong to `voxport`."""
    parts = name.split(".")
    return parts[1] if len(parts) > 1 and parts[0] == "voxport" and parts[1] in LAYERS else parts[0]


def is_within(name: str, package: str) -> bool:
    return name == package or name.startswith(f"{package}.")


def test_a_package_imports_only_the_packages_below_it() -> None:
    wrong = [
        f"{module.path}:{line}: {module.package} may not import {name}"
        for module in in_packages()
        if not module.name.endswith(".__main__")  # `python -m export` is the command line
        for name, line in imports(module)
        if (package := package_of(name)) in LAYERS
        and package not in LAYERS[module.package] | {module.package}
    ]
    assert not wrong, "\n".join(wrong)


def test_bundle_and_runtime_import_no_torch() -> None:
    wrong = [
        f"{module.path}:{line}: only {TORCH_ENGINE} may import {name}"
        for module in in_packages()
        if module.package in WITHOUT_TORCH and module.name != TORCH_ENGINE
        for name, line in imports(module)
        if name.partition(".")[0] in TORCH
    ]
    assert not wrong, "\n".join(wrong)


def test_one_module_imports_onnx_runtime() -> None:
    """`bundle` turns off its telemetry before. So does `tools.training`, for its teacher. Maintainers of ONNX
    Runtime may run `tools.product_rows`, without voxport.
    """
    importers = {
        module.name for module in modules().values() for name, _ in imports(module) if name == "onnxruntime"
    }
    assert importers == {ONNX_RUNTIME, "tools.training.data.kokoro", "tools.product_rows"}


def test_the_server_is_imported_by_its_command_only() -> None:
    wrong = [
        f"{module.path}:{line}: imports {name}"
        for package, users in PRIVATE.items()
        for module in in_packages()
        if not is_within(module.name, package) and module.name not in users
        for name, line in imports(module)
        if is_within(name, package)
    ]
    assert not wrong, "\n".join(wrong)


def reachable(graph: dict[str, set[str]], start: str) -> set[str]:
    """The modules that a module imports, directly or not."""
    found: set[str] = set()
    waiting = [start]
    while waiting:
        new = graph[waiting.pop()] - found
        found |= new
        waiting += new
    return found


def circles() -> set[frozenset[str]]:
    """Sets of modules that all import each other, directly or not."""
    own = {module.name: module for module in in_packages()}
    graph = {name: {target for target, _ in imports(module) if target in own} for name, module in own.items()}
    below = {name: reachable(graph, name) for name in graph}
    return {
        frozenset(other for other in below[name] if name in below[other])
        for name in graph
        if name in below[name]
    }


def described(circle: frozenset[str]) -> str:
    """The import statements within a circle."""
    statements = {
        f"{module.path}:{line}: imports {name}, which imports it again"
        for module in map(modules().__getitem__, circle)
        for name, line in imports(module)
        if name in circle
    }
    return "\n".join(sorted(statements))


def test_imports_have_no_circles() -> None:
    found = circles()
    assert not found, "\n".join(map(described, found))


def test_files_are_short() -> None:
    wrong = [
        f"{module.path}:{MAX_LINES + 1}: has {module.lines} lines, expected at most {MAX_LINES}"
        for module in modules().values()
        if module.lines > MAX_LINES
    ]
    assert not wrong, "\n".join(wrong)


def test_lines_are_short() -> None:
    wrong = [
        f"{path}:{number}: has {len(line)} columns, expected at most {MAX_COLUMNS}"
        for path in source_files(*TEXTS)
        for number, line in enumerate((ROOT / path).read_text(encoding="utf-8").splitlines(), 1)
        if len(line) > MAX_COLUMNS and not line.startswith("|")
    ]
    assert not wrong, "\n".join(wrong)


def test_functions_are_short() -> None:
    """Decorators do not count, the docstring does."""
    wrong = [
        f"{module.path}:{node.lineno}: {node.name} has {length} lines, expected at most {MAX_FUNCTION_LINES}"
        for module in modules().values()
        for node in module.nodes
        if isinstance(node, FUNCTIONS)
        and node.end_lineno
        and (length := node.end_lineno - node.lineno + 1) > MAX_FUNCTION_LINES
    ]
    assert not wrong, "\n".join(wrong)


def test_folders_are_small() -> None:
    counts = Counter(Path(module.path).parent.as_posix() for module in modules().values())
    wrong = [
        f"{folder}: has {count} Python files, expected at most {MAX_FILES}; use subfolders"
        for folder, count in counts.items()
        if count > MAX_FILES
    ]
    assert not wrong, "\n".join(wrong)
