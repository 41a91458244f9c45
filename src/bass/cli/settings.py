"""`--config FILE.yaml`: options in a file, each a key named as on the command line, which overrides
them.
"""

from pathlib import Path
from typing import Any

import yaml

from bass.cli.choices import is_strategy
from bass.cli.parsing import underscored
from bass.errors import OptionError
from bass.files import read_text
from bass.plain_yaml import LARGEST_YAML, read_yaml


def take_files(argv: list[str]) -> tuple[list[str], list[str]]:
    """The files that `--config` names, and the other arguments."""
    files: list[str] = []
    rest: list[str] = []
    words = iter(argv)
    for word in words:
        name, equals, value = word.partition("=")
        if word == "--":
            rest += [word, *words]
        elif name != "--config":
            rest.append(word)
        else:
            files.append(value if equals else next(words, "--"))
            if files[-1].startswith("--"):
                raise OptionError("`--config` lacks its value: give a YAML file.")
    return files, rest


def read_file(name: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """What a file says of strategies, and of other options, by key."""
    try:
        said = read_yaml(read_text(Path(name), LARGEST_YAML))
    except (OSError, ValueError) as error:  # no such file, no text
        reason = error.strerror if isinstance(error, OSError) else error
        raise OptionError(
            f"`{name}` cannot be read ({reason}): give a YAML file to `--config`."
        ) from error
    except yaml.YAMLError as error:
        raise OptionError(
            f"`{name}` is not YAML ({error}): write options as `temperature: 0.8`, line by line."
        ) from error
    if not isinstance(said, dict):
        raise OptionError(
            f"`{name}` holds {said!r}, which are no options: write them as `temperature: 0.8`, "
            "line by line."
        )
    keys = {underscored([f"--{key}"])[0].removeprefix("--"): value for key, value in said.items()}
    return (
        {k: v for k, v in keys.items() if is_strategy(k)},
        {k: v for k, v in keys.items() if not is_strategy(k)},
    )
