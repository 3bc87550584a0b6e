"""The description of the server at /openapi.json."""

from fastapi import FastAPI

from voxport.bundle.json_types import Json
from voxport.runtime.serve.limits import Limits
from voxport.runtime.serve.models import Models
from voxport.runtime.serve.speech.encoders import ENCODERS

ERROR = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type", "param", "code"],
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "param": {"type": ["string", "null"]},
                "code": {"type": ["string", "null"]},
            },
        }
    },
}
ANY_ERROR = {
    "description": "An error",
    "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}},
}
VALIDATION = ("HTTPValidationError", "ValidationError")  # which this server does not send
PROBES = {"/healthz": "text/plain", "/readyz": "text/plain", "/metrics": "text/plain"}


def describe(app: FastAPI, models: Models, limits: Limits) -> None:
    """Completes what FastAPI derives: names of models, values that are taken, and the form of errors."""
    derived = app.openapi

    def complete() -> Json:
        if app.openapi_schema is None:
            document = derived()
            _complete_operations(document)
            _complete_values(document["paths"], models, limits)
            app.openapi_schema = document
        return app.openapi_schema

    app.openapi = complete  # type: ignore[method-assign]


def _complete_operations(document: Json) -> None:
    schemas = document.setdefault("components", {}).setdefault("schemas", {})
    for name in VALIDATION:
        schemas.pop(name, None)
    schemas["Error"] = ERROR
    for path, operations in document["paths"].items():
        for operation in operations.values():
            responses = operation["responses"]
            responses.pop("422", None)
            responses["default"] = ANY_ERROR
            if path in PROBES:
                responses["200"]["content"] = {PROBES[path]: {"schema": {"type": "string"}}}
            for content in operation.get("requestBody", {}).get("content", {}).values():
                schemas.update(content["schema"].pop("$defs", {}))


def _complete_values(paths: Json, models: Models, limits: Limits) -> None:
    speech = _properties(paths, "/v1/audio/speech", "application/json")
    speech["model"]["enum"] = list(models.speech_workers)
    speech["input"] |= {"minLength": 1, "maxLength": limits.text_characters}
    speech["response_format"]["enum"] = list(ENCODERS)
    speech["speed"]["enum"] = [1]
    for path, workers in (
        ("/v1/audio/transcriptions", models.transcription_workers),
        ("/v1/audio/voices", models.speech_workers),
    ):
        _properties(paths, path, "multipart/form-data")["model"]["enum"] = list(workers)
    (name,) = paths["/v1/models/{name}"]["get"]["parameters"]
    name["schema"]["enum"] = models.names


def _properties(paths: Json, path: str, media_type: str) -> Json:
    """The fields of the body of a POST."""
    schema = paths[path]["post"]["requestBody"]["content"][media_type]["schema"]
    return schema["properties"]  # type: ignore[no-any-return]
