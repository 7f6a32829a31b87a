"""One table, written four ways: HTML, Markdown, LaTeX, and for a terminal."""
from navira.base.tables import tex
from helpers.figures import HOSTILE  # noqa: F401

def test_latex_braces_balance():
    for text in HOSTILE:
        bare = tex(text).replace(r'\{', '').replace(r'\}', '')
        assert bare.count('{') == bare.count('}')
