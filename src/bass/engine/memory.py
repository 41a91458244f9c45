"""The memory of a loaded pair, in bytes."""

from dataclasses import dataclass
from typing import final

import torch

from bass.engine.assembly import ModelPair
from bass.engine.engines import EngineCache


@final
@dataclass(frozen=True)
class Memory:
    """Bytes on the models' device. `str` gives them in one line.

    keys_and_values: of the storage that calls share, 0 where each call allocates its own. graphs:
    the memory pool of the captured CUDA graphs. free: None on a CPU.
    """

    weights: int
    keys_and_values: int
    graphs: int
    free: int | None

    @classmethod
    def of(cls, models: ModelPair, engines: EngineCache) -> "Memory":
        """The memory now."""
        weights = weight_bytes(models)
        if models.device.type != "cuda":
            return cls(weights, engines.stored_bytes, 0, None)
        free, _ = torch.cuda.mem_get_info(models.device)
        graphs = 0
        for segment in torch.cuda.memory_snapshot():
            if segment["segment_pool_id"] == engines.pool:
                graphs += segment["total_size"]
            elif segment["segment_pool_id"] == (0, 0):  # what torch keeps without use
                free += segment["total_size"] - segment["allocated_size"]
        return cls(weights, engines.stored_bytes, graphs, free)

    def __str__(self) -> str:
        parts = {
            "weights": self.weights,
            "keys and values": self.keys_and_values,
            "CUDA graphs": self.graphs,
            "free": self.free,
        }
        return ", ".join(f"{name} {size / 1e9:.2f} GB" for name, size in parts.items() if size)


def weight_bytes(models: ModelPair) -> int:
    """Bytes of all parameters and buffers of target and draft; what they share counts once."""
    storages = {
        storage.data_ptr(): storage.nbytes()
        for model in (models.target, models.draft)
        if model is not None
        for tensor in (*model.parameters(), *model.buffers())
        for storage in (tensor.untyped_storage(),)
    }
    return sum(storages.values())
