"""`Json`: a JSON object whose content is not described by types."""

from typing import Any

Json = dict[str, Any]  # Any: JSON content
