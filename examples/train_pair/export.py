"""Write a checkpoint as an ordinary Hugging Face folder in bfloat16.

python examples/train_pair/export.py --run .data/target --tokenizer .data/tokenizer --out
src/bass/pair/target
"""

import argparse
import json
import shutil
from pathlib import Path

import arguments
import torch
from common import DRAFT, TARGET

from bass.checkpoints.weights import save_decoder
from bass.models.llama import Llama


def main() -> None:
    """Read the newest checkpoint and write the folder."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name in ("run", "tokenizer", "out"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    args = parser.parse_args()
    weights = torch.load(args.run / "checkpoint.pt", map_location="cpu")["model"]
    shape = next(c for c in (TARGET, DRAFT) if c.hidden_size == weights["embed"].shape[1])
    model = Llama(shape)
    model.load_state_dict(weights)
    ends = {"bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 0}
    save_decoder(model, args.out, torch.bfloat16, **ends)
    (args.out / "generation_config.json").write_text(
        json.dumps(ends | {"do_sample": True, "temperature": 0.2}, indent=2) + "\n"
    )
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copyfile(args.tokenizer / name, args.out / name)


if __name__ == "__main__":
    arguments.run(main)
