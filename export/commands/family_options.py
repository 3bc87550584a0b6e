"""Options of the model families on the command line. Families may have options of the same name."""

import argparse
from collections.abc import Mapping
from typing import Any, get_args

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from bundle.errors import UsageError
from model.families import FAMILIES, options_of

OptionModels = Mapping[str, type[BaseModel]]  # by family


def option_models() -> dict[str, type[BaseModel]]:
    """The option model of each family. Imports no torch."""
    return {family: options_of(family) for family in FAMILIES}


def add_family_options(parser: argparse.ArgumentParser, models: OptionModels) -> None:
    """One argument per option name. An option that is not given is None."""
    group = parser.add_argument_group("options of a model family")
    for name, fields in _fields_by_name(models).items():
        flag = f"--{name.replace('_', '-')}"
        help_text = "; ".join(f"{_title(family)}: {_help(field)}" for family, field in fields.items())
        if all(field.annotation is bool for field in fields.values()):
            group.add_argument(flag, action="store_const", const=True, help=help_text)
        else:
            takes_no_value = any(field.annotation is bool for field in fields.values())
            optional: dict[str, Any] = {"nargs": "?", "const": "true"} if takes_no_value else {}
            group.add_argument(flag, metavar="VALUE", help=help_text, **optional)


def given_options(arguments: argparse.Namespace, family: str, models: OptionModels) -> dict[str, Any]:
    """The options that were given, by name. Raises UsageError if the family has no such option."""
    given = {}
    for name, fields in _fields_by_name(models).items():
        if (value := getattr(arguments, name)) is None:
            continue
        if family not in fields:
            owners = ", ".join(map(_title, fields))
            raise UsageError(
                f"{name}: an option of {owners}; this checkpoint is {_title(family)}", field=name
            )
        given[name] = value
    return given


def _fields_by_name(models: OptionModels) -> dict[str, dict[str, FieldInfo]]:
    """Option name -> family -> field."""
    names: dict[str, dict[str, FieldInfo]] = {}
    for family, model in models.items():
        for name, field in model.model_fields.items():
            names.setdefault(name, {})[family] = field
    return names


def _title(family: str) -> str:
    return FAMILIES[family].title if family in FAMILIES else family


def _help(field: FieldInfo) -> str:
    if field.annotation is bool:
        return str(field.description)
    choices = ", ".join(map(str, get_args(field.annotation)))
    values = f", one of {choices}" if choices else ""
    return f"{field.description}{values} (default: {field.default})".replace("%", "%%")
