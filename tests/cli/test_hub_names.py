"""Names of a hub in place of folders: what is fetched, when, and what is said. The hub is on this machine."""

import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.files import contents
from support.hub import TOKEN, Repository, running_hub
from support.hub_commands import Machine
from support.paths import GOLDEN

from voxport.bundle.errors import UsageError
from voxport.bundle.manifest import ExportRequest
from voxport.bundle.names import HubName
from voxport.export.job import graph_key, make_job
from voxport.export.resolve import Source, resolve
from voxport.export.targets import open_target

NAME = "me/tts"
BLOCK = 10 * 2**20  # bytes that the client writes at a time
BESIDE = {"LICENSE": b"text", ".gitattributes": b"", "other.onnx": b"not of the bundle"}


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    with running_hub() as hub:
        yield Machine(hub, tmp_path)


@pytest.fixture
def repository(machine: Machine, bundles: Path) -> Repository:
    """A repository with a bundle."""
    return machine.hub.add(NAME, contents(bundles / "onnx") | BESIDE)


def largest(repository: Repository) -> str:
    files = repository.commits[repository.refs["main"]]
    return max(files, key=lambda name: len(files[name]))


def test_a_bundle_speaks_by_its_name(machine: Machine, repository: Repository, bundles: Path) -> None:
    arguments = ("say", "Hello.", "--max-frames", "3", "--bundle")
    done = machine.run(*arguments, NAME, "-o", "named.wav")
    assert done.returncode == 0, done.stderr
    assert machine.run(*arguments, bundles / "onnx", "-o", "local.wav").returncode == 0
    assert (machine.folder / "named.wav").read_bytes() == (machine.folder / "local.wav").read_bytes()
    (commit,) = repository.commits
    said = re.search(r"fetching ([\d.]+) MB in (\d+) files, licence apache-2.0, commit (\w+)", done.stderr)
    files = contents(bundles / "onnx")
    assert said and said[3] == commit and int(said[2]) == len(files) - 1  # the manifest is there before
    assert abs(float(said[1]) - sum(map(len, files.values())) / 1e6) < 0.2
    assert sorted(machine.hub.fetched()) == sorted(files)


def test_a_second_command_fetches_nothing(machine: Machine, repository: Repository) -> None:
    assert machine.run("info", NAME).returncode == 0
    machine.hub.asked.clear()
    done = machine.run("info", NAME)
    assert done.returncode == 0 and "fetching" not in done.stderr and not machine.hub.fetched()


def test_a_folder_wins_over_a_name(machine: Machine, repository: Repository, bundles: Path) -> None:
    (machine.folder / "me").mkdir()
    assert "there is no such folder" in machine.fails(2, "info", NAME) and not machine.hub.asked
    (machine.folder / NAME).symlink_to(bundles / "onnx")
    assert machine.run("info", NAME).returncode == 0 and not machine.hub.asked
    assert machine.run("info", f"hf://{NAME}").returncode == 0 and machine.hub.asked


PAGE = "https://huggingface.co/me/tts"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("hf://me/tts/", "me/tts"),
        ("hf://me/tts@refs/pr/1", "me/tts@refs/pr/1"),
        (f"{PAGE}/", "me/tts"),
        (f"{PAGE}?library=voxport".replace("https", "http"), "me/tts"),
        (f"{PAGE}/resolve/v2/a/model.safetensors?download=true", "me/tts@v2"),
        (f"{PAGE}/tree/refs%2Fpr%2F1", "me/tts@refs/pr/1"),
        (f"{PAGE}/tree/", "me/tts"),
        (f"{PAGE}/discussions", "me/tts"),
        ("artifacts/tts", None),
        ("checkpoints/tts@v2", None),
        ("hf://artifacts/tts", "artifacts/tts"),
        ("../tts", None),
    ],
)
def test_what_is_a_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, expected: str | None
) -> None:
    monkeypatch.chdir(tmp_path)
    found = HubName.parse(text)
    assert (found and str(found)) == expected


@pytest.mark.parametrize(
    "address", ["hf://me", PAGE.replace("me/", "datasets/me/"), "https://my.org/me/tts", "https://["]
)
def test_an_address_of_no_model_is_refused(address: str) -> None:
    with pytest.raises(UsageError, match="expected hf://OWNER/NAME") as raised:
        HubName.parse(address)
    assert address in str(raised.value)


@pytest.mark.slow
def test_a_revision_is_a_branch_or_a_commit(machine: Machine, repository: Repository) -> None:
    first = repository.refs["main"]
    files = repository.commits[first]
    second = repository.commit(files | {"README.md": b"of the branch"}, "next")
    for revision, commit in (("next", second), (first, first), ("main", first)):
        assert machine.run("info", f"{NAME}@{revision}").returncode == 0
        expected = b"of the branch" if commit == second else files["README.md"]
        assert (machine.snapshot(NAME, commit) / "README.md").read_bytes() == expected
    assert "no such revision" in machine.fails(2, "info", f"{NAME}@nowhere")


