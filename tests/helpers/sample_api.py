"""What the tests of sample api share."""

import re

import pytest

import navira


def says(error, *parts):
    return pytest.raises(error, match='.*'.join(map(re.escape, map(str, parts))))


@pytest.fixture(scope='module')
def embedded():
    return navira.load()
