"""Defects of KV caches and attention."""

from support.mutants.killers import ATTENTION, CACHES, NOBODY, OUTLIVE, TAKES, WRONG
from support.mutants.mutant import Mutant

MUTANTS = (
    Mutant(
        "a query of the padded layout sees one stale key",
        "bias_of",
        "visible = keys <= own",
        "visible = keys <= own + 1",
        (ATTENTION, WRONG),
        trap=2,
    ),
    Mutant(
        "a query of the padded layout sees its whole window",
        "bias_of",
        "visible = keys <= own",
        "visible = keys <= own.amax(1, keepdim=True).expand_as(own)",
        (WRONG,),
        trap=2,
    ),
    Mutant(
        "positions of the split pool start at the longest row's extent",
        "_starts",
        "np.cumsum(capacities)[:-1]",
        "np.arange(1, len(capacities)) * capacities.max()",
        (CACHES,),
        trap=18,
    ),
    Mutant(
        "a window of the padded layout is one position too long",
        "bias_of",
        "keys > own - window",
        "keys >= own - window",
        (ATTENTION,),
    ),
    Mutant(
        "the mask is laid out window by window",
        "bias_of",
        "'batch window span -> batch 1 (group window) span'",
        "'batch window span -> batch 1 (window group) span'",
        (ATTENTION,),
    ),
    Mutant(
        "a write at -1 lands in the row before",
        "SplitCache.write",
        "torch.where(positions < 0, -1, self.starts[:, None] + positions)",
        "self.starts[:, None] + positions",
        (CACHES,),
    ),
    Mutant(
        "rows are copied the wrong way round",
        "PaddedCache.copy_rows",
        "copy_slots(pools, starts[assignment.source], starts, assignment.shared)",
        "copy_slots(pools, starts, starts[assignment.source], assignment.shared)",
        (CACHES,),
    ),
    Mutant(
        "values stay behind when rows are copied",
        "PaddedCache.copy_rows",
        "self.v.flatten(1, 2)",
        "self.v.flatten(1, 2).clone()",
        (CACHES,),
    ),
    Mutant(
        "a reserve forgets what rows hold",
        "SplitCache.reserve",
        "copy_slots((self.k, self.v), _starts(self.capacities), _starts(capacities), counts)",
        "",
        (CACHES,),
    ),
    Mutant(
        "a follower shares the block in which its prompt ends",
        "PagedCache._common",
        "assignment.shared[assignment.followers] // self._block",
        "-(-assignment.shared[assignment.followers] // self._block)",
        (TAKES,),
    ),
    Mutant(
        "the block in which a prompt ends is not copied",
        "PagedCache.copy_rows",
        "copy_slots((_slots(self.k), _slots(self.v)), came, to, rest)",
        "",
        (TAKES,),
    ),
    Mutant(
        "shared blocks are written",
        "PagedCache._protect",
        "names[self._blocks] == 1",
        "names[self._blocks] >= 1",
        (NOBODY,),
    ),
    Mutant(
        "a block is free when one of its rows ends",
        "PagedCache.reserve",
        "np.setdiff1d(np.arange(self._spare), blocks)",
        (
            "np.setdiff1d(np.arange(self._spare), np.where(np.isin(blocks, "
            "self._blocks[~assignment.continuing]), self._spare, blocks))"
        ),
        (OUTLIVE,),
    ),
    Mutant(
        "a row that begins again keeps its blocks",
        "PagedCache.reserve",
        "assignment.continuing[:, None] & (at < counts)",
        "at < counts",
        (OUTLIVE,),
    ),
)
