#!/bin/sh
# Fills DIR for -DONNXRUNTIME_ROOT=DIR on Debian and Ubuntu: headers of the package libonnxruntime-dev of
# SUITE, and the library of the Python package onnxruntime, which may be newer than the headers.
set -eu
package=$("${PYTHON:-python3}" -c 'import onnxruntime; print(onnxruntime.__file__)')
mkdir -p "${1:?"usage: [SUITE=trixie] [PYTHON=python3] $0 DIR"}/include" "$1/lib"
root=$(cd "$1" && pwd) work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$work/lists/partial" "$work/archives/partial"
mirror=$(apt-get indextargets --format '$(REPO_URI)' | head -n 1)
echo "deb $mirror ${SUITE:-trixie} main" > "$work/sources.list"
apt="apt-get -qq -o Dir::Etc::SourceList=$work/sources.list -o Dir::Etc::SourceParts=-
    -o Dir::State::Lists=$work/lists -o Dir::Cache=$work -o APT::Sandbox::User=$(id -un)"
$apt update
(cd "$work" && $apt download libonnxruntime-dev && dpkg -x ./*.deb . && cp -r usr/include/* "$root/include/")
ln -sf "$(dirname "$package")"/capi/libonnxruntime.so.1.* "$root/lib/libonnxruntime.so.1"
ln -sf libonnxruntime.so.1 "$root/lib/libonnxruntime.so"
