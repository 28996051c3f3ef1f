"""The test bed: a real Kubernetes with a real Volcano on one machine, built from source and gone without a trace.

`python tests/cluster/bed up` starts it, `Cluster` drives it from tests; docs/cluster-testbed.md is the page about it.
"""
