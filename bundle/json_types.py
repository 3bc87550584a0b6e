"""The type of JSON objects that a schema of pydantic does not describe."""

from typing import Any

Json = dict[str, Any]  # Any: JSON content
