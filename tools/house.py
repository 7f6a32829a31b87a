"How large and how plain the house is, beside what it is to be: `make house`, or house.py FOLDER for one folder of it."
import ast, sys, tokenize
from pathlib import Path

PLAIN = tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER
COMPREHENSIONS = ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp
root = Path(__file__).resolve().parent.parent

def modules(folder): return [p for p in sorted((root/folder).rglob('*.py')) if p.name != '_modidx.py']

def tokens(path):
    "Tokens of code: no comments, no docstrings, so that packing makes nothing smaller"
    count, before = 0, None
    with path.open('rb') as f:
        for t in list(tokenize.tokenize(f.readline))[1:]:
            docstring = t.type == tokenize.STRING and (before is None or before in PLAIN)
            if t.type not in PLAIN and not docstring: count += 1
            if t.type != tokenize.COMMENT: before = t.type
    return count

def nodes(folder): return [n for p in modules(folder) for n in ast.walk(ast.parse(p.read_text(encoding='utf-8')))]

def nested(node): return any(isinstance(n, COMPREHENSIONS) for n in ast.walk(node) if n is not node)
def private(node): return sum(a.name.startswith('_') and not a.name.startswith('__') for a in node.names)
def named(node, names): return isinstance(node.func, ast.Name) and node.func.id in names
def length(node): return node.end_lineno - node.lineno + 1

def counts(folder):
    found = nodes(folder)
    texts = [p.read_text(encoding='utf-8').splitlines() for p in modules(folder)]
    def of(kind, keep=lambda n: True): return sum(isinstance(n, kind) and bool(keep(n)) for n in found)
    exported = [n for n in found if isinstance(n, ast.Assign) and getattr(n.targets[0], 'id', '') == '__all__']
    return {
        'tokens': sum(map(tokens, modules(folder))),
        'names in __all__': sum(len(n.value.elts) for n in exported),
        'private names imported': sum(private(n) for n in found if isinstance(n, ast.ImportFrom) and n.level),
        'getattr, hasattr': of(ast.Call, lambda n: named(n, ('getattr', 'hasattr'))),
        'lines over 100': sum(len(line) > 100 for text in texts for line in text),
        'comprehensions in others': of(COMPREHENSIONS, nested),
        'walruses': of(ast.NamedExpr),
        'modules over 350 lines': sum(len(text) > 350 for text in texts),
        'functions over 40 lines': of((ast.FunctionDef, ast.AsyncFunctionDef), lambda n: length(n) > 40)}

if __name__ == '__main__':
    for name, n in counts(sys.argv[1] if sys.argv[1:] else 'navira').items(): print(f'{n:9,}  {name}')
