"""Defects of reading folders: names, shards, adapters, families, and conversions of pickles."""

from support.mutants.mutant import Mutant

FOLDERS, LORA, CONVERT = "unit/test_folders.py", "unit/test_lora.py", "unit/test_convert.py"
MUTANTS = (
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
        "lora._updates",
        "math.sqrt(max(rank, 1)) if config.get('use_rslora') else max(rank, 1)",
        "max(rank, 1)",
        (f"{LORA}::test_an_adapter_is_merged_and_rounded_once",),
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
