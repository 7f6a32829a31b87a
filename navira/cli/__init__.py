"The command line: `navira`, or `python -m navira.cli`. The modules imported here register their commands with `navira.cli.app`."
import signal
import sys

# Ctrl-C while this is imported ends the program without a traceback; `main` puts it back.
if sys.argv[0].rsplit('/')[-1] in ('navira', '-m') and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, signal.SIG_DFL)

from navira.cli import compare, experiments, generate, info, solve, training  # noqa: E402, F401
from navira.cli.app import main as main  # noqa: E402
