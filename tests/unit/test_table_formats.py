"""A table in LaTeX."""

from typing import Any

from bass.report.table import Table
from bass.report.table_formats import latex


def test_latex_has_every_text_as_it_is() -> None:
    """Commands of LaTeX in labels and notes are text, and a row may begin with a bracket."""
    row: dict[str, Any] = {"tau": 1.0, "runs": 3, "exactness": "covered"}
    row |= {"tau_low": 0.5, "tau_high": 1.5, "seconds_per_token": 0.004}
    rows = [row | {"method": name} for name in ("[1, 2]", "*", "a|b", "<x> & y", "2--3")]
    tex = latex(Table("100 % of `--x_y`", ["method"], 0, rows, ["`bass table --help`", "odd ` 1"]))
    body = tex.partition(r"\endfoot")[2]
    starts = [line.partition(" & ")[0] for line in body.splitlines() if line.endswith(r"\\")]
    assert starts == [
        "{}[1, 2]",
        "{}*",
        r"a\textbar{}b",
        r"\textless{}x\textgreater{} \& y",
        "2-{}-3",
    ]
    assert r"\caption{100 \% of \texttt{-{}-x\_y}}" in tex
    assert r"\texttt{bass table -{}-help}" in tex
    assert "odd ` 1" in tex
    assert r"\begin{longtable}" in tex
    assert r"\shortstack[r]{ms per\\token}" in tex
    assert r"\begin{tabular}[t]{@{}r@{}}1.00\\(0.500 to 1.50)\end{tabular}" in tex
