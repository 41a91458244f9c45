"""`bass eval`: scores a pair on programming problems within time budgets, into a folder."""

import tempfile
from collections.abc import Sequence

from bass.api.options import LoadOptions
from bass.cli.options import Parser, build, console
from bass.experiments.settings import EvalOptions
from bass.option import help_of
from bass.progress import watched

EXAMPLES = (
    "bass eval small -n 8 --max-new-tokens 64 --temperature 0.6 --output runs/small",
    "bass eval humaneval --data FOLDER --target TARGET --draft DRAFT --output runs/humaneval",
    "bass eval mbpp.jsonl --methods batched plain single --limit 50",
)


def run(argv: Sequence[str]) -> int:
    """Evaluate, or continue an evaluation; prints two tables in Markdown."""
    about = "Scores a pair on programming problems: Pass@First and Pass@All in a time, and pass@k."
    command = Parser("eval PROBLEMS", about, EXAMPLES, EvalOptions, LoadOptions, skip=["problems"])
    command.add_argument("problems", type=str, help=help_of(EvalOptions)["problems"])
    command.add_argument("--output", type=str, metavar="FOLDER", help="of results, to continue too")
    config = command.read(argv)

    from bass.api.llm import serve
    from bass.api.plan import LoadPlan
    from bass.cli.generate import caveats
    from bass.experiments.pass_at_k import evaluate
    from bass.experiments.problems import read_problems
    from bass.experiments.provenance import files_of

    options, loading = build(EvalOptions, config), build(LoadOptions, config)
    plan = LoadPlan.of(loading)
    load = vars(loading) | {"files": files_of(plan, loading) | files_of(plan, options)}
    read_problems(options.problems, options.data)  # a wrong name is said before models are loaded
    llm = serve(plan)
    with tempfile.TemporaryDirectory() as temporary, watched() as watch:
        found = evaluate(llm, options, config.output or temporary, watch, load)
    print(found.to_text(), end="")
    for sentence in caveats(llm, [], options.temperature):
        console(stderr=True).print(sentence, style="bold red")
    return 0
