"""`python -m support.mutants`: plant every defect in turn and say which test notices."""

from support.mutation import main

raise SystemExit(main())
