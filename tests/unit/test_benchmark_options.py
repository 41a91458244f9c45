"""Benchmarks refuse bad options with one sentence, before they write or measure anything."""

import importlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
import torch

from unit.test_package import ROOT

CPU = ("--device", "cpu")
NOWHERE = "/nonexistent/x"
INTEGERS = ("0", "-1", "1.5", "nan", "", str(1 << 80))
NUMBERS = ("nan", "-1", "inf", "x")
REAL = "must be a number"
WHOLE = "must be an integer"

# of each benchmark: its options that are integers, and other numbers; then words and what is said
NUMERIC: dict[str, tuple[str, str]] = {
    "attention": ("windows batches contexts repeats", ""),
    "cold_start": ("k runs hidden layers", "seconds"),
    "cpu_pair": ("threads repeats prompts new-tokens", "temperature top-p"),
    "demo": ("threads rounds batches new-tokens seeds", ""),
    "families": ("batches hidden layers vocabulary new-tokens", ""),
    "fused_attention": ("keys repeats", ""),
    "gpu_pair": ("batches repeats new-tokens", "temperature top-p"),
    "gpu_step": ("batches", ""),
    "launches": ("links repeats", ""),
    "load": ("shards repeats threads hidden layers", "gigabytes seconds"),
    "paper": ("", ""),
    "policies": ("batches seeds", "acceptances ratio"),
    "quality": ("documents prompts new-tokens threads", ""),
    "quantized_step": ("k hidden layers repeats new-tokens prompt-length", "seconds"),
    "rounding": ("lengths batches prompts new-tokens hidden layers vocabulary", ""),
    "write_shapes": ("", ""),
}
WITH_DEVICE = (
    *("attention", "cold_start", "families", "gpu_pair", "load", "quality", "quantized_step"),
    "rounding",
)
NEED_CUDA = [name for name in (*WITH_DEVICE, "gpu_step") if name not in ("load", "quality")]
RESULTS = ("families", "gpu_pair", "gpu_step", "quantized_step", "rounding")
WORDS: list[tuple[str, tuple[str, ...], str]] = [
    ("cold_start", ("--shapes", "nope"), "invalid choice"),
    ("cold_start", ("--hidden", "7"), "a multiple of 64"),
    ("cold_start", ("--target", NOWHERE, "--draft", NOWHERE), "has no config.json"),
    ("cold_start", (*CPU, "--shapes", "codegen", "--hidden", "64"), "Llama's names"),
    ("families", ("--hidden", "200"), "a multiple of 128"),
    ("families", ("--new-tokens", "2000"), WHOLE),
    ("families", ("--families", "nope"), "invalid choice"),
    ("fused_attention", ("--keys", "600"), WHOLE),
    ("gpu_step", (*CPU, "--warm-up"), "without `--warm-up`"),
    ("gpu_step", (*CPU, "--quantization", "none", "nope"), "`nope`"),
    ("gpu_step", (*CPU, "--methods", "nope"), "Unknown policy `nope`"),
    ("paper", (*CPU, "--only", "shapes", "--quick"), "leave the others out of `--only`"),
    ("paper", CPU, "the experiments need a CUDA device"),
    *((name, ("--results", "/proc/x"), "`/proc` is no folder that can be") for name in RESULTS),
    ("load", ("--hidden", "128"), "need `--shapes 27b`"),
    ("policies", ("--acceptances", "1.5"), "from 0 to 1."),
    ("quality", ("--quantized", NOWHERE), "has no config.json"),
    ("quality", ("--target", NOWHERE), "has no config.json"),
    ("quantized_step", ("--hidden", "7"), "a multiple of 64"),
    ("quantized_step", (*CPU, "--pair", "opt", "--layers", "1"), "Llama's names"),
    ("quantized_step", (*CPU, "--formats", "mxfp4"), "is not measured in mxfp4"),
    ("quantized_step", (*CPU, "--pair", "gpt-oss", "--formats", "awq"), "of bf16, mxfp4."),
    ("quantized_step", (*CPU, "--new-tokens", "9000"), "8192 tokens or fewer together"),
    ("rounding", ("--dtype", "nope"), "invalid choice"),
    ("write_shapes", ("--nope",), "unrecognized arguments"),
    *((name, ("--device", "foo"), "must be `cpu` or `cuda`") for name in WITH_DEVICE),
    *((name, (), "there is no CUDA device here: give `--device cpu`") for name in NEED_CUDA),
    *(
        (name, ("--results", NOWHERE), "no folder that can be written to")
        for name in RESULTS
        if name != "gpu_step"
    ),
    *(
        (name, ("--folder", NOWHERE), "no folder that can be written to")
        for name in ("cold_start", "load", "quantized_step")
    ),
    *(
        (name, (f"--{option}={value}",), said)
        for name, options in NUMERIC.items()
        for kinds, values, said in zip(options, (INTEGERS, NUMBERS), (WHOLE, REAL), strict=True)
        for option in kinds.split()
        for value in values
    ),
]


