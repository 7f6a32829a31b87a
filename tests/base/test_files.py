"""A file is there whole, or not at all."""
from navira.base.files import leftovers, atomic_write
from helpers.checkpoints import no_grad  # noqa: F401

def test_two_writers_of_one_file_do_not_share_a_temporary_one(tmp_path):
    with atomic_write(tmp_path / "x") as one, atomic_write(tmp_path / "x") as two:
        one.write_text("one"); two.write_text("two")
        assert one != two and leftovers(tmp_path) == []                                     # they are being written
    assert (tmp_path / "x").read_text() == "one" and [p.name for p in tmp_path.iterdir()] == ["x"]
