"""Parses the words of a command line, or the keys of a file, into options.

jsonargparse converts the values, argparse writes the help. This module decides which words are
options, so that it can report every error in one sentence.
"""

import argparse
import contextlib
import difflib
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, final

from jsonargparse import Namespace

from bass.api.elsewhere import named_elsewhere
from bass.api.values import WrongKindError, in_words, typed
from bass.cli.terminal import say
from bass.errors import OptionError, flag, hyphened
from bass.problems import Problems

ONE, MAYBE, MANY = "one", "maybe", "many"
_NOT_IN_A_FILE = ("help", "config")

SHOWN = 100  # characters of a value in a message
MOST_BITS = 332  # of a number: 100 digits


@final
@dataclass(frozen=True)
class Option:
    """One option of a command.

    type: annotation of the value, of one value if `repeated`; bool: a flag. words: the value is a
    list, of all words up to the next option. place: for a positional argument, how many values it
    may have.
    """

    name: str
    type: Any = str
    help: str = ""
    default: Any = None
    metavar: str | None = None
    short: str | None = None
    repeated: bool = False
    words: bool = False
    place: str | None = None

    @property
    def flag(self) -> bool:
        """Whether it has no value."""
        return self.type is bool

    @property
    def start(self) -> Any:
        """The value without a command line."""
        return [] if self.repeated or self.place == MANY else False if self.flag else self.default

    def value(self, given: Any) -> Any:
        """Convert a text, or a value of a file, to the type. Raises `WrongKindError`."""
        return typed(given, self.type)


class Parser:
    """The options of a command, in groups that the help shows."""

    def __init__(self, command: str, description: str) -> None:
        self.command = f"bass {command}"
        self.see = f"`{self.command} --help` lists the options."
        self._description = f"{description[0].upper()}{description[1:]}."
        self._groups: dict[str, list[Option]] = {"": []}
        self._shown: list[tuple[str, list[Option]]] = []

    def add(self, *options: Option, group: str = "") -> None:
        """Add options to parse."""
        self._groups.setdefault(group, []).extend(options)

    def show(self, title: str, options: Iterable[Option]) -> None:
        """Add options to the help that are parsed elsewhere."""
        self._shown.append((title, list(options)))

    @property
    def options(self) -> dict[str, Option]:
        """All parsed options, by name."""
        return {one.name: one for group in self._groups.values() for one in group}

    @property
    def defaults(self) -> dict[str, Any]:
        """The values without a command line."""
        return {name: option.start for name, option in self.options.items()}

    def parse(self, argv: Iterable[str], defaults: bool = True) -> Namespace:
        """Parse `argv`; without `defaults`, only given options. `--help` prints the help and exits.

        Raises an `OptionError` of one sentence.
        """
        options = self.options
        flags = {f"--{o.name}": o for o in options.values() if o.place is None}
        flags |= {o.short: o for o in options.values() if o.short}
        found: dict[str, Any] = {}
        loose: list[str] = []
        words = deque(argv)
        while words:
            word = words.popleft()
            if word == "--":
                loose += words
                words.clear()
            elif not is_option(word):
                loose.append(word)
            elif word in ("-h", "--help"):
                say(self.help())
                raise SystemExit(0)
            else:
                name, equals, text = word.partition("=")
                if name not in flags and word[:2] in flags:  # -n8
                    name, equals, text = word[:2], "=", word[2:]
                if name not in flags:
                    raise self.unknown(name)
                self._take(found, flags[name], hyphened(name), text if equals else None, words)
        self._place(found, loose)
        return Namespace(**(self.defaults if defaults else {}) | found)

    def read(self, given: Mapping[str, Any], where: str, problems: Problems) -> Namespace:
        """The options of a file by name; problems are recorded."""
        found: dict[str, Any] = {}
        for key, value in given.items():
            with problems.noted(where):
                option = self.options.get(key)
                if key in _NOT_IN_A_FILE:
                    raise OptionError(
                        f"`{key}` is not allowed in a file: give it on the command line."
                    )
                if option is None:
                    raise self.unknown(flag(key))
                if option.flag and not isinstance(value, bool):
                    raise OptionError(f"`{key}: {value}` is of the wrong type: give true or false.")
                if option.repeated or option.place == MANY:
                    several = value if isinstance(value, list) else [value]
                    found[key] = [self._typed(option, flag(key), one) for one in several]
                else:
                    found[key] = self._typed(option, flag(key), value)
        return Namespace(**found)

    def help(self) -> str:
        """The text of `--help`."""
        shown = argparse.ArgumentParser(prog=self.command, description=self._description)
        groups: dict[str, Any] = {"": shown}
        for title, options in [*self._groups.items(), *self._shown]:
            if title not in groups:
                groups[title] = shown.add_argument_group(title)
            for one in options:
                _describe(groups[title], one)
        return shown.format_help().rstrip("\n")

    def unknown(self, name: str) -> OptionError:
        """The error for an unknown option, with the nearest ones."""
        options = [o for o in self.options.values() if o.place is None]
        options += [o for _, shown in self._shown for o in shown]
        if (error := named_elsewhere(name, {o.name: o.help for o in options})) is not None:
            return error
        known = [flag(o.name) for o in options]
        name = hyphened(name)
        near = difflib.get_close_matches(name, known, n=2, cutoff=0.6)
        hint = f" Did you mean {' or '.join(f'`{n}`' for n in near)}?" if near else ""
        return OptionError(f"Unknown option `{name}`.{hint} {self.see}")

    def _take(
        self,
        found: dict[str, Any],
        option: Option,
        name: str,
        text: str | None,
        words: deque[str],
    ) -> None:
        """Parse one option; its value may be the next word, or all words up to the next option."""
        if option.flag:
            if text is not None:
                raise OptionError(f"`{name}` takes no value: leave `={text}` out; {self.see}")
            found[option.name] = True
            return
        text = words.popleft() if text is None and words else text
        if text is None or is_option(text):
            raise OptionError(f"`{name}` lacks its value; {self.see}")
        given: str | list[str] = text
        if option.words and not text.startswith("["):
            given = [text]
            while words and not is_option(words[0]):
                given.append(words.popleft())
        value = self._typed(option, name, given)
        found[option.name] = [*found.get(option.name, []), value] if option.repeated else value

    def _place(self, found: dict[str, Any], loose: list[str]) -> None:
        """Assign the words that are not options."""
        for option in self.options.values():
            if option.place == MANY and loose:
                found[option.name] = [self._typed(option, option.name, word) for word in loose]
                loose = []
            elif option.place in (ONE, MAYBE) and loose:
                found[option.name] = self._typed(option, option.name, loose[0])
                loose = loose[1:]
            elif option.place == ONE:
                raise OptionError(f"`{self.command}` needs a value for `{option.name}`; {self.see}")
        if loose:
            raise OptionError(
                f"Unexpected argument `{loose[0]}`: quote text that has spaces, and give a list as "
                f"one word, '[a, b]'; {self.see}"
            )

    def _typed(self, option: Option, name: str, value: Any) -> Any:
        try:
            found = option.value(value)
        except WrongKindError as wanted:
            shown = value if len(str(value)) <= SHOWN else f"{str(value)[:SHOWN]}..."
            raise OptionError(
                f"`{name} {shown}` is of the wrong type: give {wanted}; {self.see}"
            ) from wanted
        if any(isinstance(x, int) and x.bit_length() > MOST_BITS for x in _numbers(found)):
            raise OptionError(
                f"`{name}` has a number that is too large: give one of less than "
                f"{MOST_BITS} bits; {self.see}"
            )
        return found


