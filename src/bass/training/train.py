"""The training of a draft: data, updates, checkpoints, held-out acceptance."""

import json
import math
import os
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any, final

import torch
from safetensors.torch import load_file, save
from torch import Tensor, nn

from bass.api.llm import LLM
from bass.errors import OptionError
from bass.files import digests, write_atomically
from bass.models.decoder import CausalDecoder
from bass.training.data import Rows, Watch, read_data, rows_of
from bass.training.heads import Blocks, Eagle3, Mtp
from bass.training.model import SmallModel
from bass.training.options import TrainOptions
from bass.training.trainee import Lesson, Trainee

TRAINEES = {"eagle3": Eagle3, "mtp": Mtp, "block": Blocks, "model": SmallModel}  # by method
HELD_OUT, SHARE = 64, 16  # texts that are held out at most, and one of how many
WARM_UP = 0.04  # share of the steps in which the learning rate rises
FREE = ("output", "save_every")  # options that may change when a training continues
# in `output`/training
STATE, ROWS, LOG, ANSWERS = "state.pt", "rows.safetensors", "log.jsonl", "answers.jsonl"


def train_draft(options: TrainOptions, llm: LLM, watch: Watch) -> Any:
    """Train a draft for the target of `llm`, and write its folder; continue what is in
    `options.output`. Returns the last line of the log: held-out acceptance at temperatures 0 and 1
    by position (of the drafts whose predecessors were accepted), and tau. Raises `OptionError`.
    """
    folder, target = Path(options.output) / "training", llm.models.target
    if bad := [i for i in options.features or () if i not in range(target.shape.layers + 1)]:
        raise OptionError(
            f"`features` has state {bad[0]}, and the target has {target.shape.layers} layers: give "
            f"0 to {target.shape.layers}, the last for what leaves the last layer."
        )
    spec, path = llm.models.specs[0], folder / "options.json"
    name = spec.checkpoint
    whole = {"target": os.path.abspath(name) if Path(name).exists() else name, "lora": spec.lora}
    whole |= asdict(options) | {"contents of data": [*digests([*options.data]).values()]}
    own = json.loads(json.dumps({n: x for n, x in whole.items() if n not in FREE}))
    if path.exists():
        _check_same(options, own, json.loads(path.read_text(encoding="utf-8")))
    elif (folder.parent / "config.json").exists():
        raise OptionError(
            f"`{options.output}` holds a checkpoint that no training here began, which would be "
            "lost: give another folder as `output`."
        )
    if not (folder / ROWS).exists():
        read = read_data(options)
        folder.mkdir(parents=True, exist_ok=True)
        write_atomically(path, json.dumps(own, indent=2) + "\n")
        try:
            rows = rows_of(*read, options, llm, folder / ANSWERS, watch)
        except OptionError:  # of the data
            path.unlink()
            raise
        write_atomically(folder / ROWS, save(vars(rows)))
    rows = Rows(**load_file(folder / ROWS))
    trainee = TRAINEES[options.method].new(target, options, rows.counts(target.shape.vocab_size))
    return Training(trainee, target, rows, options, folder, name).run(watch)


def in_words(figures: dict[str, Any]) -> str:
    """The held-out acceptance of a line of the log."""
    rates = {t: ", ".join(f"{100 * x:.1f}" for x in of) for t, of in figures["acceptance"].items()}
    words = [f"{x} % at temperature {t} (tau {figures['tau'][t]})" for t, x in rates.items()]
    return f"accepted by position {', '.join(words)}"


def _check_same(options: TrainOptions, own: dict[str, Any], before: dict[str, Any]) -> None:
    """Raise `OptionError` for a folder of a training with other options."""
    if changed := [name for name, value in own.items() if before.get(name) != value]:
        raise OptionError(
            f"`{options.output}` holds a training with another `{changed[0]}` "
            f"({before.get(changed[0])}): give the same options to continue it, or another folder."
        )


