"""The options of `bass generate`, made from the signatures of `load`, `LLM.stream` and the strategies' own classes."""

import json
from inspect import signature
from typing import Any

from jsonargparse import ArgumentParser, Namespace

from bass.cli.parsing import describe, parse
from bass.cli.prompts import EXAMPLE_STOPS
from bass.errors import OptionError
from bass.llm import LLM, load
from bass.registry import REGISTRIES, find_class, make

STRATEGIES = ("policy", "attention", "verifier")  # an option for each of their parameters too: --policy.k 6
_NAMES = {kind: ", ".join(sorted(registry)) for kind, registry in REGISTRIES.items()}
_OWN = 'or a class of your own as "package.module:Class"'
_STOP = r"text before which a sample ends, with \n and \t as in Python; may be repeated"
HELP = {
    "target": "checkpoint of the target, a folder or a hub id (org/name[@revision]); without --target and --draft, the embedded pair",
    "draft": "checkpoint of the draft, a folder or a hub id",
    "policy": f"how many tokens to draft: {_NAMES['policy']}, {_OWN}; its parameters follow as --policy.NAME",
    "drafter": f"what proposes tokens: {_NAMES['drafter']}",
    "verifier": f"which tokens to keep: {_NAMES['verifier']}, {_OWN}",
    "cache": f"layout of keys and values: {_NAMES['cache']}",
    "attention": f"attention backend: auto (one that fits the cache), {_NAMES['attention']}, {_OWN}",
    "device": "auto (a GPU where there is one), cpu, cuda, cuda:1 ...",
    "dtype": "auto, float32, bfloat16 or float16",
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


def read_options(parser: ArgumentParser, argv: list[str]) -> tuple[Namespace, dict[str, Any], dict[str, Any]]:
    """The command's own options, the arguments of `load`, and those of `LLM.stream`."""
    parser.add_argument("prompt", nargs="*", type=str, help="text to continue, several for several rows; without it, standard input")
    parser.add_argument("--file", type=str, help="continue the whole text of this file")
    parser.add_argument("--token_ids", type=list[int], metavar="[ID,...]", help="continue these token ids")
    parser.add_argument("--example", action="store_true", help="continue a built-in Python class up to its end")
    parser.add_argument("--chat", action="store_true", help="each prompt is a message to the model, put into its chat template")
    parser.add_argument("--system", type=str, metavar="TEXT", help="a message before it, with --chat, that says how to answer")
    parser.add_argument("--json", action="store_true", help='one JSON line per completion, then one with "type": "stats"')
    parser.add_argument("--compare_plain", action="store_true", help="run the request by plain decoding too, and print the ratio")
    classes, argv = take_strategies(argv)
    default = {name: p.default for function in (load, LLM.stream) for name, p in signature(function).parameters.items()}
    # Graphs and quantization have one value each so far: no option to offer.
    models = parser.add_function_arguments(load, skip={*REGISTRIES, "cuda_graphs", "quantization"})
    _last_group(parser).title = "models and machine"
    strategies = parser.add_argument_group("strategies (`bass list` shows them)")
    for kind in REGISTRIES:
        _add_strategy(parser, strategies, kind, classes.get(kind, default[kind]))
    request = parser.add_method_arguments(LLM, "stream", skip={"prompts", "num_return_sequences", "max_new_tokens", "stop", "ignore_eos"})
    group = _last_group(parser)
    group.title = "request"
    group.add_argument("-n", "--num_return_sequences", type=int, default=default["num_return_sequences"], help="samples per prompt")
    group.add_argument("--max_new_tokens", type=int, default=default["max_new_tokens"])
    group.add_argument("--stop", action="append", type=str, default=[], help=_STOP)
    group.add_argument("--ignore_eos", action="store_true", help="go on after an end-of-sequence token")
    describe(parser, HELP)
    config = parse(parser, argv)
    load_with = {name: config[name] for name in models}
    load_with |= {kind: config[kind] for kind in REGISTRIES if kind not in STRATEGIES}
    for kind in STRATEGIES:
        if kind in classes or any(word.startswith(f"--{kind}.") for word in argv):
            given = config.get(kind)
            load_with[kind] = make(kind, classes.get(kind, default[kind]), **(given if isinstance(given, Namespace) else {}))
    stream_with = {name: config[name] for name in (*request, "num_return_sequences", "max_new_tokens", "ignore_eos")}
    stop = [unescape(text) for text in config.stop] or (EXAMPLE_STOPS if config.example else ())
    return config, load_with, stream_with | {"stop": stop}


def unescape(text: str) -> str:
    """`\\n`, `\\t` and `\\\\`, which a shell hands over as they are, as the characters they mean."""
    return text.replace("\\\\", "\0").replace("\\n", "\n").replace("\\t", "\t").replace("\0", "\\")


def take_strategies(argv: list[str]) -> tuple[dict[str, str], list[str]]:
    """The classes that `--policy X` and the like name, and the other arguments.

    X may also be {"class_path": ..., "init_args": {...}}; its arguments become options of the form --policy.NAME=VALUE.
    """
    classes: dict[str, str] = {}
    rest: list[str] = []
    words = iter(argv)
    for word in words:
        name, equals, value = word.removeprefix("--").partition("=")
        if word == "--":
            rest += [word, *words]
        elif not word.startswith("--") or name not in STRATEGIES:
            rest.append(word)
        else:
            classes[name], arguments = _class_path(name, value if equals else next(words, ""))
            rest += [f"--{name}.{key}={_text(given)}" for key, given in arguments.items()]
    return classes, rest


def _class_path(kind: str, spec: str) -> tuple[str, dict[str, Any]]:
    if not spec or spec.startswith("--"):
        raise OptionError(f"`--{kind}` lacks its value: give {_NAMES[kind]}, {_OWN}.")
    if not spec.startswith("{"):
        return spec, {}
    try:
        given = json.loads(spec)
        path, arguments = given.pop("class_path"), given.pop("init_args", {})
        if given or not isinstance(path, str) or not isinstance(arguments, dict):
            raise KeyError
    except (ValueError, KeyError) as error:
        form = '{"class_path": "package.module.Class", "init_args": {"k": 4}}'
        raise OptionError(f"`--{kind} {spec}` is not of the form {form}: write it so, as JSON.") from error
    return path if ":" in path or "." not in path else ":".join(path.rsplit(".", 1)), arguments


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _add_strategy(parser: ArgumentParser, group: Any, kind: str, spec: Any) -> None:
    """`--policy` and its like, and the parameters of the class it names. The former is for the help alone where it was taken."""
    if kind in STRATEGIES and spec != "auto" and parser.add_class_arguments(find_class(kind, spec), kind, fail_untyped=False):
        _last_group(parser).title = f"{kind} {spec}"
    else:
        group.add_argument(f"--{kind}", type=str, default=spec)


def _last_group(parser: ArgumentParser) -> Any:
    return parser._action_groups[-1]
