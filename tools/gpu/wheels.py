"""Downloads wheels for Linux on x86-64, and packs what is in them into one small archive.

    python -m tools.gpu.wheels gpu.tar.xz onnxruntime-gpu==1.31.1
    python -m tools.gpu.wheels others.tar.xz [PACKAGE ...]

`tools.gpu.speed --wheels gpu.tar.xz others.tar.xz` unpacks them. Dependencies are not added. Versions are
from requirements.lock. The default is what a machine with PyTorch, transformers and onnxscript lacks. The
server also needs `av`, of 35 MB.

The kernels of ONNX Runtime stay for one architecture, without grouped products of mixtures of experts, which
no other architecture has: 33 MB of 219. To load a removed kernel is an error.
"""

import argparse
import struct
import subprocess
import sys
import tarfile
from pathlib import Path
from tempfile import TemporaryDirectory

PACKAGES = (
    *("annotated-types", "typing-inspection", "pydantic", "pydantic-core", "pydantic-extra-types"),
    *("pycountry", "jsonschema", "jsonschema-specifications", "referencing", "rpds-py", "mistral-common"),
    *("sentencex", "soundfile", "cffi", "pycparser", "soxr", "platformdirs", "torchao", "argcomplete"),
    *("ftfy", "num2words", "emoji", "fastapi", "starlette", "uvicorn", "websockets", "python-multipart"),
    *("httpx2", "httpcore2", "truststore", "wcwidth", "opentelemetry-api"),
)
LOCK = Path(__file__).resolve().parents[2] / "requirements.lock"
LIBRARY, UNUSED = (
    "onnxruntime/capi/libonnxruntime_providers_cuda.so",
    ("libonnxruntime.so.*", "*_tensorrt.so"),
)
CONTAINER = struct.pack("<IHH", 0xBA55ED50, 1, 16)  # magic, version and size of the header of a fat binary
PLATFORMS = ("manylinux2014_x86_64", *(f"manylinux_2_{minor}_x86_64" for minor in (17, 27, 28, 34, 35)))


def remove_kernels(library: bytearray, architecture: int) -> None:
    """Zeros in place of kernels for other architectures, and of those that only this one has."""
    start = library.find(CONTAINER)
    while start >= 0:
        end = start + 16 + struct.unpack_from("<Q", library, start + 8)[0]
        kernels, place = [], start + 16
        while place < end:
            header, size = struct.unpack_from("<IQ", library, place + 4)
            kernels.append((struct.unpack_from("<I", library, place + 28)[0], place + header, size))
            place += header + size
        for found, place, size in kernels:
            if found != architecture or len(kernels) == 1:
                library[place : place + size] = bytes(size)
        start = library.find(CONTAINER, end)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("archive", type=Path)
    parser.add_argument("packages", nargs="*", default=PACKAGES)
    parser.add_argument("--python", default="3.12", help="version there (default: 3.12)")
    parser.add_argument("--architecture", type=int, default=90, help="of the GPU (default: 90, of an H200)")
    parser.add_argument("--mib", type=float, default=64, help="of the archive at most (default: 64)")
    arguments = parser.parse_args()
    with TemporaryDirectory() as name:
        options = [
            "--no-deps",
            "--no-compile",
            "--only-binary=:all:",
            "-q",
            "-c",
            str(LOCK),
            "--target",
            name,
        ]
        options += ["--implementation=cp", f"--python-version={arguments.python}"]
        options += [f"--platform={each}" for each in PLATFORMS]
        subprocess.run([sys.executable, "-m", "pip", "install", *options, *arguments.packages], check=True)
        if (path := Path(name, LIBRARY)).exists():
            library = bytearray(path.read_bytes())
            remove_kernels(library, arguments.architecture)
            path.write_bytes(library)
            for unused in (found for pattern in UNUSED for found in path.parent.glob(pattern)):
                unused.unlink()
        with tarfile.open(arguments.archive, "w:xz", preset=6) as tar:
            tar.add(name, ".")
    size = arguments.archive.stat().st_size / 2**20
    print(f"{arguments.archive}: {size:.1f} MiB")
    return int(size > arguments.mib)


if __name__ == "__main__":
    sys.exit(main())
