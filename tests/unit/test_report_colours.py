"""The colours of a report's page, by numbers:

WCAG 2.2's contrast, and how they look to readers who lack a kind of cone.
"""

import itertools

import numpy as np
import pytest
from jaxtyping import Float

from bass.report.palette import DASHES, HATCHES, MARKERS, SERIES, asset, colours, themed

SCHEMES = ("light", "dark")
KINDS = ("accepted", "rejected", "correction", "bonus")
ALL_KINDS = (*KINDS, "plain", "unused")
# Machado, Oliveira and Fernandes (2009), severity 1, on linear RGB.
LACKING = {
    "protan": [
        [0.152286, 1.052583, -0.204868],
        [0.114503, 0.786281, 0.099216],
        [-0.003882, -0.048116, 1.051998],
    ],
    "deutan": [
        [0.367322, 0.860646, -0.227968],
        [0.280085, 0.672501, 0.047413],
        [-0.011820, 0.042940, 0.968881],
    ],
    "tritan": [
        [1.255528, -0.076749, -0.178779],
        [-0.078411, 0.930809, 0.147602],
        [0.004733, 0.691367, 0.303900],
    ],
}
TO_XYZ = [[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]]


def linear(colour: str) -> Float[np.ndarray, "3"]:
    """Linear RGB of #rrggbb."""
    value = np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    return np.where(value <= 0.04045, value / 12.92, ((value + 0.055) / 1.055) ** 2.4)


def contrast(a: str, b: str) -> float:
    """WCAG's ratio, 1 to 21."""
    dark, light = sorted(float(np.array(TO_XYZ[1]) @ linear(colour)) for colour in (a, b))
    return (light + 0.05) / (dark + 0.05)


def distance(a: str, b: str, lacking: str) -> float:
    """CIE 1976 distance of two colours as such a reader sees them; about 2 can just be told apart
    side by side.
    """

    def lab(colour: str) -> Float[np.ndarray, "3"]:
        xyz = (
            np.array(TO_XYZ)
            @ np.clip(np.array(LACKING[lacking]) @ linear(colour), 0, 1)
            / np.array([0.9505, 1, 1.089])
        )
        f = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
        return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])

    return float(np.linalg.norm(lab(a) - lab(b)))


def test_the_measures_are_those_of_their_authors() -> None:
    assert contrast("#000000", "#ffffff") == pytest.approx(21)
    assert contrast("#777777", "#ffffff") == pytest.approx(4.48, abs=0.01)
    assert distance("#ff0000", "#ff0000", "deutan") == 0
    assert distance("#b00020", "#4a6a00", "deutan") < 25 < distance("#0000ff", "#ffff00", "deutan")


@pytest.mark.parametrize("scheme", SCHEMES)
def test_text_can_be_read(scheme: str) -> None:
    c = colours(scheme)
    for text in ("ink", "faint", "focus"):
        assert contrast(c[text], c["page"]) >= 4.5, text
        assert contrast(c[text], c["panel"]) >= 4.5, text
    for kind in ALL_KINDS:
        assert contrast(c["ink"], c[f"{kind}-soft"]) >= 7, kind


@pytest.mark.parametrize("scheme", SCHEMES)
def test_borders_bars_and_lines_stand_out(scheme: str) -> None:
    c = colours(scheme)
    for kind in ALL_KINDS:
        assert contrast(c[kind], c["page"]) >= 3, kind
        assert contrast(c[kind], c["panel"]) >= 3, kind
        assert contrast(c[kind], c[f"{kind}-soft"]) >= 3, kind
    for name in SERIES:
        assert contrast(c[name], c["page"]) >= 3, name


@pytest.mark.parametrize("lacking", LACKING)
@pytest.mark.parametrize("scheme", SCHEMES)
def test_kinds_of_tokens_differ_for_colour_blind_readers_even_without_their_letters(
    scheme: str, lacking: str
) -> None:
    c = colours(scheme)
    for a, b in itertools.combinations(KINDS, 2):
        assert distance(c[a], c[b], lacking) >= 12, (a, b)


def test_what_has_a_colour_has_a_shape_of_its_own_too() -> None:
    assert len(set(MARKERS)) == len(set(DASHES)) == len(SERIES)
    assert len(set(HATCHES)) == len(HATCHES)
    borders = {
        kind: asset("report.css").split(f".token.{kind} {{")[1].split("}")[0] for kind in ALL_KINDS
    }
    told = {
        kind: tuple(style in rule for style in ("dashed", "double", "dotted", "border-radius"))
        for kind, rule in borders.items()
    }
    assert len({told[kind] for kind in (*KINDS, "unused")}) == 5


def test_both_schemes_name_the_same_colours_and_plots_use_them() -> None:
    assert colours("light").keys() == colours("dark").keys()
    c = colours()
    assert (
        themed(f"fill: {c['ink']}; stroke: {c['s7']}; x: #abcdef")
        == "fill: var(--ink); stroke: var(--s7); x: #abcdef"
    )
