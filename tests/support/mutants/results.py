"""Defects of requests, texts, evaluations and reports."""

from support.mutants.killers import ANEW, BY_REPEAT, ENDED, LIKEST, PARTS, REPEATED, STOPPED
from support.mutants.mutant import Mutant

MEANWHILE = "unit/test_changed_meanwhile.py"
TURNS = "unit/test_eval_turns.py"
MUTANTS = (
    Mutant(
        "a cell is compared with autoregressive decoding at another batch",
        "work.HOW",
        (
            "('draft', 'draft_lora', 'draft_quantization', 'policy', 'drafter', 'stop_rule', "
            "'verifier', 'cache', "
            "'attention', 'cuda_graphs', *LIMITS)"
        ),
        (
            "('batch', 'draft', 'draft_lora', 'draft_quantization', 'policy', 'drafter', "
            "'stop_rule', "
            "'verifier', "
            "'cache', 'attention', 'cuda_graphs', *LIMITS)"
        ),
        (LIKEST,),
    ),
    Mutant(
        "every repeat is compared with the first one of autoregressive decoding",
        "_compared",
        "of_plain[number]",
        "of_plain[0]",
        (BY_REPEAT,),
    ),
    Mutant(
        "drafts of a repeat that did not end are kept",
        "resumed",
        (
            "[line for line in read_lines(folder / DRAFTS, DraftLine.from_json).values if "
            "line.repeat "
            "in lines.repeats]"
        ),
        "[line for line in read_lines(folder / DRAFTS, DraftLine.from_json).values]",
        (ANEW,),
    ),
    Mutant(
        "models of another dtype count as the same",
        "ModelSpec.key",
        "(self.checkpoint, str(self.device), self.dtype, *map(repr, others))",
        "(self.checkpoint, str(self.device), *map(repr, others))",
        ("unit/test_ablate_config.py::test_the_models_are_not_loaded_twice",),
    ),
    Mutant(
        "a parameter that is no strategy keeps the text of a command line",
        "resolve._argument",
        "typed(value, one.hint)",
        "value",
        ("unit/test_registry.py::test_the_ways_to_say_one_strategy",),
    ),
    Mutant(
        "repeats of rivals run back to back",
        "by_turns",
        "work if len(pairs) == 1 else pairs",
        "task.id",
        ("unit/test_ablate_turns.py::test_every_turn_is_run_once_and_rivals_take_turns",),
    ),
    Mutant(
        "results of an edited class are kept",
        "other_inputs",
        "then.get(name) != now.get(name)",
        "name not in then",
        (
            "unit/test_ablate_changed.py::test_what_has_changed_is_refused_and_redone_on_request_in_the_cells_that_depend_on_it",
        ),
    ),
    Mutant(
        "a stop string is found when its text is certain",
        "Transcript.push",
        "self._stream.ending(self._search.most_broken)",
        "''",
        (STOPPED,),
    ),
    Mutant(
        "tokens after the one that completes a stop string belong to the completion",
        "Transcript.push",
        "(count, piece)",
        "(len(tokens), piece)",
        (STOPPED,),
    ),
    Mutant(
        "what may be the beginning of a stop string is shown",
        "Transcript.push",
        "self._length_held - self._search.begun",
        "self._length_held",
        (STOPPED,),
    ),
    Mutant(
        "a stop string that ends in another's beginning is not found",
        "StopStrings._next",
        "child.longest or known.longest",
        "child.longest",
        (STOPPED,),
    ),
    Mutant(
        "a text ends before the last stop string in it",
        "StopStrings.read",
        "end - state.longest < first",
        "end - state.longest > first",
        (STOPPED,),
    ),
    Mutant(
        "a broken run of bytes keeps its first characters",
        "_ByteRun.text",
        ("if not self.last:\n    return self.characters"),
        ("if self.characters:\n    return self.characters"),
        (STOPPED,),
    ),
    Mutant(
        "broken bytes are certain up to any token",
        "TextStream._settled",
        "text.startswith(begun) and len(begun) < len(text)",
        "begun",
        (PARTS,),
    ),
    Mutant(
        "a repeated prompt has its first samples again",
        "requests_for",
        "first_sample + seen[tuple(prompt)]",
        "first_sample",
        (REPEATED,),
    ),
    Mutant(
        "a prompt that a cell repeats has its first samples again",
        "requests_for",
        "first_sample + seen[tuple(prompt)]",
        "seen[tuple(prompt)]",
        (
            "unit/test_ablate.py::test_a_prompt_that_a_cell_repeats_gets_the_samples_that_it_gets_in_one_call",
        ),
    ),
    Mutant(
        "problems of one prompt have the same samples",
        "evaluate._samples",
        "model.start(problem.prompt, RequestOptions(**options), first)",
        "model.start(problem.prompt, RequestOptions(**options))",
        (
            "unit/test_eval_runs.py::test_problems_of_one_prompt_get_the_samples_that_it_gets_in_one_call",
        ),
    ),
    Mutant(
        "one method of an evaluation always samples first",
        "evaluate.sample",
        "(*evaluation.methods[turn:], *evaluation.methods[:turn])",
        "evaluation.methods",
        (f"{TURNS}::test_methods_take_turns_problem_by_problem_also_after_an_interruption",),
    ),
    Mutant(
        "an output replaces a pipe",
        "write_atomically",
        "check_replaceable(path)",
        "pass",
        ("unit/test_report_output.py::test_a_pipe_in_the_place_of_a_plot_stays",),
    ),
    Mutant(
        "what a batch-wide drafter learned reaches the next call",
        "EngineCache.__init__",
        "graphs and parts.drafter.batch_invariant",
        "graphs",
        (
            "unit/test_engines.py::test_what_a_batch_wide_drafter_learned_does_not_reach_the_next_call",
        ),
    ),
    Mutant(
        "a closed generation is out of time",
        "Generation.result",
        'sample.reason or "interrupted"',
        'sample.reason or ("time" if self.run.time_budget else "interrupted")',
        (ENDED,),
    ),
    Mutant(
        "a time budget ends a sample without the text that was held back",
        "Generation._out_of_time",
        "sample.transcript.finish()",
        '""',
        (
            "unit/test_generation.py::test_the_last_events_of_a_time_budget_have_the_text_that_was_held_back",
        ),
    ),
    Mutant(
        "a budget's clocks are exchanged",
        "Sample.seconds",
        "self.from_start if clock == 'start' else self.from_prefill",
        "self.from_prefill if clock == 'start' else self.from_start",
        ("unit/test_eval_scores.py::test_the_budget_runs_from_either_clock",),
    ),
    Mutant(
        "pass@k draws with replacement",
        "pass_at_k",
        "float(np.prod(1.0 - k / np.arange(samples - passed + 1, samples + 1)))",
        "(1 - passed / samples) ** k",
        (
            "unit/test_eval_scores.py::test_pass_at_k_is_the_share_of_all_choices_of_k_samples_in_which_one_passes",
        ),
    ),
    Mutant(
        "samples count that were cut off by the time budget",
        "scores.within",
        "s.sample.finished and s.sample.seconds(clock) <= budget",
        "s.sample.seconds(clock) <= budget",
        (
            "unit/test_eval_scores.py::test_first_is_the_finished_sample_with_the_highest_mean_log_probability_and_all_is_any",
        ),
    ),
    Mutant(
        "a problem that lost a sample is taken for whole",
        "read_samples",
        "len((group := found.pop(line.task_id, []))) == line.end",
        "(group := found.pop(line.task_id, []))",
        ("unit/test_eval_runs.py::test_a_problem_that_lost_a_sample_is_sampled_again",),
    ),
    Mutant(
        "a score is kept for another text",
        "evaluate._identity",
        "digest(sample.text)",
        "digest('')",
        (
            "unit/test_eval_runs.py::test_scores_that_were_cut_off_or_are_of_another_text_are_made_again",
        ),
    ),
    Mutant(
        "few differences that are alike are a certainty",
        "mean_difference",
        "np.append(b - a, [1.0, -1.0])",
        "np.append(b - a, [0.0, 0.0])",
        (
            "unit/test_report_evaluation.py::test_two_equal_methods_are_told_apart_no_more_often_than_is_claimed",
            "unit/test_report_evaluation.py::test_few_differences_that_are_alike_are_no_certainty_and_many_are",
        ),
    ),
    Mutant(
        "a setting wins over one that decodes something else",
        "Cell.place",
        "f\"batch {self.batch}{self.work and f', {self.work}'}\"",
        "f'batch {self.batch}'",
        ("unit/test_report_summary.py::test_only_settings_that_decode_the_same_are_rivals",),
    ),
    Mutant(
        "what a label sets beside the way to decode is not looked at",
        "cells._works",
        "not is_shown(name)",
        "False",
        ("unit/test_report_work.py::test_cells_of_other_work_are_no_rivals_whatever_sets_it",),
    ),
    Mutant(
        "a verifier of one's own that is not lossless is not named",
        "claims",
        "not cell.lossless",
        "not cell.lossless and not cell.caveat",
        ("unit/test_report_work.py::test_every_verifier_that_is_not_lossless_is_named",),
    ),
    Mutant(
        "a speed-up is over autoregressive decoding with another target",
        "report.contrast.fastest_plain",
        "one.same_target == own.same_target",
        "True",
        (
            "unit/test_report_work.py::test_plain_decoding_of_another_target_is_a_rival_and_no_measure",
        ),
    ),
    Mutant(
        "one of two runs of other work is better",
        "Line._differs",
        "self.same_work and self.found is not None and self.found.beyond_noise",
        "self.found is not None and self.found.beyond_noise",
        ("unit/test_report_work.py::test_runs_of_other_work_are_told_apart_and_none_is_better",),
    ),
    Mutant(
        "what a class of one's own imports in a function is not looked at",
        "sources._imported",
        "ast.walk(tree)",
        "tree.body",
        ("unit/test_ablate_sources.py",),
    ),
    Mutant(
        "a module that is gone is no change",
        "other_inputs",
        "dict.fromkeys([*then, *now])",
        "dict.fromkeys(now)",
        ("unit/test_ablate_sources.py",),
    ),
    Mutant(
        "a lead that may be noise opens the page",
        "Winner._is_clear",
        "found is not None and found.clear",
        "found is not None",
        ("unit/test_report_summary.py::test_the_summary_opens_with_nothing_that_may_be_noise",),
    ),
    Mutant(
        "a setting that is not lossless is a rival of lossless ones",
        "Cell.place",
        "'' if self.entry.lossless else ', not lossless'",
        "''",
        (
            "unit/test_report_lossless.py::"
            "test_the_fastest_is_a_lossless_setting_and_no_sentence_compares_it_with_a_lossy_one",
        ),
    ),
    Mutant(
        "a faster machine makes a better run",
        "Line.of_machine",
        "bool(self.speeds.differ) or overlap",
        "False",
        ("unit/test_report_machine.py",),
    ),
    Mutant(
        "a lead over the second fastest is one over all",
        "Winner.clear",
        "not self.level",
        "self.second not in self.level",
        (
            "unit/test_report_unsure.py::"
            "test_a_lead_over_the_second_is_none_where_a_third_may_be_faster",
        ),
    ),
    Mutant(
        "copies of greedy decoding are independent values",
        "Cell.values",
        'self.summary.repeats if over == "repeats" else self.summary.prompts',
        "self.summary.repeats",
        ("unit/test_report_unsure.py::test_copies_of_greedy_decoding_make_nothing_beyond_noise",),
    ),
    Mutant(
        "a draft that nobody reached was rejected",
        "results.acceptance_by_position",
        "a / r if r else None",
        "a / r if r else 0.0",
        (
            "unit/test_results.py::test_acceptance_at_a_position_is_among_the_drafts_accepted_up_to_it",
        ),
    ),
    Mutant(
        "more is better of what is neither",
        "Line.verdict",
        "self.metric.better == 'neither'",
        "self.metric.better == 'nothing'",
        (
            "unit/test_report_summary.py::test_a_difference_is_better_worse_or_neither_as_its_metric_says",
        ),
    ),
    Mutant(
        "a file is truncated by who opens it to read",
        "ACCESSES",
        "ACCESS_MASK, ACCESSES = (3, (1, 2))",
        "ACCESS_MASK, ACCESSES = (3, (0, 1, 2))",
        ("unit/test_sandbox_strengths.py::test_a_file_that_may_be_read_cannot_be_truncated",),
    ),
    Mutant(
        "a file is opened without any access",
        "ACCESSES",
        "ACCESS_MASK, ACCESSES = (3, (1, 2))",
        "ACCESS_MASK, ACCESSES = (3, (1, 2, 3))",
        ("unit/test_sandbox_strengths.py::test_a_file_that_may_be_read_cannot_be_truncated",),
    ),
    Mutant(
        "Landlock does not handle truncation",
        "_FILE_RIGHTS",
        "{1: 13, 2: 14, 3: 15, 5: 16}",
        "{1: 13, 2: 14}",
        ("unit/test_sandbox_strengths.py::test_landlock_alone_keeps_what_may_be_read_as_it_is",),
    ),
    Mutant(
        "a checker that says nothing has judged",
        "_layers",
        "'layers' not in reply",
        "False",
        ("unit/test_sandbox.py::test_a_checker_that_cannot_start_is_an_error_and_no_score",),
    ),
    Mutant(
        "the process with the program is not waited for",
        "_end",
        "os.waitpid(-process.pid, 0)",
        "raise ChildProcessError",
        ("unit/test_sandbox.py::test_no_process_is_left_to_whom_orphans_come",),
    ),
    Mutant(
        "a change of an input while a run lasts is not noticed",
        "Unchanged.changes",
        "other_inputs(self._then, now)",
        "[]",
        (f"{MEANWHILE}::test_a_replaced_checkpoint_fails_the_cells_that_read_it",),
    ),
    Mutant(
        "a model that was loaded from a changed file stays cached",
        "cells.check_inputs",
        "served.clear()",
        "pass",
        (
            f"{MEANWHILE}::test_a_model_that_was_loaded_from_a_changed_file_is_used_by_no_later_cell",
        ),
    ),
)
