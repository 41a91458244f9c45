"""Whether the checkpoints that a plan names can serve its cells, by their headers alone."""

import functools
from collections.abc import Callable
from pathlib import Path

from bass.errors import BassError, PairingError, RequestError
from bass.experiments.config import Plan, Problems
from bass.experiments.prompts import Prompt
from bass.experiments.settings import Settings
from bass.loading import Checkpoint, check_pair
from bass.models.first_layers import FirstLayers


def check_checkpoints(plan: Plan, problems: Problems | None = None) -> None:
    """Refuse a plan whose checkpoints are missing or damaged, are no pair, or are too small for a cell.

    All problems are told, those that were found before among them; where there are any, nothing is asked of the hub.
    """
    problems = problems or Problems()
    read, near = functools.cache(Checkpoint.read), bool(problems.told)
    for cell in plan.cells:
        named = (cell.settings.target, cell.settings.draft)
        if near and not all(name is None or Path(name).exists() for name in named):
            continue
        try:
            _check(cell.settings, read)
        except BassError as error:
            problems.told.append(str(error))
    problems.raise_any(f"The config `{plan.name}`")


def _check(settings: Settings, read: Callable[[str], Checkpoint]) -> None:
    order = settings.order()
    target = read(str(order.target))
    shapes = [target.outline.decoder.shape]
    vocabulary = shapes[0].vocab_size
    if order.draft is not None:
        draft = read(str(order.draft))
        check_pair(target, draft)
        shapes.append(draft.outline.decoder.shape)
    elif order.parts.drafter.needs_draft:
        raise PairingError(f"The target `{order.target}` needs a draft: give `--draft`, or a drafter that needs no draft model.")
    if order.parts.drafter.target_layers:
        FirstLayers.check(target.outline.decoder, order.parts.drafter.target_layers)
    prompts = settings.read_prompts()
    wrong = [token for prompt in prompts if not isinstance(prompt, str) for token in prompt if not 0 <= token < vocabulary]
    if wrong:
        raise RequestError(f"A prompt has the token id {wrong[0]}, which is outside the vocabulary: ids go from 0 to {vocabulary - 1}.")
    longest, room = max(_length(target, prompt) for prompt in prompts), min(shape.max_positions for shape in shapes)
    if longest + settings.max_new_tokens > room:
        raise RequestError(
            f"The longest prompt has {longest} tokens, which with `max_new_tokens: {settings.max_new_tokens}` exceeds the context of "
            f"{room}: lower it, or shorten the prompt."
        )


def _length(target: Checkpoint, prompt: Prompt) -> int:
    if not isinstance(prompt, str):
        return len(prompt)
    if target.tokenizer is None:
        raise RequestError(f"The prompts are texts, and `{target.outline.folder}` has no tokenizer: give token ids, or add its files.")
    return len(target.tokenizer.encode(prompt))
