"""The results of a benchmark as text."""

from runtime.families import open_family
from runtime.families.base import Figures


def bench_text(result: Figures) -> str:
    """Tables of the result of `runtime.bench.bench`, and of eager where it was timed too."""
    if "eager" not in result:
        return _table(result)
    ratio = result["frame"]["median_ms"] / result["eager"]["frame"]["median_ms"]
    return "\n\n".join(
        (_table(result), _table(result["eager"]), f"the bundle takes {ratio:.0%} of eager's time")
    )


def _table(result: Figures) -> str:
    bundle, machine, frame = result["bundle"], result["machine"], result["frame"]
    first, *batches = open_family(bundle["family"]).bench.lines(result)
    lines = [
        f"{bundle['name']} for {bundle['target']}, {bundle['recipe']}, {size_text(bundle['bytes'])}; "
        f"{machine['processor']}, {machine['threads']} threads, {result['bandwidth_gb_s']:.0f} GB/s",
        f"{'component':<16} {'calls':>6} {'median':>10} {'90 %':>10} {'weights':>10} {'rate':>10}",
        *(_component_line(name, row) for name, row in result["components"].items()),
        *batches,
        f"frame {frame['median_ms']:.1f} ms (90 %: {frame['p90_ms']:.1f}), "
        f"outside the graphs {frame['outside_ms']:.2f} ms, RTF {result['rtf']:.2f}",
        f"model bandwidth utilisation (MBU) {frame['mbu']:.0%}: "
        f"{size_text(frame['weight_bytes'])} of weights take {frame['read_ms']:.1f} ms to read",
        f"{first}; loaded in {result['load_s']:.1f} s{_resident_text(result['resident_over_time'])}",
    ]
    return "\n".join(lines)


def _component_line(name: str, row: Figures) -> str:
    rate = f"{row['gb_s']:.1f} GB/s" if row["weight_bytes"] else "-"
    return (
        f"{name:<16} {row['calls']:>6} {row['median_ms']:>7.2f} ms {row['p90_ms']:>7.2f} ms "
        f"{row['weight_bytes'] / 1e6:>7.0f} MB {rate:>10}"
    )


def _resident_text(sizes: list[int | None]) -> str:
    texts = [size_text(size) for size in sizes if size is not None]
    return f", resident {texts[0]} before the first timed frame, {texts[-1]} after the last" if texts else ""


def size_text(size: int) -> str:
    """Bytes in GB or MB."""
    return f"{size / 1e9:.2f} GB" if size >= 1e9 else f"{size / 1e6:.1f} MB"
