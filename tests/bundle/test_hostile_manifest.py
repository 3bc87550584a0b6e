"""Manifests that two readers would read in two ways, or that a terminal would obey, are refused."""

import json

import numpy as np
import pytest

from bundle.errors import IntegrityError
from bundle.manifest import MANIFEST, read_manifest
from bundle.spec import Kind, Signature, TensorSpec
from runtime.engines.base import check_outputs


@pytest.mark.parametrize(
    "content, named",
    [
        ('{"schema_version": 2, "schema_version": 2}', "'schema_version' comes twice"),
        ('{"job": {"a": 1, "a": 2}}', "'a' comes twice"),
        ('{"schema_version": true}', "schema_version is True"),
        (json.dumps({"voices": {"\x1b[31m": "x"}}), "control characters"),
        (json.dumps({"job": {"licence": ["free\u202etxt"]}}), "control characters"),
    ],
)
def test_it_is_refused(tmp_path, content, named):
    (tmp_path / MANIFEST).write_text(content)
    with pytest.raises(IntegrityError, match=named) as caught:
        read_manifest(tmp_path)
    assert str(caught.value).isprintable()


SIGNATURE = Signature((), (TensorSpec("hidden", "float32", (1, "S", 4), Kind.HIDDEN),))


@pytest.mark.parametrize(
    "outputs",
    [
        {},
        {"hidden": np.zeros((1, 3, 5), np.float32)},
        {"hidden": np.zeros((3, 4), np.float32)},
        {"hidden": np.zeros((1, 3, 4), np.int64)},
    ],
)
def test_outputs_that_the_manifest_does_not_have_are_refused(outputs):
    check_outputs("prefill", SIGNATURE, {"hidden": np.zeros((1, 3, 4), np.float32)})
    check_outputs("prefill", SIGNATURE, {"hidden": np.zeros((2, 3, 4), np.float32)})  # two slots
    with pytest.raises(IntegrityError, match=r"prefill: output hidden .*, the manifest says"):
        check_outputs("prefill", SIGNATURE, outputs)