@pytest.fixture(scope="module")
def benchmarks() -> Iterator[Path]:
    """Their folder, from which they import each other; on a machine without a GPU."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT / "benchmarks"))
        patch.setattr(torch.cuda, "is_available", lambda: False)
        yield ROOT / "benchmarks"


def test_every_benchmark_is_tried(benchmarks: Path) -> None:
    ends = 'if __name__ == "__main__":'
    found = {path.stem for path in benchmarks.glob("*.py") if ends in path.read_text("utf-8")}
    assert found == set(NUMERIC)
    for name in found:
        assert "cli.run(main)\n" in (benchmarks / f"{name}.py").read_text("utf-8"), name


@pytest.mark.parametrize("name", NUMERIC)
def test_bad_options_are_refused_with_one_sentence(
    benchmarks: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    script = importlib.import_module(name)
    cases = [(words, said) for one, words, said in WORDS if one == name]
    assert cases
    for words, said in cases:
        with pytest.raises(SystemExit) as ended:
            getattr(script, "parse", script.main)([*words])
        printed = capsys.readouterr()
        assert ended.value.code == 2, words
        assert printed.out == "", words
        assert printed.err.count("\n") == 1, (words, printed.err)
        assert said in printed.err, (words, printed.err)


@pytest.mark.parametrize("name", ["cpu_pair", "quality"])
def test_data_that_is_not_there_is_a_sentence(
    benchmarks: Path, name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    script = importlib.import_module(name)
    monkeypatch.delenv("BASS_DATA", raising=False)
    with pytest.raises(SystemExit, match="Set BASS_DATA to a folder with HumanEval"):
        script.main([])
    monkeypatch.setenv("BASS_DATA", str(tmp_path))
    with pytest.raises(SystemExit, match=r"has no HumanEval\.jsonl\.gz: set BASS_DATA"):
        script.main([])


def test_a_full_disk_and_other_files_are_named(benchmarks: Path, tmp_path: Path) -> None:
    load, parts = (importlib.import_module(name) for name in ("load", "gpu_parts"))
    with pytest.raises(SystemExit, match=r"take 1000000000\.0 GB, and .* on a larger disk"):
        load.main(["--gigabytes", "1e9", "--folder", str(tmp_path)])
    assert not [*tmp_path.iterdir()]
    for text in ("", "[]", "{}", '{"results": 1}'):
        (tmp_path / "found.json").write_text(text, encoding="utf-8")
        with pytest.raises(SystemExit, match=r"found.json` is no file of results"):
            parts.Results(tmp_path / "found.json", "cpu")


WAITS = """
import signal, sys, tempfile, time
import command_line as cli
signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in a shell's background
def main():
    with tempfile.TemporaryDirectory(dir=sys.argv[1]):
        print("ready", flush=True)
        time.sleep(60)
cli.run(main)
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_benchmark_that_is_ended_removes_its_files(
    benchmarks: Path, tmp_path: Path, number: signal.Signals
) -> None:
    started = subprocess.Popen(
        [sys.executable, "-c", WAITS, str(tmp_path)],
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(benchmarks), *sys.path])},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert started.stdout is not None
    assert started.stdout.readline() == "ready\n"
    assert [*tmp_path.iterdir()]
    started.send_signal(number)
    error = started.communicate(timeout=60)[1]
    assert not [*tmp_path.iterdir()]
    expected = (130, "Interrupted.\n") if number == signal.SIGINT else (143, "")
    assert (started.returncode, error) == expected


def test_an_error_of_bass_is_a_sentence(
    benchmarks: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from bass.errors import OptionError

    cli: ModuleType = importlib.import_module("command_line")

    def fails() -> None:
        raise OptionError("Give another.")

    with pytest.raises(SystemExit, match=r"^Give another\.$"):
        cli.run(fails)
    with pytest.raises(SystemExit) as ended:
        cli.run(lambda: None)
    assert not ended.value.code
