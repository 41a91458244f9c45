"""The options of `bass generate`, `bass eval` and `bass bench`: those of `load` and of a request,
and the parameters of the named strategies.
"""

from collections.abc import Callable, Container, Iterable
from dataclasses import Field, dataclass, fields, replace
from pathlib import Path
from typing import Any, final

from jsonargparse import Namespace

from bass.api.options import (
    LoadOptions,
    RequestOptions,
    TemplateOptions,
    for_one_prompt,
    help_of,
)
from bass.api.resolve import make
from bass.cli import choices
from bass.cli.parsing import MANY, Option, Parser, taken, underscored
from bass.cli.prompts import EXAMPLE_STOPS
from bass.experiments.config_files import read_mapping
from bass.problems import Problems
from bass.runs.settings import Settings

# sources of prompts: one on the command line replaces those of a file
SOURCES = ("prompt", "file", "token_ids", "example", "messages", "prompts")
_CONFIG = (
    "YAML file of options, named as here; a strategy is a name, or class_path with init_args; the "
    "command line overrides it"
)
_STRATEGIES = "strategies (`bass list` shows them)"
_STOP = r"strings before which a sample's text ends, with \n and \t as in Python; may be repeated"
_FILE = {"metavar": "FILE"}
# options that differ between the command line and Python
_OWN: dict[str, dict[str, Any]] = {
    "target": {"type": str | None},
    "draft": {"type": str | None},
    "lora": {"type": str | None},
    "draft_lora": {"type": str | None},
    "family": {"type": str | None, "metavar": "CLASS"},
    "policy": {"default": "bass", "help": help_of(Settings)["policy"]},
    "cache": {"type": str},
    "num_return_sequences": {"short": "-n"},
    "stop": {"type": str, "help": _STOP, "repeated": True, "default": None},
    "stop_token_ids": {"type": list[int], "metavar": "[ID,...]", "default": None},
    "tools": {"type": str, "help": "JSON file of the tools that the model may call", **_FILE},
    "documents": {"type": str, "help": "JSON file of documents that it may cite", **_FILE},
    "chat_template_kwargs": {"type": dict[str, Any], "metavar": "{NAME: VALUE}"},
    "methods": {"words": True, "metavar": "NAME ..."},
    "batches": {"words": True, "metavar": "N ..."},
    "categories": {"words": True, "metavar": "NAME ..."},
}


def of_field(field: Field[Any]) -> Option:
    """The command-line option of a field of the options."""
    hint = for_one_prompt(field.type)
    option = Option(field.name, hint, field.metadata["help"], field.default)
    return replace(option, **_OWN.get(field.name, {}))


_OF_PROMPTS = (
    Option(
        "prompt",
        help="text to continue, one or several; by default standard input",
        place=MANY,
    ),
    Option("file", help="continue the whole text of this file"),
    Option("token_ids", list[int], "continue these token ids", metavar="[ID,...]"),
    Option("example", bool, "continue a built-in Python class up to its end"),
    Option("chat", bool, "each prompt is a message to the model, put into its chat template"),
    Option(
        "messages",
        help="JSON file of a conversation, or of a list of them, for the chat template",
        metavar="FILE",
    ),
    Option(
        "prompts",
        help="prompts of a published set by its name, such as spec-bench, or of a file by its path",
        metavar="NAME",
    ),
    Option("data", help="with --prompts: the folder of published sets; default: BASS_DATA"),
    Option(
        "categories",
        list[str],
        "with --prompts: only prompts of these categories",
        metavar="NAME ...",
        words=True,
    ),
    Option("num_prompts", int | None, "with --prompts: only the first N", metavar="N"),
    Option("system", str, "with --chat: a system message before the prompt", metavar="TEXT"),
    *map(of_field, fields(TemplateOptions)),
    Option("json", bool, 'one JSON line per completion, then one with "type": "stats"'),
    Option(
        "compare_plain",
        bool,
        "alternate with autoregressive decoding, 3 runs each, and print the ratio",
    ),
)


@final
@dataclass(frozen=True)
class Named:
    """Strategies as the user named them.

    `words`: all names and parameters; `specs`: by option, the arguments of `make`.
    """

    words: list[Any]
    specs: dict[str, Any]


