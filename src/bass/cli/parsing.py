"""From arguments to a namespace, and from jsonargparse's complaints to one sentence."""

import difflib
import re
import sys
from argparse import ArgumentError
from collections.abc import Mapping
from typing import Any

from jsonargparse import ArgumentParser, Namespace

from bass.cli.terminal import say
from bass.errors import OptionError

# what jsonargparse makes of `--k.part 3` where `--k` may have no parts
_PART = r"NestedArg\(key='(.+?)'"


class Parser(ArgumentParser):
    """Prints its help, in which texts of a user's own class may stand, as all else is printed."""

    def _print_message(self, message: str, file: Any = None) -> None:
        say(message.rstrip("\n"), stderr=file is sys.stderr)


def new_parser(command: str, description: str) -> ArgumentParser:
    """An empty parser for `bass command`, which raises instead of exiting."""
    text = f"{description[0].upper()}{description[1:]}."
    return Parser(prog=f"bass {command}", description=text, exit_on_error=False, allow_abbrev=False)


def parse(parser: ArgumentParser, argv: list[str], defaults: bool = True) -> Namespace:
    """The options in `argv`, without `defaults` no others; a complaint of the parser's becomes an
    `OptionError` of one sentence.
    """
    try:
        config = parser.parse_args(argv, defaults=defaults)
        said = {key: repr(value) for key, value in config.items()}
    except ArgumentError as error:
        raise OptionError(sentence(str(error), parser)) from error
    except (ValueError, OverflowError) as error:  # an integer that Python cannot print or convert
        raise OptionError(f"An option has a number that is too large ({error}).") from error
    for key, value in said.items():
        if found := re.match(_PART, value):
            raise OptionError(unknown_option(f"--{key}.{found[1]}", parser))
    return config


def underscored(argv: list[str]) -> list[str]:
    """Option names with underscores, whichever way they were written; `--` ends the options."""
    end = argv.index("--") if "--" in argv else len(argv)
    return [_underscored(word) if word.startswith("--") else word for word in argv[:end]] + argv[
        end:
    ]


def _underscored(word: str) -> str:
    name, equals, value = word.removeprefix("--").partition("=")
    return f"--{name.replace('-', '_')}{equals}{value}"


def sentence(message: str, parser: ArgumentParser) -> str:
    """What was given, what is true, and where to look."""
    see = f"`{parser.prog} --help` lists the options."
    if found := re.match(r"unrecognized arguments: (\S+)", message):
        word = found[1]
        if not word.startswith("-"):
            return f"Unexpected argument `{word}`: quote a prompt that has spaces; {see}"
        return unknown_option(word.partition("=")[0], parser)
    if found := re.match(r'Parser key "(.+?)":', message):
        if part := re.search(_PART, message):
            return unknown_option(f"--{found[1]}.{part[1]}", parser)
        given = re.findall(r"(?:Got value|Given value): (.*)", message)
        value = f" {given[-1]}" if given else ""
        return f"`{_flag(found[1])}{value}` is not of the right kind: give {_kind(message)}; {see}"
    if found := re.match(r"the following arguments are required: (.+)", message):
        return (
            f"`{parser.prog}` needs a value for "
            f"`{_flag(found[1]) if '.' in found[1] else found[1]}`; {see}"
        )
    if found := re.match(r"[Aa]rgument (\S+): expected (.+)", message):
        return f"`{found[1]}` lacks its value; {see}"
    return f"{message.strip().rstrip('.')}; {see}"


def unknown_option(name: str, parser: ArgumentParser) -> str:
    """That there is no such option, with the nearest ones."""
    near = difflib.get_close_matches(name, _options(parser), n=2, cutoff=0.6)
    hint = f" Did you mean {' or '.join(f'`{n}`' for n in near)}?" if near else ""
    return f"Unknown option `{name}`.{hint} `{parser.prog} --help` lists the options."


def _options(parser: ArgumentParser) -> list[str]:
    return [option for action in parser._actions for option in action.option_strings]


def _flag(key: str) -> str:
    return key if key.isupper() else f"--{key}"


def _kind(message: str) -> str:
    """The types that jsonargparse expected, in plain words."""
    words = {
        "int": "an integer",
        "float": "a number",
        "str": "a text",
        "bool": "true or false",
        "list": "a list such as [1, 2]",
    }
    if found := re.search(r"Literal\[(.+?)\]", message):
        return f"one of {found[1]}"
    names = re.findall(r"Expected a <class '(?:\w+\.)*(\w+)'>", message)
    kinds = list(
        dict.fromkeys(words.get(n, f"a {n}") for n in names if n not in ("NoneType", "Sequence"))
    )
    return " or ".join(kinds) or "another value"


def describe(parser: ArgumentParser, texts: Mapping[str, str]) -> None:
    """Give the options that were made from signatures their help texts, in argparse's own
    structures.
    """
    for action in parser._actions:
        action.help = texts.get(action.dest, action.help)
        action.metavar = "NAME" if action.metavar == "CONFIG" else action.metavar
        action.required = action.required and bool(action.option_strings)
