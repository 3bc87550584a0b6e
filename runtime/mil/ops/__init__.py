"""The table of operations, by the names of coremltools' op set.

Floats arrive as float32 whatever the program declares, integers and booleans as themselves, strings as `str`.
"""

from runtime.mil.ops import compressed, elementwise, indexing, pooling, products, reductions, shapes
from runtime.mil.ops.arguments import Operation, Signature

OPERATIONS: dict[str, Operation] = {
    name: function
    for module in (compressed, elementwise, indexing, pooling, products, reductions, shapes)
    for name, function in module.OPERATIONS.items()
}
SIGNATURES = {name: Signature(function) for name, function in OPERATIONS.items()}
