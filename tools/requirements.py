"""Print, one a line, the requirements of navira and of the named extras, from settings.ini.

    python tools/requirements.py eval dev
"""
import re, sys
from configparser import ConfigParser
from pathlib import Path

root = Path(__file__).resolve().parent.parent

def name(req):
    "`nbdev==2.4.14` -> `nbdev`"
    return re.match(r'[\w.-]+', req)[0].lower().replace('_', '-')

def requirements(*extras):
    "What navira and these extras ask for, in the order of settings.ini"
    ini = ConfigParser(delimiters=['='])
    ini.read(root/'settings.ini', encoding='utf-8')
    cfg = ini['DEFAULT']
    return [r for key in ['requirements', *(f'{e}_requirements' for e in extras)] for r in cfg[key].split()]

if __name__ == '__main__': print('\n'.join(requirements(*sys.argv[1:])))
