"""Rules that end a draft early, by the name under which `stop_rule=` finds them."""

STOP_RULES: dict[str, type] = {}
