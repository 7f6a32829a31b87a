"""How large and how plain the house is, beside what it may be at most: `make house`. With folders,
as in `house.py navira/peers tests`, the tokens of code of each; with --list, what is counted."""
import ast, json, re, sys, tokenize
from collections import Counter, defaultdict
from io import BytesIO
import order

root = order.root
FUNCTIONS = ast.FunctionDef, ast.AsyncFunctionDef
PLAIN = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT,
         tokenize.ENDMARKER)
OTHER_PROTOCOLS = 'Task', 'KnowsRows'       # of tasks and of rules; all others are of models
PARSES = r"getsource|inspect\.stack|currentframe|__signature__|__annotations__|\.py'\)\.read_text"

def tokens(source):
    "Tokens of code: no comments, no docstrings, so that packing makes nothing smaller"
    count, before = 0, None
    for t in list(tokenize.tokenize(BytesIO(source.encode()).readline))[1:]:
        docstring = t.type == tokenize.STRING and (before is None or before in PLAIN)
        count += t.type not in PLAIN and not docstring
        if t.type != tokenize.COMMENT: before = t.type
    return count

def read(path): return path.read_text(encoding='utf-8')

def modules(folder):
    return sorted(p for p in (root/folder).rglob('*.py') if p.name != '_modidx.py')

def cells(nb, kind): return [''.join(c['source']) for c in json.loads(read(nb))['cells']
                             if c['cell_type'] == kind]

def in_modules(folder): return sum(tokens(read(p)) for p in modules(folder))

def outside_exports(nb):
    "Tokens of the code cells that export nothing; shell commands and magics are no code"
    code = [c for c in cells(nb, 'code') if not re.search(r'^#\| ?export', c, re.M)]
    return sum(tokens(re.sub(r'^[!%].*$', '', c, flags=re.M)) for c in code)

# --- of the package ---
def defined(tree):
    "Public functions and classes at the top of a module"
    names = {n.name for n in tree.body if isinstance(n, (*FUNCTIONS, ast.ClassDef))}
    return {name for name in names if name[0] != '_'}

def signs(tree):
    "What is counted in a syntax tree, and what it is"
    for n in ast.walk(tree):
        if isinstance(n, ast.Call) and ast.unparse(n.func) in ('getattr', 'hasattr'):
            yield 'getattr, hasattr', ast.unparse(n)
        if isinstance(n, FUNCTIONS) and n.end_lineno - n.lineno >= 40:
            yield 'functions over 40 lines', n.name
        if isinstance(n, ast.ClassDef) and n.name not in OTHER_PROTOCOLS:
            if 'Protocol' in map(ast.unparse, n.bases): yield 'protocols of a model', n.name
    for n in tree.body:
        if re.search(PARSES, ast.unparse(n)):
            yield 'places that parse source text', getattr(n, 'name', ast.unparse(n)[:40])

def imports(path):
    "Dotted names of what a module imports: `from ..base.files import x` as navira.base.files.x"
    package = path.relative_to(root).parent.parts
    for node in ast.walk(ast.parse(read(path))):
        if isinstance(node, ast.Import): yield from (a.name for a in node.names)
        elif isinstance(node, ast.ImportFrom):
            up = package[:len(package) - node.level + 1] if node.level else ()
            home = '.'.join([*up, *([node.module] if node.module else [])])
            yield from (f'{home}.{a.name}' for a in node.names)

def upward():
    "Imports of a module that stands below in tools/order.py: 'a <- b'"
    above = order.modules()
    for i, name in enumerate(above):
        path = root/'navira'/f'{name.replace(".", "/")}.py'
        names = [n.removeprefix('navira.') for n in imports(path) if n.startswith('navira.')]
        for m in above[i + 1:]:
            if any(n == m or n.startswith(m + '.') for n in names): yield f'{m} <- {name}'

def library():
    "{what: where it is} of the package"
    found, homes = defaultdict(list), defaultdict(list)
    for path in modules('navira'):
        where, tree = path.relative_to(root).as_posix(), ast.parse(read(path))
        for kind, what in signs(tree): found[kind].append(f'{where}: {what}')
        for name in defined(tree): homes[name].append(where)
        if len(read(path).splitlines()) > 350: found['modules over 350 lines'].append(where)
    found['names in two modules'] = [f'{k}: {v}' for k, v in sorted(homes.items()) if len(v) > 1]
    found['arrows upward'] = list(upward())
    return found

