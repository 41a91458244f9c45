"""The operations that everything else calls.

One file per family of operations. Each function says what it computes (formula, shapes), has the
plain torch version, and takes a kernel where one serves the tensors at hand. Nothing else imports
`bass.kernels`.

    batch_state    what a step does to its rows: window, commit, report
    noise          counter-based random numbers
    sampling       logits to probabilities, the draw of a token, log-probabilities
    verification   accepted prefixes, residuals, verdicts
"""
