"""The page on ablations: every config of the package and every setting is there."""

import re

from bass.experiments.config_files import shipped
from bass.runs import settings
from support.pages import ROOT

PAGE = (ROOT / "docs/ablations.md").read_text(encoding="utf-8")


def test_the_page_knows_every_shipped_config_and_every_key_of_its_own() -> None:
    assert set(re.findall(r"^\| `([a-z-]+)` \|", PAGE, re.M)) >= set(shipped())
    own = {"batch", "samples", "prompts", "num_prompts", "repeats", "warm_up", *settings.LIMITS}
    assert {f"`{name}`" for name in own} <= set(re.findall(r"`\w+`", PAGE))
    assert own <= set(settings.SETTINGS)
