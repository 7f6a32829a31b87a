"""Print, one a line, the requirements of navira and of the named extras, from settings.ini.

    python tools/requirements.py eval dev
"""
import sys
from configparser import ConfigParser
from pathlib import Path

root = Path(__file__).resolve().parent.parent

def settings():
    ini = ConfigParser(delimiters=['='])
    ini.read(root/'settings.ini', encoding='utf-8')
    return ini['DEFAULT']

def requirements(*extras):
    "What navira and these extras ask for, in the order of settings.ini"
    cfg = settings()
    keys = ['requirements', *(f'{e}_requirements' for e in extras)]
    return ' '.join(cfg[k] for k in keys).split()

if __name__ == '__main__': print('\n'.join(requirements(*sys.argv[1:])))
