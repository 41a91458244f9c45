"""The adapter for lm-evaluation-harness gives the scores of the harness's own Hugging Face model on
the embedded target.
"""

import json
import os
import warnings
from pathlib import Path
from typing import Any

import pytest

from bass import load, pair
from bass.experiments.lm_eval import lm_eval_model

DATA = os.environ.get("BASS_DATA")
CHOICE = """task: local_choice
dataset_path: json
dataset_kwargs: {{data_files: {{test: {data}}}}}
test_split: test
output_type: multiple_choice
doc_to_text: "Question: {{{{question}}}}\\nAnswer:"
doc_to_choice: ["{{{{good}}}}", "{{{{bad}}}}"]
doc_to_target: 0
metric_list: [{{metric: acc}}, {{metric: acc_norm}}]
"""
WRITING = """task: local_writing
dataset_path: json
dataset_kwargs: {{data_files: {{test: {data}}}}}
test_split: test
output_type: generate_until
doc_to_text: "def f(x):\\n    # {{{{question}}}}\\n"
doc_to_target: "{{{{good}}}}"
generation_kwargs: {{until: ["\\n\\n"], do_sample: false, max_gen_toks: 16}}
metric_list: [{{metric: exact_match}}, {{metric: bleu}}]
"""


def write_tasks(folder: Path) -> None:
    """A task of choice and one of writing, about six questions."""
    data = folder / "questions.jsonl"
    with (Path(str(DATA)) / "gsm8k_test.jsonl").open() as file:
        read = [json.loads(line) for line, _ in zip(file, range(6), strict=False)]
    rows = [
        {
            "question": r["question"],
            "good": r["answer"].split("\n")[0],
            "bad": "I do not know that.",
        }
        for r in read
    ]
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    for name, text in (("choice", CHOICE), ("writing", WRITING)):
        (folder / f"{name}.yaml").write_text(text.format(data=data))


@pytest.mark.nightly
@pytest.mark.skipif(DATA is None, reason="BASS_DATA names no folder of evaluation data")
def test_both_models_of_the_harness_score_alike(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the harness's and its dependencies' own
        lm_eval = pytest.importorskip("lm_eval", reason="the extra `lm-eval` is not installed")
        pytest.importorskip(
            "accelerate", reason="the harness's Hugging Face model needs accelerate: lm-eval[hf]"
        )
        from lm_eval.tasks import TaskManager  # pyright: ignore[reportMissingImports]

        for name in ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE"):
            monkeypatch.setenv(name, "1")
        write_tasks(tmp_path)
        tasks = TaskManager(include_path=str(tmp_path), include_defaults=False)

        def evaluated(model: Any, **options: Any) -> dict[str, Any]:
            names = ["local_choice", "local_writing"]
            return lm_eval.simple_evaluate(
                model=model,
                tasks=names,
                task_manager=tasks,
                log_samples=True,
                bootstrap_iters=0,
                **options,
            )

        ours = evaluated(lm_eval_model(load()))
        theirs = evaluated(
            "hf",
            model_args={"pretrained": str(pair.TARGET), "dtype": "float32"},
            device="cpu",
            batch_size=1,
        )
    for task, figures in theirs["results"].items():
        assert {
            k: v for k, v in ours["results"][task].items() if isinstance(v, float)
        } == pytest.approx({k: v for k, v in figures.items() if isinstance(v, float)})
    for a, b in zip(
        ours["samples"]["local_choice"], theirs["samples"]["local_choice"], strict=True
    ):
        for (logprob, greedy), (their_logprob, their_greedy) in zip(
            a["filtered_resps"], b["filtered_resps"], strict=True
        ):
            assert float(logprob) == pytest.approx(float(their_logprob), abs=1e-3)
            assert greedy == their_greedy
    for a, b in zip(
        ours["samples"]["local_writing"], theirs["samples"]["local_writing"], strict=True
    ):
        assert a["filtered_resps"] == b["filtered_resps"]
