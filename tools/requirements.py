"""Print, one a line, the requirements of navira and of the named extras, from settings.ini.

    python tools/requirements.py eval dev
"""
import sys
from order import settings

for key in ['requirements', *(f'{extra}_requirements' for extra in sys.argv[1:])]:
    print(*settings()[key].split(), sep='\n')
