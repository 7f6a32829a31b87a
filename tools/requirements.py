"""Print, one a line, the requirements of navira and of the named extras, from settings.ini.

    python tools/requirements.py eval dev
"""
import sys
from order import settings

if __name__ == '__main__':
    keys = ['requirements', *(f'{extra}_requirements' for extra in sys.argv[1:])]
    for key in keys: print(*settings()[key].split(), sep='\n')
