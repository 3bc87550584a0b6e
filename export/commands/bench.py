"""Measure the speed of a bundle: time of each component and frame, and model bandwidth utilisation.

With --compare eager, the published weights in eager PyTorch in bfloat16 are measured as well.
"""

import argparse

from voxport.bundle.errors import UsageError
from voxport.bundle.manifest import Bundle, ExportRequest
from voxport.export.commands.request import add_checkpoint_argument, open_source_of
from voxport.runtime.commands import bench as bundle_bench


def add_arguments(parser: argparse.ArgumentParser) -> None:
    bundle_bench.add_arguments(parser)
    compare = "also measure eager PyTorch in bfloat16; needs the extra [export] (default: only the bundle)"
    parser.add_argument("--compare", choices=("eager",), help=compare)
    add_checkpoint_argument(parser, "with --compare: checkpoint the bundle was exported from")


def run(arguments: argparse.Namespace) -> int:
    if not arguments.compare:
        if arguments.checkpoint:
            raise UsageError("bench: --checkpoint needs --compare; give both or none")
        return bundle_bench.run(arguments)
    job = Bundle(arguments.bundle).job
    source = open_source_of(job, arguments)
    from voxport.export.bench import bench_eager
    from voxport.export.resolve import resolve

    result = bundle_bench.measure_bundle(arguments)
    result["eager"] = bench_eager(resolve(source, ExportRequest(options=job.options)), result)
    bundle_bench.print_result(result, arguments.json)
    return 0
