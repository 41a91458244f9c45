"""Folders with the config and headers of large models, whose files are sparse."""

import json
from pathlib import Path

from bass.checkpoints.folder import INDEX
from bass.checkpoints.weights import dummy_index

LLAMA_70B = {
    "model_type": "llama",
    "vocab_size": 128256,
    "hidden_size": 8192,
    "intermediate_size": 28672,
    "num_hidden_layers": 80,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "max_position_embeddings": 131072,
    "rope_theta": 500000.0,
    "torch_dtype": "bfloat16",
}
FILES = 30


def llama_70b(folder: Path) -> Path:
    """A folder of Llama 3 70B in 30 sparse files of zeros, with their index."""
    (folder / "config.json").write_text(json.dumps(LLAMA_70B))
    decoder = dummy_index(folder).decoder
    parameters = dict(decoder.named_parameters())
    shapes = {
        tensor: shape
        for name, source in decoder.sources(decoder.config).items()
        for tensor, shape in zip(source.tensors, source.shapes(parameters[name].shape), strict=True)
    }
    places = {}
    for i in range(FILES):
        file = f"model-{i + 1:05}-of-{FILES:05}.safetensors"
        header, end = {}, 0
        for name in sorted(shapes)[i::FILES]:
            size = 2
            for axis in shapes[name]:
                size *= axis
            header[name] = {
                "dtype": "BF16", "shape": [*shapes[name]], "data_offsets": [end, end + size],
            }  # fmt: skip
            places[name] = file
            end += size
        text = json.dumps(header).encode()
        with (folder / file).open("wb") as written:
            written.write(len(text).to_bytes(8, "little") + text)
            written.truncate(8 + len(text) + end)
    (folder / INDEX).write_text(json.dumps({"weight_map": places}))
    return folder
