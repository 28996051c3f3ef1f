"""What runs inside a job: agent, gang, ranks and the training API.

Standard library, `slicelift.errors` and `slicelift.models` only, since this package travels into kernels that
have nothing else of slicelift; `model.py` (mlflow) and `warmup.py` (dvc) import theirs where they use them.
"""
