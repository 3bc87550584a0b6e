"""The bundle format, which export writes and the runtime reads.

This package imports no other package of voxport and no torch. Every other package imports it first, so it
turns off what dependencies send on their own: they read these variables when they are imported.
"""

import os

os.environ |= {
    "ORT_DISABLE_TELEMETRY": "1",  # ONNX Runtime, whose wheels have it on
    "HF_HUB_DISABLE_TELEMETRY": "1",  # huggingface_hub
    "RAY_USAGE_STATS_ENABLED": "0",  # Ray
}
