"""One graph whose recorded calls are replayed."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import nn

from voxport.bundle.spec import Kind
from voxport.export.calibration.record import CALLS, Call, join
from voxport.export.calibration.replay import (
    AwaitingInputs,
    Collector,
    PartCollector,
    QuantizingCollector,
    RepeatingCollector,
    SegmentAttention,
)
from voxport.export.resolve import Resolved
from voxport.model.checkpoint import Checkpoint, is_below, materialize
from voxport.model.layers.attention import attention_kernel

Rows = dict[str, torch.Tensor]
PREFILL, STEP = "prefill", "decode_step"  # components of every decoder; a step makes a frame or a token
LOSS_ROWS = 256  # of a graph's first input; the loss of a part is a mean over them


class GraphReplay:
    """The calls of one graph, joined."""

    def __init__(self, resolved: Resolved, name: str, calls: Sequence[tuple[str, Call]]):
        self.name, self._resolved = name, resolved
        self.reads = resolved.graphs[name].reads(resolved.source.config)
        components = [each for each in resolved.components("BSHD") if each.graph == name]
        self._specs = components[0].signature.outputs
        names = {component.name for component in components}
        own = [call for called, call in calls if called in names]
        frames = sum(called == STEP for called, _ in calls)
        self.calls_per_frame = sum(called in names - {PREFILL} for called, _ in calls) / max(1, frames)
        is_quantised = own and has_quantised_linears(resolved, name)
        most = CALLS // max(self.reads.values(), default=1)
        self._all = join(components, own, most) if is_quantised else None
        self._some = join(components, _first(own, LOSS_ROWS), most) if is_quantised else None
        self._model = resolved.model()
        if self._all and not any(state.window for state in components[0].signature.states):
            rows = sum(self._all.lengths)  # one behind the other, each with a position of its own
            self._model = replace(self._model, cache_length=max(self._model.cache_length, rows))
        self._outputs = list[torch.Tensor]()

    def in_floats(self) -> Rows:
        """The inputs of every linear that the recipe quantises, by path."""
        collector = Collector(self.weights_of(self._resolved.source.checkpoint))
        self.run(collector, self._resolved.source.checkpoint)
        return collector.rows_by_path()

    def quantized(self, checkpoint: Checkpoint) -> QuantizingCollector:
        """Each linear, quantised with its inputs if all linears before it are quantised."""
        weight_of = self.weights_of(checkpoint)
        if not self.reads:  # each linear is called once
            collector = QuantizingCollector(weight_of)
            self.run(collector, checkpoint)
            if collector.folded:
                collector = QuantizingCollector(weight_of, folded=collector.folded)
                self.run(collector, checkpoint)
            return collector
        repeating = RepeatingCollector(weight_of)
        self.run(repeating, checkpoint)
        while repeating.end_turn():
            self.run(repeating, checkpoint)
        return repeating

    def loss_of(self, part: frozenset[str], checkpoint: Checkpoint) -> float:
        """The mean squared relative error of some rows of the graph's output if the linears of `part` are
        quantised, and nothing else is; for the output that moves most.
        """
        collector = PartCollector(self.weights_of(checkpoint), part=part)
        if not self._outputs:
            plain = PartCollector(self.weights_of(checkpoint))
            self._outputs = self.run(plain, checkpoint, some_rows=True)
        outputs = self.run(collector, checkpoint, some_rows=True)
        return max(
            float(((found - expected).norm(dim=-1) / expected.norm(dim=-1)).square().mean())
            for found, expected in zip(outputs, self._outputs, strict=True)
        )

    def weights_of(self, checkpoint: Checkpoint) -> Callable[[str], torch.Tensor]:
        """Reads the weight at a path."""
        return weights_of(checkpoint, self._resolved.source.root())

    def run(
        self, collector: Collector, checkpoint: Checkpoint, some_rows: bool = False
    ) -> list[torch.Tensor]:
        """All calls in one, or the first ones, with the weights of `checkpoint`. Returns the outputs of
        floats.
        """
        joined = self._some if some_rows else self._all
        if joined is None:
            return []
        module = self._module(collector, checkpoint)
        collector.is_open = True
        with torch.no_grad(), attention_kernel(module, SegmentAttention(joined.lengths)):
            results = module(*joined.arguments)
            outputs = [results] if isinstance(results, torch.Tensor) else results[: len(self._specs)]
            if self._specs[0].kind is Kind.HIDDEN:
                # a head met the last row of all; in an export it meets the last one of each call
                last = outputs[0] if joined.last is None else outputs[0][:, joined.last]
                for part in module.modules():
                    if isinstance(part, AwaitingInputs) and collector.forget(part.parts):
                        part.meet(last)
        collector.is_open = False
        return [output for output in outputs if output.is_floating_point()]

    def _module(self, collector: Collector, checkpoint: Checkpoint) -> nn.Module:
        resolved, root = self._resolved, self._resolved.source.root()
        spec, recipe = resolved.graphs[self.name], resolved.recipes[self.name]

        def convert(path: str, module: nn.Module, weight: torch.Tensor) -> nn.Module | None:
            scheme = recipe.scheme_for(path, isinstance(module, nn.Embedding))
            if scheme is None or resolved.source.family.is_folded(path):
                return None
            if isinstance(module, nn.Embedding):
                return scheme.quantize(weight, path, True).module if collector.quantizes_tables else None
            return AwaitingInputs(collector, [path], weight.to("meta"), scheme)

        materialize(root, checkpoint, spec.weights, convert)
        return spec.build(root, self._model)


def has_quantised_linears(resolved: Resolved, name: str) -> bool:
    """Whether a replay of the graph can say something about its linears."""
    spec, recipe = resolved.graphs[name], resolved.recipes[name]
    return spec.joinable and any(
        isinstance(module, nn.Linear) and is_below(path, spec.weights) and recipe.scheme_for(path, False)
        for path, module in resolved.source.quantizable.items()
    )


def _first(calls: Sequence[Call], rows: int) -> list[Call]:
    """As many calls as have so many rows."""
    found = list[Call]()
    for call in calls:
        if rows <= 0:
            break
        inputs = next(iter(call.values()))
        rows -= inputs.numel() // inputs.shape[-1]
        found.append(call)
    return found


def weights_of(checkpoint: Checkpoint, root: nn.Module) -> Callable[[str], torch.Tensor]:
    """Reads the weight of the module at a path. A tied weight has the name of the first parameter."""
    names = {id(parameter): name for name, parameter in root.named_parameters()}
    ids = {path: id(module.weight) for path, module in root.named_modules() if isinstance(module, nn.Linear)}
    return lambda path: checkpoint.tensor(names[ids[path]])
