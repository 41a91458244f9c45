"""`bass train-draft`: trains a draft for a target."""

from collections.abc import Sequence
from dataclasses import fields
from typing import Any

from bass.api.options import LoadOptions
from bass.cli.options import Parser, build, console
from bass.progress import watched
from bass.training.options import TrainOptions

EXAMPLES = (
    "bass train-draft --target TARGET --data texts.txt chats.jsonl --output HEAD",
    "bass train-draft --target TARGET --data prompts.jsonl --temperature 0.5 1 --output HEAD",
    "bass generate --target TARGET --draft HEAD",
)
LOADED = ("target", "lora", "family", "device", "dtype", "max_batch_size")


def run(argv: Sequence[str]) -> int:
    """Train, or continue a training; prints the held-out acceptance."""
    about = "Trains a draft for a target, or continues a training."
    skip = [f.name for f in fields(LoadOptions) if f.name not in LOADED]
    command = Parser(
        "train-draft", about, EXAMPLES, TrainOptions, LoadOptions, skip=[*skip, "data", "output"]
    )
    needed: dict[str, Any] = {"required": True, "type": str}
    text = "text, JSON lines with `text`, `messages` or `prompt`; sets"
    command.add_argument("--data", nargs="+", metavar="FILE", help=text, **needed)
    text = "of the draft; the same command continues its training"
    command.add_argument("--output", metavar="FOLDER", help=text, **needed)
    config = command.read(argv)
    options = build(TrainOptions, config)

    from bass.api.llm import serve
    from bass.api.plan import LoadPlan
    from bass.training.train import in_words, train_draft

    llm = serve(LoadPlan.of(build(LoadOptions, config, num_speculative_tokens=0)))
    said, say = {""}, console(stderr=True).print
    with watched() as bar:

        def watch(text: str, done: int, total: int) -> None:
            bar(options.output, done, total)
            if text not in said:
                said.add(text)
                say(text)

        try:
            figures = train_draft(options, llm, watch)
        except KeyboardInterrupt:
            say("The same command continues from the last checkpoint, or from the answers so far.")
            raise
    console().print(in_words(figures))
    return 0
