"""`bass info`: what a checkpoint is. Its weights are checked against its config, and not read."""

from jsonargparse import ArgumentParser

from bass.cli.parsing import parse
from bass.errors import PairingError
from bass.loading import Checkpoint, check_pair
from bass.records import AttentionRule


def run(parser: ArgumentParser, argv: list[str]) -> int:
    """Print what the checkpoint is; with a draft, both and whether they go together (exit status 1 if not)."""
    parser.add_argument(
        "checkpoint", type=str, help="folder with config.json and safetensors files, or hub id (org/name, org/name@revision)"
    )
    parser.add_argument("--draft", type=str, help="a second one: can it draft for the first?")
    config = parse(parser, argv)
    target = Checkpoint.read(config.checkpoint)
    lines, fits = describe(config.checkpoint, target), True
    if config.draft is not None:
        draft = Checkpoint.read(config.draft)
        lines += ["", *describe(config.draft, draft), ""]
        try:
            size = check_pair(target, draft)
            lines.append(f"`{config.draft}` can draft for `{config.checkpoint}`.")
            if any(size != c.outline.decoder.shape.vocab_size for c in (target, draft)):
                lines.append(f"Their vocabularies are padded differently; both are used up to their common {size:,} tokens.")
        except PairingError as error:
            fits = False
            lines.append(f"`{config.draft}` cannot draft for `{config.checkpoint}`. {error}")
    print("\n".join(lines))
    return 0 if fits else 1


def describe(spec: str, checkpoint: Checkpoint) -> list[str]:
    """Name and value, line by line."""
    outline, tokenizer = checkpoint.outline, checkpoint.tokenizer
    shape, files = outline.decoder.shape, outline.files
    kinds = [str(dtype).removeprefix("torch.") for dtype in outline.dtypes]
    kv_bytes = 2 * shape.layers * shape.kv_heads * shape.head_dim * outline.dtypes[0].itemsize
    figures = {
        "checkpoint": spec,
        "family": outline.raw["model_type"],
        "parameters": f"{sum(p.numel() for p in outline.decoder.parameters()):,}",
        "layers": shape.layers,
        "heads": f"{shape.heads} query, {shape.kv_heads} key-value, of {shape.head_dim} dimensions",
        "context": f"{shape.max_positions:,} tokens",
        "window": by_layer(shape.rules, "window"),
        "soft cap of scores": by_layer(shape.rules, "softcap"),
        "vocabulary": f"{shape.vocab_size:,} tokens",
        "tokenizer": "none: give token ids" if tokenizer is None else f"{len(tokenizer.vocabulary):,} tokens",
        "end of sequence": ", ".join(map(str, checkpoint.eos)) or "none",
        "dtype": " and ".join(kinds),
        "bytes": f"{files.size:,}" + (f" in {len(files.paths)} files" if len(files.paths) > 1 else ""),
        "KV bytes per token": f"{kv_bytes:,} ({kinds[0]})",
    }
    return [f"{name:20}{value}" for name, value in figures.items() if value]


def by_layer(rules: tuple[AttentionRule, ...], name: str) -> str:
    """The values of a field of the rules with their numbers of layers; empty where no layer has one."""
    values = [getattr(rule, name) for rule in rules]
    counts = {value: values.count(value) for value in dict.fromkeys(values)}
    if set(counts) == {None}:
        return ""
    return ", ".join(f"{'none' if value is None else f'{value:,}'} in {count} layers" for value, count in counts.items())
