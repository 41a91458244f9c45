"""The options of `bass generate` and `bass eval`, made from the signatures of `load`, `LLM.stream`
and the strategies' own classes.
"""

from collections.abc import Callable, Iterable
from inspect import signature
from typing import Any, Literal

from jsonargparse import ArgumentParser, Namespace

from bass.api.llm import LLM, load
from bass.api.registry import REGISTRIES, make
from bass.cli import choices
from bass.cli.parsing import describe, parse
from bass.cli.prompts import EXAMPLE_STOPS
from bass.cli.settings import parse_file, read_file, take_files
from bass.experiments.problems import Problems

# of prompts: one given on the command line replaces a file's
SOURCES = ("prompt", "file", "token_ids", "example")
_CONFIG = (
    "YAML file of options, named as here; a strategy is a name, or class_path with init_args; the "
    "command line overrides it"
)
_GRAPHS = {"auto": "auto", "true": True, "false": False}
_STOP = r"text before which a sample ends, with \n and \t as in Python; may be repeated"
HELP = {
    "target": (
        "checkpoint of the target, a folder or a hub id (org/name[@revision]); without --target "
        "and --draft, the embedded pair"
    ),
    "draft": "checkpoint of the draft, a folder or a hub id",
    **choices.HELP,
    "device": "auto (a GPU where there is one), cpu, cuda, cuda:1 ...",
    "dtype": "auto, float32, bfloat16 or float16",
    "cuda_graphs": "whether steps run as CUDA graphs; auto: where the parts allow it",
    "max_batch_size": "rows that decode together; further samples wait for a free row",
    "num_speculative_tokens": "short for the fixed policy; 0 is plain decoding and loads no draft",
    "max_new_tokens": "at most so many tokens per sample",
    "temperature": "0 is greedy",
    "top_p": "keep the most probable tokens up to this sum; 1 = off",
    "top_k": "keep so many of the most probable tokens; 0 = off",
    "min_p": "drop tokens less probable than this share of the best one's; 0 = off",
    "repetition_penalty": "divides the logits of tokens that occurred before; 1 = off",
    "seed": "the same seed gives the same tokens again",
    "time_budget": "seconds after which unfinished samples are returned as they are",
}


def add_sources(parser: ArgumentParser) -> None:
    """The options of `bass generate` alone."""
    parser.add_argument(
        "prompt",
        nargs="*",
        type=str,
        help="text to continue, several for several rows; without it, standard input",
    )
    parser.add_argument("--file", type=str, help="continue the whole text of this file")
    parser.add_argument(
        "--token_ids", type=list[int], metavar="[ID,...]", help="continue these token ids"
    )
    parser.add_argument(
        "--example", action="store_true", help="continue a built-in Python class up to its end"
    )
    parser.add_argument(
        "--chat",
        action="store_true",
        help="each prompt is a message to the model, put into its chat template",
    )
    parser.add_argument(
        "--system",
        type=str,
        metavar="TEXT",
        help="a message before it, with --chat, that says how to answer",
    )
    parser.add_argument(
        "--json",
        action="store_true",
        help='one JSON line per completion, then one with "type": "stats"',
    )
    parser.add_argument(
        "--compare_plain",
        action="store_true",
        help="also decode plainly, in turn and 3 times each; print the ratio",
    )


def read_options(
    parser: ArgumentParser, argv: list[str], add_own: Callable[[ArgumentParser], None] = add_sources
) -> tuple[Namespace, dict[str, Any], dict[str, Any], list[Any]]:
    """The command's own options, the arguments of `load`, those of `LLM.stream`, and what the user
    names as strategies or says of them. `add_own` adds the command's own.

    Raises an `OptionError` with all that is wrong in files and with strategies.
    """
    problems = Problems()
    add_own(parser)
    parser.add_argument("--config", type=str, metavar="FILE", help=_CONFIG)
    names, argv = take_files(argv)
    files = [(name, *read_file(name)) for name in names]
    said, argv = choices.take_strategies(argv)
    for _, strategies, _ in reversed(files):
        said = choices.over(strategies, said)
    default = {
        name: p.default
        for function in (load, LLM.stream)
        for name, p in signature(function).parameters.items()
    }
    chosen: dict[str, choices.Choice | None] = dict.fromkeys(choices.OPTIONS)
    for option in choices.OPTIONS:
        with problems.noted():
            chosen[option] = choices.chosen(option, default[option], said)
    models = parser.add_function_arguments(load, skip={"cache", *choices.OPTIONS, "cuda_graphs"})
    group = _last_group(parser)
    group.title = "models and machine"
    group.add_argument("--cuda_graphs", type=Literal[*_GRAPHS], default=default["cuda_graphs"])
    group = parser.add_argument_group("strategies (`bass list` shows them)")
    for option in dict.fromkeys((*REGISTRIES, *choices.OPTIONS)):
        group.add_argument(f"--{option}", type=str, default=default[option])
    request = parser.add_method_arguments(
        LLM,
        "stream",
        skip={"prompts", "num_return_sequences", "max_new_tokens", "stop", "ignore_eos"},
    )
    group = _last_group(parser)
    group.title = "request"
    group.add_argument(
        "-n",
        "--num_return_sequences",
        type=int,
        default=default["num_return_sequences"],
        help="samples per prompt",
    )
    group.add_argument("--max_new_tokens", type=int, default=default["max_new_tokens"])
    group.add_argument("--stop", action="append", type=str, default=[], help=_STOP)
    group.add_argument(
        "--ignore_eos", action="store_true", help="go on after an end-of-sequence token"
    )
    describe(parser, HELP)
    for choice in filter(None, chosen.values()):
        # to be shown with `--help`
        parser._action_groups = [*parser._action_groups, *choice.help_groups]
    given = Namespace()
    with problems.noted():
        given = parse(parser, argv, defaults=False)
    config = layered(
        parser.get_defaults(),
        [*(parse_file(parser, name, options, problems) for name, _, options in files), given],
    )
    load_with = {name: config[name] for name in (*models, "cache")} | {
        "cuda_graphs": _GRAPHS[config.cuda_graphs]
    }
    for option, choice in chosen.items():
        if choice is None:
            load_with[option] = said.get(option, default[option])
        elif any(key.partition(".")[0] == option for key in said):
            with problems.noted():
                load_with[option] = make(choices.OPTIONS[option], choice.spec)
    problems.raise_any("What was asked for")
    stream_with = {
        name: config[name]
        for name in (*request, "num_return_sequences", "max_new_tokens", "ignore_eos")
    }
    stop = [unescape(text) for text in config.stop] or (
        EXAMPLE_STOPS if config.get("example") else ()
    )
    named = [name for choice in filter(None, chosen.values()) for name in choice.names]
    return (
        config,
        load_with,
        stream_with | {"stop": stop},
        [*said.values(), *named, config["cache"]],
    )


def layered(defaults: Namespace, layers: Iterable[Namespace]) -> Namespace:
    """The options of all layers, of which a later one overrides those before."""
    config = dict(vars(defaults))
    for layer in layers:
        given = {name: value for name, value in vars(layer).items() if name != "prompt" or value}
        if given.keys() & SOURCES:
            config |= {name: defaults[name] for name in SOURCES if name in config}
        config |= given
    return Namespace(config)


def unescape(text: str) -> str:
    """`\\n`, `\\t` and `\\\\`, which a shell hands over as they are, as the characters they
    mean.
    """
    return text.replace("\\\\", "\0").replace("\\n", "\n").replace("\\t", "\t").replace("\0", "\\")


def _last_group(parser: ArgumentParser) -> Any:
    return parser._action_groups[-1]
