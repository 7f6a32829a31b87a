"What the tests of the doors share."
import re

import pytest

def says(error, *parts):
    "Inside, `error` is raised, and its message has all parts in their order"
    return pytest.raises(error, match='.*'.join(map(re.escape, map(str, parts))))
