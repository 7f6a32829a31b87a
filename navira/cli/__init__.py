"""The command line: `navira`, or `python -m navira`. The modules imported here register their
commands with `navira.cli.app`."""
from navira.cli import compare, conformance, experiments, generate  # noqa: F401
from navira.cli import info, solve, training  # noqa: F401
from navira.cli.app import main as main
