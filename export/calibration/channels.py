"""Chooses changes of channels that make weights and their inputs easier to round."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

import torch

from voxport.export.calibration.graph import Rows, weights_of
from voxport.export.calibration.mixture import RowsOf
from voxport.export.resolve import Resolved
from voxport.model.checkpoint import is_below
from voxport.model.layers.channels import Channels, ValueRotations, channels_of
from voxport.quantize.inputs import InputRows
from voxport.quantize.migration import KERNELS, LARGEST, candidates, output_error
from voxport.quantize.parallel import map_items
from voxport.quantize.rotation import error_behind_output, principal_axes
from voxport.quantize.schemes import PaletteScheme, Scheme
from voxport.quantize.search import SMALLEST_SCALE

# A rotation must leave less of the error: it is estimated as if each row attended to itself only. Values with
# a common part leave a tenth, others about as much as before.
CLEAR = 0.5
log = logging.getLogger(__name__)


class Changes(NamedTuple):
    """By the path of what writes the channels: exponents [width], and rotations [heads, size, size]."""

    exponents: Rows
    rotations: Rows


@dataclass(frozen=True)
class _Readers:
    """Linears that read channels, float32, with their inputs.

    most: the largest exponents [width] that the writer tolerates; None: its rows keep their sizes.
    """

    channels: Channels
    schemes: list[Scheme]
    weights: list[torch.Tensor]
    inputs: InputRows
    most: torch.Tensor | None

    def exponents(self) -> tuple[float, torch.Tensor]:
        """The least error of what the readers give, and the exponents that lead to it."""
        inputs, columns = self.inputs, self.inputs.fit.shape[1]
        largest = torch.stack([weight.abs().amax(0) for weight in self.weights]).amax(0)
        options = candidates(*map(self.channels.largest, (inputs.fit.abs().amax(0), largest)))
        options = options[:1] if self.most is None else [torch.minimum(each, self.most) for each in options]
        of_columns = (self.channels.of_columns(each, columns) for each in options)
        error_of = partial(output_error, self.schemes, self.weights, inputs)
        errors = list(map_items(error_of, list(of_columns)))
        best = min(range(len(errors)), key=errors.__getitem__)
        return errors[best], options[best]


@dataclass(frozen=True)
class _Values:
    """The projection of values whose channels they are, with its inputs."""

    scheme: Scheme
    weight: torch.Tensor
    inputs: InputRows

    def error(self, readers: _Readers) -> float:
        """Comparable with the error of the readers, which is the sum for all arithmetics."""
        [output], heads = readers.weights, readers.channels.heads
        assert heads
        return len(KERNELS) * error_behind_output(self.scheme, self.weight, output, self.inputs, heads)


def choose_changes(resolved: Resolved, rows_of: RowsOf) -> Changes:
    """For channels whose readers are quantised: what is best for them on rows that were held out."""
    root, found, schemes = resolved.source.root(), Changes({}, {}), schemes_of(resolved)
    weight_of = weights_of(resolved.source.checkpoint, root)
    for channels in channels_of(root):
        inputs, before = rows_of(channels.readers[0]), rows_of(channels.writer)
        if inputs is None or not all(reader in schemes for reader in channels.readers):
            continue
        weights = [weight_of(reader).float() for reader in channels.readers]
        of_readers = [schemes[reader] for reader in channels.readers]
        written = weight_of(channels.writer).float() if channels.writer in schemes else None
        in_floats = torch.full((channels.width,), LARGEST)
        most = in_floats if written is None else most_exponents(schemes[channels.writer], written)
        readers = _Readers(channels, of_readers, weights, inputs, most)
        error, exponents = readers.exponents()
        if channels.heads and written is not None and before:
            values = _Values(schemes[channels.writer], written, before)
            rotation = principal_axes(inputs.fit, channels.heads, channels.width // channels.heads)
            rotated_values, rotated = _rotated(root, values, readers, rotation)
            rotated_error, rotated_exponents = rotated.exponents()
            unrotated, after = error + values.error(readers), rotated_error + rotated_values.error(rotated)
            if after < CLEAR * unrotated:
                text = "calibration: %s: values rotated, which leaves %.0f %% of the squared error"
                log.info(text, channels.writer, 100 * after / unrotated)
                found.rotations[channels.writer], exponents = rotation, rotated_exponents
        if exponents.any():
            log.info("calibration: %s: channels scaled", channels.writer)
            found.exponents[channels.writer] = -exponents
    return found


def most_exponents(scheme: Scheme, weight: torch.Tensor) -> torch.Tensor | None:
    """The largest exponents [N] of readers. Rows of the writer [N, K] that are divided by these powers of two
    still have a largest scale of `SMALLEST_SCALE` or more. None if rows share a palette.
    """
    if isinstance(scheme, PaletteScheme):
        return None
    scales = weight.abs().amax(1) / 2 ** (scheme.bits - 1)
    found: torch.Tensor = (scales / SMALLEST_SCALE).clamp_min(1).log2().floor().clamp_max(LARGEST).long()
    return found


def _rotated(
    root: torch.nn.Module, values: _Values, readers: _Readers, rotation: torch.Tensor
) -> tuple[_Values, _Readers]:
    """Both with rotated channels."""
    writer, [reader], inputs = readers.channels.writer, readers.channels.readers, readers.inputs
    rotations = ValueRotations(root, {writer: rotation})
    of_reader = partial(rotations.of_columns, f"{reader}.weight")
    written = rotations(f"{writer}.weight", values.weight)
    return (
        replace(values, weight=written),
        replace(
            readers,
            most=most_exponents(values.scheme, written),
            weights=list(map(of_reader, readers.weights)),
            inputs=InputRows(of_reader(inputs.fit), of_reader(inputs.held_out)),
        ),
    )


def schemes_of(resolved: Resolved) -> Mapping[str, Scheme]:
    """Of all linears that are quantised, by path."""
    return {
        path: scheme
        for graph, recipe in resolved.recipes.items()
        for path in resolved.source.quantizable
        if is_below(path, resolved.graphs[graph].weights) and (scheme := recipe.scheme_for(path, False))
    }
