"""Operations: formula, torch version, and choice of kernel.

One file per family of operations. Each function documents its formula and shapes, has a torch
version, and uses a kernel if one supports the tensors. Nothing else imports `bass.kernels`.

    batch_state    what a step does to its rows: window, commit, report
    noise          counter-based random numbers
    sampling       logits to probabilities, the draw of a token, log-probabilities
    verification   accepted prefixes, residuals, verdicts
"""
