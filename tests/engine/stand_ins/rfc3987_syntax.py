"""Stands in for a package that JupyterLab brings and jsonschema imports for a second: as if it were not installed."""

raise ImportError("not in tests")