def test_a_revision_that_moves_gives_the_files_of_one_commit(
    machine: Machine, repository: Repository
) -> None:
    first = repository.refs["main"]
    files = repository.commits[first]
    moved = {name: b"{}" if name == "tekken.json" else content for name, content in files.items()}

    def move(path: str) -> None:
        if len(repository.commits) == 1:
            repository.commit(moved)

    machine.hub.on_file = move
    done = machine.run("info", NAME)
    assert done.returncode == 0 and first in done.stderr
    assert (machine.snapshot(NAME, first) / "tekken.json").read_bytes() == files["tekken.json"]
    assert not machine.snapshot(NAME, repository.refs["main"]).exists()
    assert "tekken.json: 2 bytes" in machine.fails(5, "info", NAME)  # of the new commit


@pytest.mark.slow
def test_a_connection_that_breaks_off_is_resumed(machine: Machine) -> None:
    content = bytes(3 * BLOCK // 2)
    repository = machine.hub.add("me/large", {"large.data": content})
    repository.limits["large.data"] = BLOCK + 1
    code = (
        "from voxport.cli.hub import HubName, HubRepository\n"
        "HubRepository(HubName('me/large')).fetch(['large.data'])"
    )
    subprocess.run([sys.executable, "-c", code], env=machine.environment(), check=True)
    assert machine.hub.ranges == [f"bytes={BLOCK}-"]
    assert (machine.snapshot("me/large", repository.refs["main"]) / "large.data").read_bytes() == content


@pytest.mark.slow
def test_an_interrupted_command_continues_after_the_finished_files(
    machine: Machine, repository: Repository
) -> None:
    name, processes = largest(repository), list[subprocess.Popen[str]]()
    machine.hub.on_file = lambda path: processes[0].send_signal(signal.SIGINT) if path == name else None
    repository.limits[name] = 1000
    processes.append(
        subprocess.Popen(
            machine.command("info", NAME),
            cwd=machine.folder,
            env=machine.environment(),
            stderr=subprocess.PIPE,
            text=True,
        )
    )
    errors = processes[0].communicate(timeout=60)[1]
    assert processes[0].returncode == 130 and errors.endswith("voxport: interrupted\n"), errors
    snapshot = machine.snapshot(NAME, repository.refs["main"])
    finished = contents(snapshot)
    assert finished and name not in finished and not machine.partial_files()
    assert "the cache does not have all of it" in machine.fails(3, "info", NAME, HF_HUB_OFFLINE="1")
    machine.hub.on_file = lambda path: None
    repository.limits.clear()
    machine.hub.asked.clear()
    assert machine.run("info", NAME).returncode == 0
    assert not set(machine.hub.fetched()) & finished.keys() and name in machine.hub.fetched()


@pytest.mark.slow
def test_a_full_disk_is_one_line_and_leaves_no_part(machine: Machine, repository: Repository) -> None:
    name = largest(repository)
    error = machine.fails(3, "info", NAME, max_file=100_000)
    assert "cannot be stored in" in error and "File too large; raise the limit" in error
    assert not (machine.snapshot(NAME, repository.refs["main"]) / name).exists()
    assert not machine.partial_files()
    assert machine.run("info", NAME).returncode == 0


def test_a_full_file_system_is_one_line(machine: Machine, repository: Repository) -> None:
    """A file system of 400 kB, which a name space of its own may mount."""
    mount = 'mkdir -p hf && mount -t tmpfs -o size=400k tmpfs hf && exec "$@"'
    wrapper = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", mount, "sh"]
    if subprocess.run([*wrapper, "true"], cwd=machine.folder, capture_output=True).returncode:
        pytest.skip("needs name spaces of users, which this machine does not allow")
    command = [*wrapper, *machine.command("info", NAME)]
    done = subprocess.run(
        command, cwd=machine.folder, env=machine.environment(), capture_output=True, text=True
    )
    last = done.stderr.splitlines()[-1]
    assert done.returncode == 3 and "No space left on device; free space" in last, done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("is_down", [True, False])
def test_the_cache_serves_without_a_network(tmp_path: Path, bundles: Path, is_down: bool) -> None:
    with running_hub() as hub:
        machine = Machine(hub, tmp_path)
        commit = hub.add(NAME, contents(bundles / "onnx")).refs["main"]
        assert machine.run("info", NAME).returncode == 0
        hub.asked.clear()
        hub.status = 503
        for name in (NAME, f"{NAME}@{commit}"):
            done = machine.run("info", name, HF_HUB_OFFLINE="0" if is_down else "1")
            assert done.returncode == 0, done.stderr
            assert f"the hub is not reached; the cached commit is {commit}" in done.stderr
        assert bool(hub.asked) == is_down
    assert machine.run("info", NAME).returncode == 0  # nobody listens
    reason = f"me/other: no such folder; as a name of the hub: {hub.url}/me/other is not reached"
    assert f"{reason}, and the cache does not have all of it" in machine.fails(3, "info", "me/other")


@pytest.mark.slow
def test_what_a_hub_refuses_is_one_line_with_what_to_do(machine: Machine, repository: Repository) -> None:
    url = f"{machine.hub.url}/{NAME}"
    repository.is_gated = True
    assert f"accept its licence at {url}, and log in" in machine.fails(2, "info", NAME)
    assert machine.run("info", NAME, HF_TOKEN=TOKEN).returncode == 0
    machine.hub.add("me/private", {}, is_private=True)
    for name in ("me/private", "me/nothing", "me--and/you"):
        assert f"{name}: is neither a folder here nor a repository" in machine.fails(2, "info", name)
    machine.hub.status = 429
    assert "the hub answered 429: the hub is tired" in machine.fails(3, "info", "me/other")


@pytest.mark.slow
def test_a_repository_of_the_other_kind_names_the_command(machine: Machine, repository: Repository) -> None:
    machine.hub.add("me/ft", {"params.json": b"{}", "consolidated.safetensors": b""})
    assert "voxport export --checkpoint me/ft --target" in machine.fails(2, "info", "me/ft")
    assert "holds a bundle, expected a checkpoint" in machine.fails(2, "inspect", NAME)
    machine.hub.add("me/gguf", {"config.json": b"{}", "model.gguf": b"weights"})
    assert "has no weights that are read, but model.gguf" in machine.fails(2, "inspect", "me/gguf")


@pytest.mark.slow
def test_options_are_checked_before_anything_is_fetched(machine: Machine, repository: Repository) -> None:
    machine.fails(2, "export", "--checkpoint", NAME, "--target", "onnx", "--quant", "w5")
    machine.fails(2, "say", "Hi", "--bundle", NAME, "-o", "out.xyz")
    machine.fails(2, "transcribe", "a.wav", "--bundle", NAME, "--turns")
    assert not machine.hub.asked


def test_without_the_client_its_command_is_printed(machine: Machine) -> None:
    code = (
        "import sys; sys.modules['huggingface_hub'] = None\n"  # as if it were not installed
        "from voxport.__main__ import main\nsys.exit(main(['info', 'me/tts@v2']))"
    )
    reason = "me/tts@v2: no such folder; as a name of the hub, it needs a package"
    command = [machine.command()[0], "-c", code]
    done = subprocess.run(
        command, cwd=machine.folder, env=machine.environment(), capture_output=True, text=True
    )
    assert done.returncode == 2 and reason in done.stderr and "pip install 'voxport[hub]'" in done.stderr
    assert done.stderr.endswith("fetch a folder with: hf download me/tts --revision v2 --local-dir tts\n")


@pytest.mark.slow
def test_an_adapter_is_fetched_by_its_name(machine: Machine, checkpoint: Path) -> None:
    adapter = contents(GOLDEN / "peft" / "plain")
    adapter.pop("merged.safetensors")  # what peft makes of it
    base = {"config.json": b"{}", "model.safetensors": b"", "consolidated.safetensors": b""}
    machine.hub.add("me/lora", adapter | base | {"optimizer.pt": b"state"})
    options = ("--adapter", "me/lora", "--weights", "consolidated.safetensors")
    error = machine.fails(5, "inspect", checkpoint, *options)
    assert "models--me--lora" in error, "it is of another base"
    assert sorted(machine.hub.fetched()) == sorted(adapter)
    machine.hub.add("me/base", base)
    error = machine.fails(2, "inspect", checkpoint, "--adapter", "me/base")
    assert "--adapter me/base: has no adapter_config.json of peft" in error


def test_a_manifest_has_the_commit_of_its_checkpoint(machine: Machine, checkpoint: Path) -> None:
    """Its artifacts are those of the same files in another folder."""
    commit = machine.hub.add("me/ft", contents(checkpoint) | {"model.gguf": b"copy"}).refs["main"]
    assert machine.run("inspect", "me/ft").returncode == 0
    assert sorted(machine.hub.fetched()) == sorted(contents(checkpoint))
    target = open_target("onnx", None)
    folders = (machine.snapshot("me/ft", commit), checkpoint)
    named, local = (make_job(resolve(Source(each), ExportRequest()), target, "ft") for each in folders)
    assert named.source.origin == f"me/ft@{commit}" and local.source.origin is None
    assert graph_key(named, "codec") == graph_key(local, "codec")


@pytest.mark.slow
def test_verifying_changes_no_file_of_the_cache(
    machine: Machine, repository: Repository, checkpoint: Path
) -> None:
    assert machine.run("info", NAME).returncode == 0
    before = contents(machine.cache)
    done = machine.run("verify", NAME, "--steps", "3", "--checkpoint", checkpoint)
    assert done.returncode == 0 and "not written, because it would change the hub's cache" in done.stderr
    assert contents(machine.cache) == before
