"""A process that renders one chat template, within limits of time and memory. `bass.text.chat` runs
it, and nothing imports it.

A template comes with a checkpoint. Jinja's sandbox prevents access to Python, but not a string of a
billion characters, which no thread can interrupt. Standard input: {"path", "template", "values",
"longest"} as JSON, where `values` is a list, of which each has a reply; standard output: a list of
{"text"}, or of {"invalid"} or {"refused"} with the reason. It imports nothing of bass, which would
take longer than its work.
"""

import json
import resource
import sys
from typing import Any

SECONDS, MEMORY = 1, 1 << 30  # of processor time; bytes of address space
LONGEST_REASON = 500  # characters


def environment() -> Any:
    """The functions and tags that `transformers` gives to templates, in Jinja's sandbox."""
    from datetime import datetime

    import jinja2
    import jinja2.ext
    import jinja2.nodes
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Generation(jinja2.ext.Extension):
        """`{% generation %}` marks the assistant's text, for training; the text is unchanged."""

        tags = {"generation"}  # noqa: RUF012  (Jinja's)

        def parse(self, parser: Any) -> Any:
            """The statements between the tags, in their own scope."""
            line = next(parser.stream).lineno
            body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            return jinja2.nodes.CallBlock(self.call_method("_said"), [], [], body).set_lineno(line)

        def _said(self, caller: Any) -> str:
            return caller()

    def raise_exception(message: str) -> None:
        raise jinja2.TemplateError(message)

    def tojson(
        value: Any,
        ensure_ascii: bool = False,
        indent: Any = None,
        separators: Any = None,
        sort_keys: bool = False,
    ) -> str:
        return json.dumps(
            value,
            ensure_ascii=ensure_ascii,
            indent=indent,
            separators=separators,
            sort_keys=sort_keys,
        )

    made = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols]
    )
    made.filters["tojson"] = tojson
    made.globals |= {
        "raise_exception": raise_exception,
        "strftime_now": lambda form: datetime.now().strftime(form),
    }
    return made


def rendered(template: str, values: dict[str, Any], longest: int) -> dict[str, str]:
    """The text, of at most `longest` characters, or the reason for an error."""
    import jinja2

    try:
        compiled = environment().from_string(template)
    except (jinja2.TemplateError, RecursionError, MemoryError) as error:
        return {"invalid": _reason(error)}
    written: list[str] = []
    size = 0
    try:
        for text in compiled.generate(values):
            written.append(text)
            size += len(text)
            if size > longest:
                raise OverflowError(f"it writes more than {longest:,} characters")
    except Exception as error:  # a template may raise anything
        written.clear()
        return {"refused": _reason(error)}
    return {"text": "".join(written)}


def _reason(error: Exception) -> str:
    if isinstance(error, MemoryError):
        return f"it takes more than {MEMORY >> 20} MiB"
    reason = " ".join(str(error).split()) or type(error).__name__
    return reason if len(reason) <= LONGEST_REASON else f"{reason[:LONGEST_REASON]}..."


def main() -> None:
    """Serve one request."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS + 1))
    requested = json.load(sys.stdin)
    sys.path += requested["path"]
    template, longest = requested["template"], requested["longest"]
    print(json.dumps([rendered(template, values, longest) for values in requested["values"]]))


if __name__ == "__main__":
    main()
