"""Certificates of the local machine, made with openssl."""

import shutil
import subprocess
from pathlib import Path

import pytest


def certificate(folder: Path, name: str = "own", password: str | None = None) -> tuple[Path, Path]:
    """Files of a self-signed certificate and its private key, encrypted if there is a password."""
    if not shutil.which("openssl"):  # CI installs it
        pytest.skip("openssl, which makes the certificate, is not installed")
    paths = folder / f"{name}.pem", folder / f"{name}-key.pem"
    command = [
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:P-256",
        "-days",
        "2",
    ]
    command += ["-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"]
    command += ["-passout", f"pass:{password}"] if password else ["-nodes"]
    subprocess.run([*command, "-out", paths[0], "-keyout", paths[1]], check=True, capture_output=True)
    return paths
