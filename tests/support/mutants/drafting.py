"""Defects of drafters, stop rules and policies."""

from support.mutants.killers import (
    AFTER,
    ALONE,
    DRAFTERS,
    EQUAL,
    FED,
    INVALID,
    OBSERVED,
    POLICIES,
    REGISTERED,
    RULED,
    RULES,
    STATES,
    STOP_LAWS,
    STOPS,
    TRIM_LAWS,
    TRIM_PAST,
    TRIM_REPORT,
    WARPS,
    WITNESS,
)
from support.mutants.mutant import Mutant

HEADED = "laws/test_8_heads.py::test_states_and_logits_are_those_of_the_whole_text"
BLOCKS = "laws/test_8_block_heads.py::test_drafts_follow_from_the_whole_text"
PRODUCED = "laws/test_8_heads.py::test_each_producers_form_is_read"

MUTANTS = (
    Mutant(
        "a trim ranks slots by their own acceptance, which may rise along a row",
        "Survival.__call__",
        "survival(drafted, self.estimate, self.prior)",
        "drafted.accepted if drafted.probs is None else drafted.probs.amax(2)",
        (TRIM_LAWS,),
    ),
    Mutant(
        "a slot is kept by the distribution of the next one",
        "trims.trims.survival",
        "drafted.probs.amax(2)",
        "drafted.probs.amax(2).roll(-1, 1)",
        (TRIM_LAWS,),
    ),
    Mutant(
        "of equal slots the later one comes first",
        "trims.trims.best",
        "scores.T.flatten().argsort(descending=True, stable=True)",
        "scores.numel() - 1 - scores.T.flatten().flip(0).argsort(descending=True, stable=True)",
        (TRIM_LAWS,),
    ),
    Mutant(
        "the budget of a trim counts rows without a draft",
        "trims.trims.best",
        "(drafted.lengths > 0).sum()",
        "(drafted.lengths >= 0).sum()",
        (TRIM_REPORT,),
    ),
    Mutant(
        "a trim reads the past of the row's earlier requests",
        "Trimming.__call__",
        "torch.where(rows.steps > 0, KEPT, 0.0)",
        "KEPT",
        (TRIM_PAST,),
    ),
    Mutant(
        "a trimmed slot counts as tried",
        "Trimming.learn",
        "torch.minimum(judged, kept.lengths)",
        "judged",
        (TRIM_PAST,),
    ),
    Mutant(
        "the distributions of a row's earlier slots are forgotten",
        "Recorder.__call__",
        "del self.probs[so_far:]",
        "self.probs.clear()",
        (TRIM_PAST,),
    ),
    Mutant(
        "a report tells drafted tokens as trimmed",
        "SpeculativeStep.on_device",
        "drafted - draft.lengths",
        "drafted",
        (TRIM_REPORT,),
    ),
    Mutant(
        "the layers of a head are counted for rows that end one token earlier",
        "ChainDrafter.propose",
        "self.context.count(modules, range(place, place + 1), -2, self.head.shape)",
        "self.context.count(modules, range(place, place + 1), -1, self.head.shape)",
        ("unit/test_cost_of_runs.py::test_a_heads_bytes_and_flops_are_those_of_its_passes",),
    ),
    Mutant(
        "masked slots of P-EAGLE are at the positions of the tokens that they draft",
        "ChainDrafter._slots",
        "self.last.at[:, None] + ahead",
        "self.last.at[:, None] + ahead + 1",
        (BLOCKS,),
    ),
    Mutant(
        "a recurrent Markov head forgets the first of the tokens",
        "BlockHead.markov",
        "torch.lerp(new.tanh(), state, gate.sigmoid())",
        "new.tanh()",
        (BLOCKS,),
    ),
    Mutant(
        "the heads of Medusa draft in the reverse order",
        "MedusaDrafter.propose",
        "iter(range(k))",
        "iter(reversed(range(k)))",
        (BLOCKS,),
    ),
    Mutant(
        "a block drafter follows the other anchor rule",
        "BlockHead.read_config",
        'raw.get("sample_from_anchor", spark)',
        'not raw.get("sample_from_anchor", spark)',
        (BLOCKS,),
    ),
    Mutant(
        "a block that is not causal is",
        "BlockDrafter.states",
        "None if one else visible",
        "None",
        (BLOCKS,),
    ),
    Mutant(
        "a causal layer of a block is not",
        "BlockDrafter.states",
        "None if one else visible",
        "visible",
        (BLOCKS,),
    ),
    Mutant(
        "the output of a layer is taken for its input",
        "block.feature_ids_of",
        'ids, distance = raw.get("target_layer_ids"), 1',
        'ids, distance = raw.get("target_layer_ids"), 0',
        (BLOCKS,),
    ),
    Mutant(
        "a block drafter has no context of committed drafts",
        "BlockDrafter.observe",
        "attend.store(layer, projection)",
        "if seen.accepted is None:\n    attend.store(layer, projection)",
        (BLOCKS,),
    ),
    Mutant(
        "a row's block is as long as the longest draft of the batch",
        "BlockDrafter.states",
        "lengths + unread",
        "lengths.max() + unread",
        (BLOCKS,),
    ),
    Mutant(
        "a Markov head reads the last committed token at every slot",
        "BlockDrafter.propose",
        "(last if fed is None else fed)[0]",
        "last[0]",
        (BLOCKS,),
    ),
    Mutant(
        "a confidence head takes back the token before",
        "BlockDrafter.propose",
        "ends.clamp(max=i)",
        "ends.clamp(max=max(i - 1, 0))",
        (BLOCKS,),
    ),
    Mutant(
        "a head reads the token of a state instead of the next one",
        "ChainDrafter.observe",
        "replace(seen.window, tokens=seen.following)",
        "seen.window",
        (HEADED,),
    ),
    Mutant(
        "a head does not read committed tokens again with their true states",
        "ChainDrafter.observe",
        'self.last.observe(seen, *self.cache.replayed("observe", run, fed, *seen.features))',
        "if seen.accepted is None:\n"
        '    self.last.observe(seen, *self.cache.replayed("observe", run, fed, *seen.features))',
        (HEADED,),
    ),
    Mutant(
        "the token ids of a head are shifted by one",
        "MappedHead.finish",
        "torch.arange(len(self.token_ids), device=self.token_ids.device)",
        "torch.arange(len(self.token_ids), device=self.token_ids.device) + 1",
        (HEADED,),
    ),
    Mutant(
        "ids that mean what leaves a layer are read as what enters it",
        "EagleConfig.feature_ids",
        "i + shift",
        "i",
        (PRODUCED,),
    ),
    Mutant(
        "ids of speculators that begin with 1 are read as those of SpecForge",
        "eagle_config.producer_of",
        '"speculators", layer_ids, "input"',
        '"speculators", layer_ids, "output" if layer_ids[:1] == (1,) else "input"',
        (PRODUCED,),
    ),
    Mutant(
        "a head of speculators adds the attention to the state before the norm",
        "read_eagle",
        'producer == "speculators" and not parallel',
        "False",
        (PRODUCED,),
    ),
    Mutant(
        "a head continues from states before the norm, though it was trained on those after it",
        "EagleHead.states",
        "x.tensor() if last is None else x.normed(last).tensor()",
        "x.tensor()",
        (PRODUCED,),
    ),
    Mutant(
        "a head reads states after the last norm",
        "CausalDecoder.hidden",
        "streams[layer] = x",
        "streams[layer] = Residual(x.normed(self.norm).tensor())",
        (HEADED,),
    ),
    Mutant(
        "an MTP layer feeds back its state before the norm",
        "MtpHead.states",
        "return x.normed(self.norm).tensor()",
        "return x.tensor()",
        (HEADED,),
    ),
    Mutant(
        "an MTP layer reads the embedding first in every form",
        "MtpHead.states",
        "read[::-1] if form.state_first else read",
        "read",
        (HEADED,),
    ),
    Mutant(
        "the norms of an MTP layer scale by their stored weights in every form",
        "MtpHead.sources",
        'form.plus if adds and "norm" in own else source.plus',
        "source.plus",
        (HEADED,),
    ),
    Mutant(
        "a sample begins with the state that its prompt's first sample has now",
        "LastStates.copy_rows",
        "values[to] = self.of_prompts[came]",
        "values[to] = self.values[came]",
        ("laws/test_8_heads.py::test_a_sample_that_starts_later_gets_the_drafts_it_gets_alone",),
    ),
    Mutant(
        "a drafter observes what was rejected",
        "SpeculativeStep.on_device",
        "index < emitted[:, None]",
        "index <= emitted[:, None]",
        (OBSERVED,),
    ),
    Mutant(
        "a drafter observes no step in which nothing is drafted",
        "SpeculativeStep.on_device",
        "if self.drafter.observes:\n"
        "    index = torch.arange(fed.positions.shape[1], device=emitted.device)\n"
        "    committed = torch.where(index < emitted[:, None], fed.positions, -1)\n"
        "    accepted = torch.minimum(verdict.accepted, emitted)\n"
        "    seen = replace(fed, positions=committed)\n"
        "    self.drafter.observe(Observation(seen, verdict.tokens, scored.features, accepted))",
        "if self.drafter.observes and k:\n"
        "    index = torch.arange(fed.positions.shape[1], device=emitted.device)\n"
        "    committed = torch.where(index < emitted[:, None], fed.positions, -1)\n"
        "    accepted = torch.minimum(verdict.accepted, emitted)\n"
        "    seen = replace(fed, positions=committed)\n"
        "    self.drafter.observe(Observation(seen, verdict.tokens, scored.features, accepted))",
        (OBSERVED,),
    ),
    Mutant(
        "a drafter observes no prompt", "prefill.feed", "drafter.observes", "False", (OBSERVED,)
    ),
    Mutant(
        "a state is that of the layer after",
        "CausalDecoder.hidden",
        "if layer in feature_ids:\n    streams[layer] = x",
        "if layer - 1 in layers:\n    streams[layer - 1] = x",
        (STATES,),
    ),
    Mutant(
        "the draft's positions are those of the longest row",
        "ops.batch_state.draft_positions",
        "lens[:, None] + ahead",
        "lens.amax().expand(len(lens))[:, None] + ahead",
        (WITNESS, EQUAL),
        trap=4,
    ),
    Mutant(
        "drafting has no mask",
        "ModelDrafter.propose",
        "Window(tokens, positions, span)",
        (
            "Window(tokens, torch.where(positions < 0, -1, positions + (span - 1 - "
            "positions[:, -1:])), span)"
        ),
        (EQUAL,),
        trap=5,
    ),
    Mutant(
        "rows that do not draft write over position 0 of the draft's cache",
        "ops.batch_state.draft_positions",
        "torch.where(ahead + 1 < lengths[:, None], here, -1)",
        "torch.where(ahead + 1 < lengths[:, None], here, 0)",
        (ALONE, WITNESS),
        trap=5,
    ),
    Mutant(
        "the draft's cache lacks a token after full acceptance",
        "ModelDrafter.propose",
        "batch_state.last(sequences, 2)",
        "batch_state.last(sequences, 1)",
        (EQUAL,),
        trap=8,
    ),
    Mutant(
        "the draft reports its raw distribution",
        "Chain.drawn",
        "probs.append(at)",
        "probs.append(logits[:, 0].softmax(-1))",
        (WARPS,),
        trap=10,
    ),
    Mutant(
        "the draft reports each distribution with the drawn token in its history",
        "Chain.drawn",
        "drafted[:, i] = self.draw(at, noise, i)",
        (
            "drafted[:, i] = self.draw(at, noise, i)\n"
            "probs[-1] = self.warp(logits, sequences.history(drafted[:, :i + 1]))[:, 0]"
        ),
        (WARPS,),
        trap=10,
    ),
    Mutant(
        "the draft is drawn from five tokens and reports the distribution of all",
        "Chain.drawn",
        "self.draw(at, noise, i)",
        ("self.draw(torch.where(at < at.topk(min(5, at.shape[1]))[0][:, -1:], 0, at), noise, i)"),
        (REGISTERED,),
        trap=10,
    ),
    Mutant(
        "the draft takes the mode and reports the distribution",
        "Chain.drawn",
        "self.draw(at, noise, i)",
        "at.argmax(-1)",
        (WARPS,),
        trap=10,
    ),
    Mutant(
        "a drafted token is retracted because it is improbable",
        "Chain.drawn",
        "own = logits[:, 0].to(torch.promote_types(logits.dtype, torch.float32)).softmax(-1)",
        (
            "doubtful = at.gather(1, drafted[:, i:i + 1])[:, 0] < 0.3\n"
            "lengths = torch.where(doubtful, lengths.clamp(max=i), lengths)\n"
            "own = logits[:, 0].to(torch.promote_types(logits.dtype, torch.float32)).softmax(-1)"
        ),
        (RULED, WARPS),
        trap=12,
    ),
    Mutant(
        "finished rows count in the batch's maximum",
        "BatchAdaptive.update",
        "feedback.accepted[feedback.active]",
        "feedback.accepted",
        (POLICIES,),
        trap=15,
    ),
    Mutant(
        "the draft's history lacks its own tokens",
        "Chain.drawn",
        "drafted[:, :i]",
        "drafted[:, :0]",
        (EQUAL,),
    ),
    Mutant(
        "a stop rule ends the draft one token late",
        "Chain.drawn",
        "lengths.clamp(max=i + 1)",
        "lengths.clamp(max=i + 2)",
        (STOPS,),
    ),
    Mutant(
        "a stop rule takes back the token at which it fires, if that was improbable",
        "Chain.drawn",
        "lengths.clamp(max=i + 1)",
        (
            "torch.where(own.gather(1, drafted[:, i:i + 1])[:, 0] < 0.3, lengths.clamp(max=i), "
            "lengths.clamp(max=i + 1))"
        ),
        (RULED,),
        trap=12,
    ),
    Mutant(
        "a drafted token below the threshold is no longer drafted",
        "Chain.drawn",
        "torch.where(ends, lengths.clamp(max=i + 1), lengths)",
        (
            "torch.where(own.gather(1, drafted[:, i:i + 1])[:, 0] < 0.4, lengths.clamp(max=i), "
            "lengths)"
        ),
        (RULED,),
        trap=12,
    ),
    Mutant(
        "a stop rule is asked about the warped distribution",
        "Chain.drawn",
        "logits[:, 0].to(torch.promote_types(logits.dtype, torch.float32)).softmax(-1)",
        "at",
        (STOP_LAWS,),
    ),
    Mutant(
        "a stop rule ends the drafts of the whole batch",
        "Chain.drawn",
        "self.stop_rule(own, i)",
        "self.stop_rule(own, i).any().expand(len(own))",
        (STOP_LAWS,),
    ),
    Mutant(
        "AdaEDL's bound has gamma outside its root",
        "Entropy.__call__",
        "math.sqrt(self.gamma)",
        "self.gamma",
        (RULES,),
    ),
    Mutant(
        "ngram proposes one token that is not committed",
        "Ngram.propose",
        "torch.where(at >= 0, lens - 1 - at, 0)",
        "torch.where(at >= 0, lens - at, 0)",
        (DRAFTERS,),
    ),
    Mutant(
        "ngram takes a row's own end for an occurrence",
        "Ngram.latest",
        "position < lens[:, None] - 1",
        "position < lens[:, None]",
        (DRAFTERS,),
    ),
    Mutant(
        "a suffix draft is the latest of the longest matches, however rare",
        "SuffixDrafter.propose",
        "member.sum(2, keepdim=True).clamp(min=1)",
        "total.sum(2).clamp(min=1)",
        (DRAFTERS,),
    ),
    Mutant(
        "earlier texts are searched up to the span of the present ones",
        "SuffixDrafter.searched",
        "self.texts.flatten(0, 1)[None], self.ends.flatten()[None]",
        "self.texts.flatten(0, 1)[None, :, :span], self.ends.flatten()[None].clamp(max=span)",
        (DRAFTERS,),
    ),
    Mutant(
        "a replayed script is one token behind",
        "ReplayDrafter.propose",
        "lens[:, None] + torch.arange(k, device=lens.device)",
        "lens[:, None] - 1 + torch.arange(k, device=lens.device)",
        (DRAFTERS,),
    ),
    Mutant(
        "a model is not told what another drafter proposed",
        "EnsembleDrafter.propose",
        "feed(drafter, sequences, known, merged.lengths - own.lengths, span)",
        "() and feed(drafter, sequences, known, merged.lengths - own.lengths, span)",
        (FED, AFTER),
    ),
    Mutant(
        "every part of an ensemble drafts for every row",
        "EnsembleDrafter.propose",
        "torch.where(draft.lengths != 0, 0, requested)",
        "requested",
        (DRAFTERS,),
    ),
    Mutant(
        "an ensemble reports no distribution for a sure token",
        "merge",
        "torch.zeros_like(draft.probs).scatter(2, known, 1.0)",
        "torch.zeros_like(draft.probs)",
        (DRAFTERS,),
    ),
    Mutant(
        "a draft is taken though it is not finite",
        "ops.batch_state.distribution_flags",
        "NOT_FINITE * (counts & ~finite).any(1)",
        "0 * (counts & ~finite).any(1)",
        (INVALID,),
    ),
    Mutant(
        "a draft is taken though a probability is negative",
        "ops.batch_state.distribution_flags",
        "NEGATIVE * (finite & (least < 0)).any(1)",
        "0 * (finite & (least < 0)).any(1)",
        (INVALID,),
    ),
    Mutant(
        "a draft is taken though it does not sum to 1",
        "ops.batch_state.distribution_flags",
        "(total - 1).abs() > TOLERANCE",
        "(total - 1).abs() > 9",
        (INVALID,),
    ),
    Mutant(
        "a draft is taken though a token is beyond the vocabulary",
        "ops.batch_state.valid_part",
        "tokens >= vocab",
        "tokens > vocab",
        (INVALID,),
    ),
    Mutant(
        "a draft is taken though a token is negative",
        "ops.batch_state.valid_part",
        "(tokens < 0) | (tokens >= vocab)",
        "(tokens < -1) | (tokens >= vocab)",
        (INVALID,),
    ),
    Mutant(
        "a draft is taken though a token has the probability 0",
        "ops.batch_state.valid_part",
        "IMPOSSIBLE_TOKEN * impossible.any(1)",
        "0 * impossible.any(1)",
        (INVALID,),
    ),
    Mutant(
        "a draft is taken though a length is negative",
        "ops.batch_state.valid_part",
        "(own < 0) & (requested > 0)",
        "(own < -99) & (requested > 0)",
        (INVALID,),
    ),
    Mutant(
        "what stands beyond a row's length is checked",
        "ops.batch_state.distribution_flags",
        "finite = counts & total.isfinite()",
        "counts = counts | True\nfinite = counts & total.isfinite()",
        (f"{INVALID}::test_what_stands_beyond_a_rows_length_changes_nothing",),
    ),
)