@final
class Training:
    """A training of a trainee on texts. Batches depend on the seed and the step alone.

    Held-out texts are answers, if there are some: the target's own texts. They are all of some
    records, or the first ones of a record that has more than a quarter of the texts.
    """

    def __init__(
        self, trainee: Trainee, target: CausalDecoder, rows: Rows, options: TrainOptions,
        folder: Path, name: str,
    ) -> None:  # fmt: skip
        self.trainee, self.target, self.options, self.folder = trainee, target, options, folder
        self.name = name  # of the target
        count, random = len(rows.lens), torch.Generator().manual_seed(options.seed)
        places = torch.randperm(int(rows.records.max()) + 1, generator=random)
        order = places[rows.records].argsort(stable=True)
        order = order[(rows.starts[order] == 0).int().argsort(stable=True)]  # answers first
        least, records = min(HELD_OUT, count // SHARE) or 1, rows.records[order]
        ends = 1 + (records[1:] != records[:-1]).nonzero()[:, 0]
        whole = ends[(ends >= least) & (ends <= count // 4)]
        apart = int(whole[0]) if len(whole) else least
        self.held_out = rows[order[: min(apart, HELD_OUT)]]
        self.rows = rows[order[apart:] if apart < count else order]
        weights = [p for p in trainee.head.parameters() if p.is_floating_point()]
        rate, betas = options.learning_rate, (0.9, 0.95)
        fused = target.embed.device.type == "cuda"
        self.optimizer = torch.optim.AdamW(weights, rate, betas, weight_decay=0.0, fused=fused)

    def run(self, watch: Watch) -> dict[str, Any]:
        """All steps from the last checkpoint on. Returns the last line of the log."""
        steps, every, figures = self.options.steps, self.options.save_every, dict[str, Any]()
        first, text, began = self._resume(), "", time.monotonic()
        if first:
            text = f"continues after step {first} of {steps}"
            watch(text if first < steps else f"all {steps} steps are done", first, steps)
        for done in range(first + 1, steps + 1):
            loss = self._update(done - 1)
            if done % every == 0 or done == steps:
                figures = {"step": done, "loss": round(float(loss), 4)} | self.acceptance()
                figures["seconds"] = round(time.monotonic() - began, 1)
                self._save(done)
                with (self.folder / LOG).open("a", encoding="utf-8") as log:
                    log.write(json.dumps(figures) + "\n")
                text = f"step {done}, loss {figures['loss']}, {in_words(figures)}"
            watch(text, done, steps)
        return figures or self.acceptance()

    def _update(self, step: int) -> Tensor:
        """Take a step; the learning rate rises linearly, and falls as a cosine."""
        steps = self.options.steps
        rate = min(1.0, (step + 1) / (WARM_UP * steps)) * (1 + math.cos(math.pi * step / steps)) / 2
        for group in self.optimizer.param_groups:
            group["lr"] = self.options.learning_rate * rate
        random = torch.Generator().manual_seed(self.options.seed * 1_000_003 + step)
        given = self.trainee, self.target, self.batch(step)
        loss = Lesson.of(*given, self.options.anchors, random).loss()
        loss.backward()
        nn.utils.clip_grad_norm_(self.trainee.head.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss.detach()

    def batch(self, step: int) -> Rows:
        """The texts of a step: each epoch has all of them, in an order of its own."""
        count, size = len(self.rows.lens), self.options.batch_size
        seed = self.options.seed * 1_000_003
        places = range(step * size, (step + 1) * size)
        orders = {
            epoch: torch.randperm(count, generator=torch.Generator().manual_seed(seed + epoch))
            for epoch in {place // count for place in places}
        }
        chosen = [orders[place // count][place % count] for place in places]
        return self.rows[torch.stack(chosen)]

    def acceptance(self) -> dict[str, Any]:
        """Held-out acceptance by position, and tau, at temperatures 0 and 1."""
        total, count = torch.zeros(2, self.trainee.unroll), 0
        for index in torch.arange(len(self.held_out.lens)).split(self.options.batch_size):
            lesson = Lesson.of(self.trainee, self.target, self.held_out[index])
            places, survived = lesson.survival()
            total += survived[:, :, places].sum(-1).cpu()
            count += int(places.sum())
        survival = total / max(count, 1)
        before = torch.cat((torch.ones(2, 1), survival[:, :-1]), 1)
        rates, tau = (survival / before.clamp(min=1e-9)).tolist(), (1 + survival.sum(1)).tolist()
        return {
            "acceptance": {t: [round(x, 4) for x in rates[i]] for i, t in enumerate("01")},
            "tau": {t: round(tau[i], 3) for i, t in enumerate("01")},
        }

    def _save(self, step: int) -> None:
        head, optimizer = self.trainee.head.state_dict(), self.optimizer.state_dict()
        torch.save({"step": step, "head": head, "optimizer": optimizer}, self.folder / "new.pt")
        (self.folder / "new.pt").replace(self.folder / STATE)
        self.trainee.save(self.folder.parent, self.target, self.name)

    def _resume(self) -> int:
        """Load the checkpoint, and return its step; 0 without one."""
        if not (self.folder / STATE).exists():
            return 0
        device = self.target.embed.device
        state = torch.load(self.folder / STATE, map_location=device, weights_only=True)
        self.trainee.head.load_state_dict(state["head"])
        self.optimizer.load_state_dict(state["optimizer"])
        return state["step"]
