"""What the commands share: a parser of the option dataclasses, and consoles.

jsonargparse converts and checks the values. A strategy is a name or an import path here, and its
parameters have a dot: `--policy lagged --policy.policy fixed --policy.policy.k 3`.
"""

import argparse
import dataclasses
import re
import sys
import textwrap
import typing
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any, TypeVar

import yaml
from jsonargparse import ArgumentParser, Namespace
from rich.console import Console

from bass.api.options import counterpart_error, overlaid, typed, wrong_type
from bass.errors import OptionError, flag, hyphened, nearest
from bass.files import reason
from bass.option import for_one_prompt

WIDTH, LEFT = 100, 31  # columns of a help, and of the names of options in it
_TITLES = {"LoadOptions": "models and machine", "TemplateOptions": "prompt"}
_STRATEGIES = "strategies (their parameters: `bass list NAME`, given as --policy.k 3)"
_FILE = {"type": str, "metavar": "FILE"}
# arguments of `add_argument`, for options that differ between the command line and Python
_ARGUMENTS: dict[str, dict[str, Any]] = {
    "family": {"type": str | None},
    "stop": {"type": str, "action": "append", "help": r"text ends before it (\n)"},
    "stop_token_ids": {"type": list[int], "metavar": "[ID,...]"},
    "token_ids": {"type": list[int], "metavar": "[ID,...]"},
    "tools": _FILE | {"help": "JSON file of tools that the model may call"},
    "documents": _FILE | {"help": "JSON file of documents that it may cite"},
    "chat_template_kwargs": {"type": dict[str, Any]},
}
_SHORT = {"num_return_sequences": "-n"}
# The help has their names alone, to fit a screen; docs/reference/options.md describes them.
_SELDOM = {
    *("draft_lora", "family", "draft_quantization", "load_format", "lora", "data", "categories"),
    *("min_new_tokens", "stop_token_ids", "ignore_eos", "presence_penalty", "frequency_penalty"),
    *("template", "documents", "add_generation_prompt", "continue_final_message", "tools"),
    *("chat_template_kwargs", "enable_thinking", "time_budget", "system"),
}
_METAVARS = {int: "N", float: "X", bool: "BOOL"}
T = TypeVar("T")