def read_options(
    parser: Parser,
    argv: list[str],
    own: Iterable[Option] = _OF_PROMPTS,
    examine: Callable[[Namespace, Problems], None] = lambda config, problems: None,
    request: type = RequestOptions,
    without: Container[str] = (),
) -> tuple[Namespace, dict[str, Any], dict[str, Any], Named]:
    """The command's own options, the arguments of `load`, those of the request, and the strategies
    as the user named them.

    own: the command's own, checked by `examine`. request: the dataclass of the request's options.
    without: options of `load` that the command sets itself.

    Raises an `OptionError` with all problems in files and with strategies.
    """
    problems = Problems()
    parser.add(*own, Option("config", help=_CONFIG, metavar="FILE"))
    names, argv = taken(argv, lambda key: key == "config", lambda key: "give a YAML file")
    files = [(name, *read_file(name)) for _, name in names]
    values, argv = choices.take_strategies(argv)
    for _, strategies, _ in reversed(files):
        values = choices.over(strategies, values)
    chosen = _declared(parser, values, request, without, problems)
    given, before = Namespace(), len(problems.sentences)
    with problems.noted():
        given = parser.parse(argv, defaults=False)
    config = layered(
        parser.defaults,
        [*(parser.read(options, name, problems) for name, _, options in files), given],
    )
    if len(problems.sentences) == before:  # the config has every given option
        examine(config, problems)
    load_with = {f.name: config[f.name] for f in fields(LoadOptions) if f.name in config}
    for option in sorted({key.partition(".")[0] for key in values} & chosen.keys()):
        nothing = chosen[option] in (None, "auto")
        with problems.noted():
            load_with[option] = (
                chosen[option] if nothing else make(choices.OPTIONS[option], chosen[option])
            )
    problems.raise_any("The command")
    request_with = {f.name: config[f.name] for f in fields(request)}
    if "stop" in request_with:
        stop = [unescape(text) for text in config.stop]
        request_with["stop"] = stop or (EXAMPLE_STOPS if config.get("example") else ())
    names = [name for spec in chosen.values() for name in choices.names_in(spec)]
    words = [*values.values(), *names, config.cache]
    return config, load_with, request_with, Named(words, chosen)


def _declared(
    parser: Parser,
    values: dict[str, Any],
    request: type,
    without: Container[str],
    problems: Problems,
) -> dict[str, Any]:
    """Add the options of `load` and of the request to the parser; returns the argument of `make`
    for each strategy.
    """
    shown = {f.name: of_field(f) for f in fields(LoadOptions) if f.name not in without}
    chosen: dict[str, Any] = {}
    for option in choices.OPTIONS:
        with problems.noted():
            chosen[option] = choices.chosen(option, shown[option].default, values)
    named = [replace(shown.pop(name), type=str) for name in (*choices.OPTIONS, "cache")]
    parser.add(*shown.values(), group="models and machine")
    parser.add(named[-1], group=_STRATEGIES)
    parser.show(_STRATEGIES, named[:-1])
    parser.add(*map(of_field, fields(request)), group="request")
    for option, spec in chosen.items():  # shown by `--help`
        if spec not in (None, "auto"):
            for title, parameters in choices.described(choices.OPTIONS[option], option, spec):
                parser.show(title, parameters)
    return chosen


def read_file(name: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """The strategies and the other options of a file, each by key."""
    form = "write options as `temperature: 0.8`, line by line"
    content = read_mapping(
        Path(name), name, "a YAML file to `--config`", form, f"are no options: {form}"
    )
    keys = {
        underscored([f"--{key}"])[0].removeprefix("--"): value for key, value in content.items()
    }
    ours = {key: value for key, value in keys.items() if choices.is_strategy(key)}
    return ours, {key: value for key, value in keys.items() if key not in ours}


def layered(defaults: dict[str, Any], layers: Iterable[Namespace]) -> Namespace:
    """The options of all layers; a later one overrides earlier ones."""
    config = dict(defaults)
    for layer in layers:
        given = vars(layer)
        if given.keys() & {*SOURCES}:
            config |= {name: defaults[name] for name in SOURCES if name in config}
        config |= given
    return Namespace(**config)


def unescape(text: str) -> str:
    """Replace `\\n`, `\\t` and `\\\\`, which a shell passes on unchanged, by their characters."""
    return text.replace("\\\\", "\0").replace("\\n", "\n").replace("\\t", "\t").replace("\0", "\\")
