"""Configs: frozen, keyword-only, checked where they are made, equal as YAML and as flags, hashed into the plan."""

from pathlib import Path
from typing import Any

import xxhash
from pydantic import BaseModel, ConfigDict, ValidationError

from taojin.core.errors import ConfigError


class Config(BaseModel):
    """Base of every stage's config. Unknown keys are errors; field docstrings are the flags' help texts."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    def __init__(self, **values: Any) -> None:
        """Raises ConfigError with one clause per wrong field."""
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise ConfigError(explain(error)) from None


def explain(error: ValidationError) -> str:
    lines = []
    for problem in error.errors():
        name = "--" + "-".join(str(part) for part in problem["loc"]).replace("_", "-") if problem["loc"] else "config"
        found = "" if problem["type"] in ("missing", "value_error") else f", found {problem['input']!r}"
        message = problem["msg"].removeprefix("Value error, ")
        lines.append(f"{name}: {message[0].lower() + message[1:]}{found}")
    return "; ".join(lines)


def load_yaml(path: str) -> dict[str, Any]:
    """Read a config file: a mapping with the flags' names (underscores or hyphens). Raises ConfigError."""
    import yaml

    try:
        values = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"--config {path}: {error.strerror}") from None
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
        raise ConfigError(f"--config {path}: not YAML: {' '.join(str(error).split())}") from None
    if not isinstance(values, dict):
        raise ConfigError(f"--config {path}: expected a mapping of flag names to values, found {type(values).__name__}")
    return {str(key).replace("-", "_"): value for key, value in values.items()}


def fingerprint(value: Any) -> str:
    """16 hex digits that name a JSON-like value, whatever the order of its keys."""
    import orjson

    return xxhash.xxh3_64_hexdigest(orjson.dumps(value, option=orjson.OPT_SORT_KEYS))