class _Help(argparse.RawDescriptionHelpFormatter):
    """Shows all names of an option before its value."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=LEFT, width=WIDTH)

    def _format_action_invocation(self, action: argparse.Action) -> str:
        names = [one for one in action.option_strings if one[-1] != "+"]  # of jsonargparse
        if not names or action.nargs == 0:
            return super()._format_action_invocation(action)
        return f"{', '.join(names)} {action.metavar or action.dest.upper()}"


class Parser(ArgumentParser):
    """The parser of a command: of jsonargparse, with parameters of strategies, suggestions for
    unknown names, and a short help. Its `add_argument` takes further options.

    command: its name, and its arguments for the usage. about: a sentence. examples: three, each a
    whole command line. options, skip: see `add_options`; without "config" in `skip`, there is
    `--config FILE.yaml`. alternatives: options of which one on the command line replaces all in a
    file. own: whether `split` takes an option out, by its name. helps: the whole help of options,
    also of such ones.
    """

    def __init__(
        self,
        command: str,
        about: str,
        examples: Sequence[str],
        *options: type,
        skip: Collection[str] = (),
    ) -> None:
        super().__init__(
            prog=f"bass {command.partition(' ')[0]}",
            usage=f"bass {command} [options]",
            description="\n  ".join([f"{about}\n\nexamples:", *examples]),
            formatter_class=_Help,
            exit_on_error=False,
            print_config=None,
            allow_abbrev=False,
        )
        self.strategies: dict[str, str] = {}  # kind of each option that names one
        self.hints: dict[str, Any] = {}  # types of the other options
        self.alternatives: Collection[str] = ()
        self.own: Callable[[str], bool] = self._is_parameter
        self.helps: dict[str, str] = {}
        for one in options:
            self.add_options(one, skip)
        if "config" not in skip:
            text = "YAML file of these options, which the command line overrides"
            self.add_argument("--config", action="append", type=str, metavar="FILE", help=text)

    def add_options(self, options: type, skip: Collection[str] = ()) -> None:
        """Add an option for each field of a dataclass that is not in `skip`, `prompt` as word."""
        hints = typing.get_type_hints(options)
        own_title = _TITLES.get(options.__name__, options.__name__.removesuffix("Options").lower())
        for field in (field for field in dataclasses.fields(options) if field.name not in skip):
            name, kind, own = field.name, field.metadata["kind"], _ARGUMENTS.get(field.name, {})
            hint = own.get("type", for_one_prompt(hints[name]))
            listed = [x for x in (hint, *typing.get_args(hint)) if typing.get_origin(x) is list]
            first, *_ = typing.get_args(hint) or (hint,)
            metavar = _METAVARS.get(first, name.rpartition("_")[2].upper())
            self.hints[name], more = hint, {"type": hint, "metavar": metavar}
            if kind is not None:
                self.strategies[name] = kind
                more = {"type": Any, "metavar": "NAME"}
            elif hint is bool and not field.default:
                more = {"action": "store_true"}
            elif listed and not own:
                self.hints[name] = listed[0]
                several = "*" if name == "prompt" else "+"
                more |= {"type": typing.get_args(listed[0])[0], "nargs": several}
            self.helps[name] = own.get("help", field.metadata["help"])
            more |= {"default": field.default} | own | {"help": self._short(field)}
            title = _STRATEGIES if kind and "quantization" not in name else own_title
            found = [group for group in self._action_groups if group.title == title]
            group: Any = found[0] if found else self.add_argument_group(title)
            if name in _SELDOM:
                also = f"{self.epilog or 'also'} {flag(name)}"
                self.epilog = textwrap.fill(also, WIDTH, break_on_hyphens=False)
            names = [name] if name == "prompt" else [_SHORT.get(name), flag(name)]
            group.add_argument(*filter(None, names), **more)

    def _short(self, field: dataclasses.Field[Any]) -> str:
        """The first clause of the help of an option, and its default, in a line."""
        if field.name in _SELDOM:
            return argparse.SUPPRESS
        unsaid, text = field.default in (None, False, (), ""), self.helps[field.name]
        end = "" if unsaid else f" (default {field.default})"
        clause, width = re.split("[;:] ", text)[0], WIDTH - LEFT - len(end)
        return textwrap.shorten(clause, width, placeholder=" ...") + end

    def read(self, argv: Sequence[str]) -> Namespace:
        """The options of the command line, over those of the files of `--config`, over the
        defaults; a strategy is the argument of `bass.api.resolve.make`. `--help` ends the process.

        Raises `OptionError`.
        """
        dotted, words = self.split(argv)
        given = self._parsed(words)
        layers = [self._of_file(name) for name in given.pop("config", [])]
        replaced = {*self.alternatives} if given.keys() & {*self.alternatives} else set()
        layers = [{k: v for k, v in layer.items() if k not in replaced} for layer in layers]
        config = {name: action.default for name, action in self._known().items()}
        for layer in (*layers, given | dotted):
            config = overlaid(config, layer)
        return Namespace(**config)

    def split(self, argv: Sequence[str]) -> tuple[dict[str, Any], list[str]]:
        """The options that are `own`, with their values as YAML; and the other words, with hyphens
        in the names of options. Raises `OptionError`.
        """
        found, rest, words = dict[str, Any](), list[str](), iter(argv)
        for word in words:
            name, equals, text = word.partition("=")
            if word == "--":
                rest += [word, *words]
            elif name.startswith("--") and self.own(_key(name)):
                try:
                    value = yaml.safe_load(text if equals else next(words))
                    is_stop = _key(name).rpartition(".")[2] == "stop"
                    found[_key(name)] = _unescaped(value) if is_stop else value
                except (StopIteration, yaml.YAMLError) as error:
                    sentence = f"`{name}` needs a value, such as 4 or '[1, 2]' {error}."
                    raise OptionError(sentence) from error
            elif name in self._option_string_actions or not re.fullmatch(
                r"--\w[\w.-]*|-[a-zA-Z]", name
            ):
                rest.append(word)
            elif hyphened(name) in self._option_string_actions:
                rest.append(hyphened(name) + equals + text)
            else:
                raise self._unknown(name)
        return found, rest

    def _known(self) -> dict[str, argparse.Action]:
        """What a file may have."""
        actions = [a for a in self._actions if a.default != argparse.SUPPRESS]
        return {action.dest: action for action in actions if action.dest != "config"}

    def _is_parameter(self, key: str) -> bool:
        return "." in key and key.partition(".")[0] in self.strategies

    def _unknown(self, name: str) -> OptionError:
        if name.strip("-") in [a.dest for a in self._actions if not a.option_strings]:
            return OptionError(f"`{name}` is no option: give `{self.prog} VALUE` without it.")
        options = {a.dest: str(a.help) for a in self._actions if a.option_strings} | self.helps
        hint = nearest(name, map(flag, options))
        return counterpart_error(name, options) or OptionError(
            f"Unknown option `{hyphened(name)}`.{hint} `{self.prog} --help` lists the options."
        )

    def _parsed(self, words: Sequence[str]) -> dict[str, Any]:
        """The given options alone."""
        try:
            given = vars(self.parse_args(words, defaults=False))
        except argparse.ArgumentError as error:
            message = " ".join(str(error).split())
            if found := re.match(r'Parser key "(\w+)".* value: (.*)', message):
                key, value = found.groups()
                raise wrong_type(f"{flag(key)} {value}", error) from error
            raise OptionError(f"{message.rstrip('.')}.") from error
        given["stop"] = _unescaped(given.get("stop", []))
        return {name: value for name, value in given.items() if value != []}

    def _of_file(self, name: str) -> dict[str, Any]:
        """The options of a YAML file; a parameter of a strategy has a dot in its name."""
        try:
            content = yaml.safe_load(Path(name).read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
            raise OptionError(f"`--config {name}` cannot be read ({reason(error)}).") from error
        if not isinstance(content, dict):
            raise OptionError(f"`--config {name}` has no options: write `temperature: 0.8`.")
        found: dict[str, Any] = {}
        for key, value in ((_key(str(key)), value) for key, value in content.items()):
            if key in self.strategies or self._is_parameter(key):
                found[key] = value
            elif key in self._known():
                hint = list[str] if key == "stop" else self.hints.get(key, Any)
                alone = typing.get_origin(hint) is list and not isinstance(value, list)
                given = [value] if alone else value  # one of a list may stand alone
                found[key] = typed(f"{key}: {value!r:.60}", given, hint)
            else:
                raise self._unknown(flag(key))
        return found


def build(options: type[T], config: Namespace, **others: Any) -> T:
    """The dataclass with the parsed options; `others` replace them."""
    names = [f.name for f in dataclasses.fields(options)]  # pyright: ignore[reportArgumentType]
    return options(**{name: config[name] for name in names if name in config} | others)


def console(stderr: bool = False) -> Console:
    """A console of rich for plain sentences, of any length; tables need `soft_wrap=False`. It has
    200 columns where it is no terminal, so that no row of a table is wrapped.
    """
    width = None if (sys.stderr if stderr else sys.stdout).isatty() else 200
    plainly: dict[str, Any] = {"markup": False, "emoji": False, "highlight": False}
    return Console(stderr=stderr, width=width, soft_wrap=True, **plainly)


def write(option: str, path: str | Path, text: str) -> None:
    """Write the file of an option. Raises `OptionError`."""
    try:
        Path(path).write_text(text, encoding="utf-8")
    except OSError as error:
        wrong = f"`{flag(option)} {path}` cannot be written ({error.strerror})"
        raise OptionError(f"{wrong}: give a file in a folder that exists.") from error


def _key(name: str) -> str:
    """The name of an option in Python; an axis of an ablation may have any."""
    name = name.removeprefix("--")
    return name if name.startswith("axes.") else name.replace("-", "_")


def _unescaped(stop: Any) -> Any:
    r"""Stop strings with `\n`, `\t` and `\\`, which a shell passes on unchanged, replaced."""
    if not isinstance(stop, str):
        return [*map(_unescaped, stop)] if isinstance(stop, list) else stop
    return stop.replace("\\\\", "\0").replace("\\n", "\n").replace("\\t", "\t").replace("\0", "\\")