def signatures():
    import inspect
    from dataclasses import fields
    import navira
    from navira.core import Policy
    def named(f):
        return [k for k, p in inspect.signature(f).parameters.items() if p.kind != p.VAR_KEYWORD]
    return {'fields of Policy': [f.name for f in fields(Policy)],
            'parameters of load': named(navira.load), 'parameters of sample': named(navira.sample)}

# --- of the book ---
NO_PROSE = r'(?s)```.*?```|~~~.*?~~~|<[^>]*>|`[^`]*`|\$\$?.*?\$\$?|\]\([^)]*\)|^\s*\|.*?$|^#.*?$'
NAMES = (r'(?i)(?:tables?|figures?|eq\.?|equations?|sections?|algorithms?|chapters?|arxiv|python|'
         r'appendix)[ \n~]+[\d.]+(?:(?:,| and| to)[ \n][\d.]+)*')

def crowded(text):
    "Sentences of Markdown with more than two numbers; names such as Table 1 are none"
    prose = re.sub(NAMES, '', re.sub(NO_PROSE, ' ', text, flags=re.M))
    for sentence in re.split(r'(?<=[.!?:;])\s+|\n\s*\n|\n\s*[-*>] |\n\s*\d+\. ', prose):
        if len(re.findall(r'(?<![\w.\-])[-+]?\.?\d[\d,.]*', sentence)) > 2:
            yield ' '.join(sentence.split())

def front(nb):
    "A chapter or a page that a newcomer meets"
    return nb.parent.name in ('nbs', 'start')

def study(nb): return not front(nb) and not order.exports(nb)

def book():
    "{what: which} of the notebooks, and of the sentences of chapters, front pages and README"
    nbs = order.notebooks()
    pages = {order.room_of(nb): '\n\n'.join(cells(nb, 'markdown')) for nb in filter(front, nbs)}
    pages['README'] = read(root/'README.md')
    return {'notebooks': list(map(order.room_of, nbs)),
            'notebooks at the top of nbs': [p.stem for p in nbs if p.parent == order.nbs],
            'studies': list(map(order.room_of, filter(study, nbs))),
            'sentences with over two numbers': [f'{page}: {s}' for page, text in pages.items()
                                                for s in crowded(text)]}

AT_MOST = {     # issue 62; the closing note of an issue says why a number of it is exceeded
    'tokens of navira': 104_000, 'tokens of tests': 95_000,
    'tokens of notebooks outside exports': 125_000, 'notebooks': 100,
    'notebooks at the top of nbs': 9, 'studies': 10, 'getattr, hasattr': 30,
    'names in two modules': 8, 'protocols of a model': 1, 'places that parse source text': 0,
    'fields of Policy': 8, 'parameters of load': 8, 'parameters of sample': 12,
    'modules over 350 lines': 0, 'functions over 40 lines': 0, 'arrows upward': 0,
    'sentences with over two numbers': 0}

def table(list_too=False):
    "A line for each row of AT_MOST: what it is now, what it may be at most"
    found = library() | signatures() | book()
    now = {k: len(v) for k, v in found.items()}
    now |= {f'tokens of {d}': in_modules(d) for d in ('navira', 'tests')}
    now['tokens of notebooks outside exports'] = sum(map(outside_exports, order.notebooks()))
    print(f'{"":38}{"now":>9}{"at most":>10}')
    for what, most in AT_MOST.items():
        n = now.get(what, 0)
        print(f'{what:38}{n:9,}{most:10,}{"  over" * (n > most)}')
        for line in found.get(what, []) if list_too else (): print(f'    {line}')

if __name__ == '__main__':
    folders = [a for a in sys.argv[1:] if a != '--list']
    if not folders: table('--list' in sys.argv)
    for folder in folders:
        parts = Counter()
        for p in modules(folder): parts[p.relative_to(root/folder).parts[0]] += tokens(read(p))
        print(f'{sum(parts.values()):9,}  {folder}')
        for part, n in parts.most_common(): print(f'{n:9,}    {part}')
