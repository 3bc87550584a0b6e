"""Simplifies a graph that was just translated: constants are folded, and operators without effect removed."""

from typing import Any, cast

import onnx_ir as ir
import onnx_ir.passes.common as passes
from onnxscript.optimizer import fold_constants_ir
from onnxscript.rewriter import RewriteRule, RewriteRuleSet, rewrite
from onnxscript.rewriter.rules import common

ROUNDS = 2


class SlicesToSplit:
    """`common.slice_split_rule` for the nodes that it may match.

    Its pattern has two outputs, so its search reads the whole graph for every node that it is tried on. That
    is half of the time of lowering a graph of 6,000 nodes.
    """

    def __getattr__(self, name: str) -> Any:  # Any: every other attribute of a rule
        return getattr(common.slice_split_rule, name)

    def try_rewrite(self, model: ir.Model, graph: ir.Graph, node: ir.Node, **options: Any) -> Any:
        if node.op_type != "Slice":
            return None
        return common.slice_split_rule.try_rewrite(model, graph, node, **options)


# Those that match graphs of torch. With all 46 rules of the exporter the published code predictor of
# Qwen3-TTS takes twice as long to lower, and ONNX Runtime fuses the rest when it loads a graph.
RULES = RewriteRuleSet(
    [
        common.add_0_rule,
        common.cast_cast_rule,
        common.collapse_slice2_rule,
        common.collapse_slice_rule,
        common.div_by_1_rule,
        common.materialize_reshape_shape_rule,
        common.mul_by_1_rule,
        common.no_op_cast_rule,
        common.no_op_expand_rule,
        common.no_op_transpose_rule,
        common.reshape_reshape_rule,
        cast(RewriteRule, SlicesToSplit()),
        common.squeeze_reshape_1d_rule,
        common.sub_0_rule,
        common.transpose_transpose_rule,
        common.unsqueeze_unsqueeze_rule,
    ]
)


def simplify(model: ir.Model) -> None:
    """Changes `model` in place. Its functions become nodes of the graph."""
    passes.InlinePass()(model)
    for _ in range(ROUNDS):
        fold_constants_ir(model)
        rewrite(model, RULES)
    for part in (
        passes.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0),
        passes.DeduplicateInitializersPass(),
        passes.CommonSubexpressionEliminationPass(),
        passes.OutputFixPass(),
        passes.NameFixPass(),
    ):
        part(model)