def _numbers(value: Any) -> Iterable[Any]:
    return value if isinstance(value, list | tuple) else (value,)


def is_option(word: str) -> bool:
    """Whether a word of a command line is the name of an option, not a number or a text."""
    if not word.startswith("-") or word == "-" or " " in word:
        return False
    with contextlib.suppress(ValueError):
        float(word)
        return False
    return True


def taken(
    argv: Iterable[str], wanted: Callable[[str], bool], what: Callable[[str], str]
) -> tuple[list[tuple[str, str]], list[str]]:
    """Split off the options with the wanted names: (name, text) pairs, and the other words.

    what: for a name, the remedy if its text is missing.
    """
    found: list[tuple[str, str]] = []
    rest: list[str] = []
    words = iter(argv)
    for word in words:
        key, equals, text = word.removeprefix("--").partition("=")
        if word == "--":
            rest += [word, *words]
        elif not word.startswith("--") or not wanted(key):
            rest.append(word)
        else:
            text = text if equals else next(words, "--")
            if text.startswith("--") and not equals:
                raise OptionError(f"`{flag(key)}` lacks its value: {what(key)}.")
            found.append((key, text))
    return found, rest


def underscored(argv: list[str]) -> list[str]:
    """Option names with underscores for any spelling; `--` ends the options."""
    end = argv.index("--") if "--" in argv else len(argv)
    return [_underscored(word) if word.startswith("--") else word for word in argv[:end]] + argv[
        end:
    ]


def _underscored(word: str) -> str:
    name, equals, value = word.removeprefix("--").partition("=")
    return f"--{name.replace('-', '_')}{equals}{value}"


def _describe(group: Any, option: Option) -> None:
    """Add an option to the help."""
    shown = flag(option.name)
    if option.flag:
        group.add_argument(shown, action="store_true", help=option.help)
        return
    default = "" if option.default is None else f"default: {option.default}"
    kind = in_words(option.type) if option.type not in (str, str | None, Any) else ""
    more = "; ".join(filter(None, (kind, default)))
    text = " ".join(filter(None, (option.help, more and f"({more})"))).replace("%", "%%")
    if option.place is None:
        names = [*([option.short] if option.short else []), shown]
        metavar = option.metavar or option.name.rpartition(".")[2].upper()
        group.add_argument(*names, metavar=metavar, help=text)
    else:
        nargs = {ONE: None, MAYBE: "?", MANY: "*"}[option.place]
        group.add_argument(option.name, nargs=nargs, help=text)
