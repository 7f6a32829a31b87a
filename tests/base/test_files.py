"""A file is there whole, or not at all."""
import errno, os

import pytest

from navira.base.files import atomic_folder, atomic_write, leftovers, NoRoom
from helpers.checkpoints import no_grad  # noqa: F401

def test_two_writers_of_one_file_do_not_share_a_temporary_one(tmp_path):
    with atomic_write(tmp_path / "x") as one, atomic_write(tmp_path / "x") as two:
        one.write_text("one"); two.write_text("two")
        assert one != two and leftovers(tmp_path) == []                                     # they are being written
    assert (tmp_path / "x").read_text() == "one" and [p.name for p in tmp_path.iterdir()] == ["x"]

@pytest.mark.parametrize('error', [RuntimeError('no'), KeyboardInterrupt(), OSError(errno.ENOSPC, 'full')])
def test_a_folder_is_the_old_one_or_the_new_one(tmp_path, error):
    "Whatever goes wrong, a Ctrl-C too; nothing is left beside it, and of the old one nothing in the new."
    folder = tmp_path / 'in' / 'model'
    for name in ('old', 'new'):
        with atomic_folder(folder) as temp: (temp / name).touch()
    with pytest.raises(NoRoom if isinstance(error, OSError) else type(error)), atomic_folder(folder) as temp:
        (temp / 'half').touch()
        raise error
    assert list(folder.parent.iterdir()) == [folder] and list(folder.iterdir()) == [folder / 'new']

def test_a_new_folder_is_as_open_as_any_other(tmp_path):
    (tmp_path / 'plain').mkdir()
    with atomic_folder(tmp_path / 'model'): pass
    assert (tmp_path / 'model').stat().st_mode == (tmp_path / 'plain').stat().st_mode

@pytest.mark.parametrize('write', [atomic_write, atomic_folder])
def test_a_place_that_cannot_be_written(tmp_path, write):
    (tmp_path / 'file').touch()
    with pytest.raises(ValueError, match='file: cannot be written .* expected a folder of yours'):
        with write(tmp_path / 'file' / 'x'): pass

def test_a_pipe_is_written_to_and_stays(tmp_path):
    os.mkfifo(tmp_path / 'pipe')
    reader = os.open(tmp_path / 'pipe', os.O_RDONLY | os.O_NONBLOCK)
    with atomic_write(tmp_path / 'pipe') as temp: temp.write_text('whole')
    assert (tmp_path / 'pipe').is_fifo() and os.read(reader, 9) == b'whole'
    os.close(reader)

@pytest.mark.parametrize('there', [True, False])
def test_a_link_stays_and_its_target_is_replaced(tmp_path, there):
    target, link = tmp_path / 'far' / 'target', tmp_path / 'link'
    target.parent.mkdir()
    if there: target.write_text('old')
    link.symlink_to('far/target')
    with atomic_write(link) as temp: temp.write_text('new')
    assert link.is_symlink() and target.read_text() == 'new'
