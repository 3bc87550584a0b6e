"""Table of the operations, by their names in the op set of coremltools.

An operation receives floats as float32 whatever type the program declares, integers and booleans in their own
type, and strings as `str`.
"""

from runtime.mil.ops import compressed, elementwise, indexing, pooling, products, reductions, shapes
from runtime.mil.ops.arguments import Operation, Signature

OPERATIONS: dict[str, Operation] = {
    name: function
    for module in (compressed, elementwise, indexing, pooling, products, reductions, shapes)
    for name, function in module.OPERATIONS.items()
}
SIGNATURES = {name: Signature(function) for name, function in OPERATIONS.items()}
