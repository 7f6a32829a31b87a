"How large and how plain the house is: `make house`, or house.py FOLDER for one folder of it."
import ast, sys, tokenize
from collections import Counter
from order import root

PLAIN = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT,
         tokenize.ENDMARKER)
COMPREHENSIONS = ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp
FUNCTIONS = ast.FunctionDef, ast.AsyncFunctionDef

def tokens(path):
    "Tokens of code: no comments, no docstrings, so that packing makes nothing smaller"
    count, before = 0, None
    with path.open('rb') as f:
        for t in list(tokenize.tokenize(f.readline))[1:]:
            docstring = t.type == tokenize.STRING and (before is None or before in PLAIN)
            if t.type not in PLAIN and not docstring: count += 1
            if t.type != tokenize.COMMENT: before = t.type
    return count

def signs(node):
    "What a node of the syntax tree adds to the counts"
    if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == '__all__':
        yield from ['names in __all__'] * len(node.value.elts)
    if isinstance(node, ast.ImportFrom) and node.level:
        yield from ['private names imported' for a in node.names if a.name[0] == '_' != a.name[1]]
    if isinstance(node, ast.Call) and ast.unparse(node.func) in ('getattr', 'hasattr'):
        yield 'getattr, hasattr'
    if isinstance(node, ast.NamedExpr): yield 'walruses'
    if isinstance(node, FUNCTIONS) and node.end_lineno - node.lineno >= 40:
        yield 'functions over 40 lines'
    if isinstance(node, COMPREHENSIONS):
        inner = sum(isinstance(n, COMPREHENSIONS) for n in ast.walk(node)) - 1
        if inner: yield 'comprehensions in others'

def counts(folder):
    out = Counter()
    for path in (root/folder).rglob('*.py'):
        if path.name == '_modidx.py': continue
        text = path.read_text(encoding='utf-8')
        out['tokens'] += tokens(path)
        out['lines over 100'] += sum(len(line) > 100 for line in text.splitlines())
        out['modules over 350 lines'] += len(text.splitlines()) > 350
        for node in ast.walk(ast.parse(text)): out.update(signs(node))
    return out

if __name__ == '__main__':
    for name, n in counts(sys.argv[1] if sys.argv[1:] else 'navira').items():
        print(f'{n:9,}  {name}')
