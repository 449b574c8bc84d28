"""Packages that stand in for others. Put this folder first on PYTHONPATH and `import nni` finds ours."""
