"""Defects of reading folders: names, shards, adapters, families, quantized checkpoints, and
conversions of pickles.
"""

from support.mutants.mutant import Mutant

FOLDERS, LORA, CONVERT = "unit/test_folders.py", "unit/test_lora.py", "unit/test_convert.py"
DAMAGED = "unit/test_quantized_damaged.py"
MUTANTS = (
    Mutant(
        "a quantized matrix may lack what its config requires",
        "Scheme._check",
        "role not in parts",
        "False",
        (f"{DAMAGED}::test_a_tensor_that_the_config_requires_is_missed",),
    ),
    Mutant(
        "any negative group of an input means that there is no order",
        "quantized.formats._groups_of",
        "(low, high) == (-1, -1)",
        "low < 0",
        (f"{DAMAGED}::test_groups_of_inputs_are_all_groups_or_all_minus_one",),
    ),
    Mutant(
        "codes of e4m3 that are no numbers become 480",
        "quantized.formats._check_numbers",
        "p.max() == NAN | SIGN or p.view(np.int8).max() == NAN",
        "False",
        (f"{DAMAGED}::test_every_code_is_looked_at",),
    ),
    Mutant(
        "negative codes of e4m3 on a GPU are not looked at",
        "layers.check_numbers",
        "(raw.amax() == NAN | SIGN) | (raw.view(torch.int8).amax() == NAN)",
        "raw.view(torch.int8).amax() == NAN",
        (f"{DAMAGED}::test_codes_that_are_no_numbers_are_found_after_loading",),
    ),
    Mutant(
        "the type of a quantized matrix's codes is not checked",
        "quantized.formats._matrix",
        "codes.kind == kind and len(codes.shape) == 2 and 0 not in codes.shape",
        "len(codes.shape) == 2 and 0 not in codes.shape",
        (f"{DAMAGED}::test_codes_of_another_type_are_refused_by_info_too",),
    ),
    Mutant(
        "groups of another size than the scales have are read",
        "quantized.formats._check_by_groups",
        "scale.kind in FLOATS and scale.shape == (groups, out)",
        "scale.kind in FLOATS",
        (f"{DAMAGED}::test_another_size_of_groups_is_refused_with_both_shapes",),
    ),
    Mutant(
        "the layout of GPTQ is read in one of its two fields",
        "quantized.configs.gptq",
        "_given(config, 'checkpoint_format', _given(config, 'format', 'gptq'))",
        "_given(config, 'checkpoint_format', 'gptq')",
        ("unit/test_stored_quantizations.py::test_the_layout_of_gptq_may_be_in_either_field",),
    ),
    Mutant(
        "a missing shard is not noticed without an index",
        "checkpoints.folder._complete",
        "[name for name in wanted if name not in held]",
        "[]",
        (f"{FOLDERS}::test_shards_need_no_index",),
    ),
    Mutant(
        "a head of another task may be anywhere in a name",
        "names.is_unused",
        "_HARMLESS.fullmatch(name)",
        "_HARMLESS.search(name)",
        (f"{FOLDERS}::test_tensors_that_could_change_the_result_are_an_error",),
    ),
    Mutant(
        "a family from outside reads every model_type",
        "families.family_of",
        "own is not None and own.config_type.model_type == name",
        "own is not None",
        (f"{FOLDERS}::test_a_family_from_outside_is_given_to_load_and_to_commands",),
    ),
    Mutant(
        "rslora divides by the rank",
        "LoraConfig.scale",
        "math.sqrt(rank) if self.raw.get('use_rslora') else rank",
        "rank",
        (f"{LORA}::test_an_adapter_is_merged_and_rounded_once",),
    ),
    Mutant(
        "a text counts as a flag of an adapter",
        "lora_config._is_flag",
        "isinstance(value, bool)",
        "True",
        (f"{LORA}::test_other_kinds_are_an_error",),
    ),
    Mutant(
        "an adapter's rank is that of its tensors, whatever its config says",
        "lora._updates",
        "(rank := stored[a].shape[0]) != (wanted := config.rank(module))",
        "False",
        (f"{LORA}::test_other_kinds_are_an_error",),
    ),
    Mutant(
        "a saved module of an adapter may be missing",
        "lora._updates",
        "not any(f'.{m}.' in f'.{n}' for n in names.whole)",
        "False",
        (f"{LORA}::test_other_kinds_are_an_error",),
    ),
    Mutant(
        "one of two matrices for one place wins",
        "_Sorted.doubled",
        "len(names) > 1",
        "False",
        (f"{LORA}::test_tensors_that_do_not_fit_are_an_error",),
    ),
    Mutant(
        "one of two updates of one tensor of the model wins",
        "Adapter.checked",
        "own in found",
        "False",
        (f"{LORA}::test_tensors_that_do_not_fit_are_an_error",),
    ),
    Mutant(
        "an adapter of a transposed matrix is not transposed",
        "Adapter.merged",
        "product.T if update.transposed else product",
        "product",
        (f"{LORA}::test_matrices_that_are_stored_transposed",),
    ),
    Mutant(
        "an adapter is merged in the type of the stored weights",
        "Adapter.merged",
        "part.float() + update.scale * (product.T if update.transposed else product)",
        "part + (update.scale * (product.T if update.transposed else product)).to(part.dtype)",
        (f"{LORA}::test_weights_in_16_bits_are_merged_in_float32",),
    ),
    Mutant(
        "a conversion runs the code of a pickle",
        "convert_process.tensors_of",
        "torch.load(path, map_location='cpu', weights_only=True, mmap=zipped)",
        "torch.load(path, map_location='cpu', weights_only=False, mmap=zipped)",
        (f"{CONVERT}::test_what_is_not_plain_tensors_is_refused_and_leaves_nothing",),
    ),
    Mutant(
        "views of one storage may be written without limit",
        "convert_process.tensors_of",
        "total > MOST_TIMES * size + MOST_MORE",
        "False",
        (f"{CONVERT}::test_what_is_not_plain_tensors_is_refused_and_leaves_nothing",),
    ),
    Mutant(
        "the process of a conversion may open a socket",
        "convert_process.confine",
        "lines += [(21, 0, 1, number), (6, 0, 0, 327681)]",
        "",
        (f"{CONVERT}::test_the_process_opens_no_socket_and_starts_no_program",),
    ),
    Mutant(
        "anybody's pull request is offered as a converted revision",
        "hub.converted",
        "one.author == CONVERTER and one.status != 'merged' and 'safetensors' in one.title",
        "one.status != 'merged' and 'safetensors' in one.title",
        (f"{CONVERT}::test_a_revision_that_the_hub_converted_is_offered",),
    ),
)
