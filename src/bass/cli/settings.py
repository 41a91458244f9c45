"""`--config FILE.yaml`: options in a file, each a key named as on the command line, which overrides
them.
"""

import argparse
from pathlib import Path
from typing import Any

import yaml
from jsonargparse import ArgumentParser, Namespace

from bass.cli.choices import is_strategy, text
from bass.cli.parsing import parse, underscored
from bass.errors import OptionError
from bass.experiments.problems import Problems
from bass.files import read_text
from bass.plain_yaml import LARGEST_YAML, read_yaml

_NOT_IN_A_FILE = ("help", "config")


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


def parse_file(
    parser: ArgumentParser, name: str, said: dict[str, Any], problems: Problems
) -> Namespace:
    """The options that a file gives; notes the complaints that the command line would get, all of
    them.
    """
    try:
        return parse(parser, _as_arguments(parser, said), defaults=False)
    except OptionError as whole:
        before = len(problems.told)
        for key, value in said.items():
            with problems.noted(name):
                parse(parser, _as_arguments(parser, {key: value}), defaults=False)
        if len(problems.told) == before:  # each is right, and together they are not
            problems.add(f"In `{name}`: {whole}")
        return Namespace()


def _as_arguments(parser: ArgumentParser, said: dict[str, Any]) -> list[str]:
    actions = {action.dest: action for action in parser._actions}
    arguments: list[str] = []
    ending: list[str] = []
    for key, value in said.items():
        action = actions.get(key)
        several = value if isinstance(value, list) else [value]
        if key in _NOT_IN_A_FILE:
            raise OptionError(f"`{key}` has no place in a file: give it on the command line.")
        if action is not None and action.nargs == 0:
            if not isinstance(value, bool):
                raise OptionError(
                    f"`{key}: {text(value)}` is not of the right kind: give true or false."
                )
            arguments += [f"--{key}"] if value else []
        elif action is not None and not action.option_strings:
            ending += ["--", *map(text, several)]
        elif isinstance(action, argparse._AppendAction):
            arguments += [f"--{key}={text(one)}" for one in several]
        else:
            arguments.append(f"--{key}={text(value)}")
    return arguments + ending
