"""Who reads what."""

import random

import pytest

from weft.placement import assign, local_bytes


def test_files_go_to_those_who_have_them():
    assert assign([[9, 0, 9, 0], [0, 9, 0, 9]]) == [[0, 2], [1, 3]]
    assert assign([[9, 9, 9, 9], [0, 0, 0, 0]]) == [[0, 1], [2, 3]], "all have the same number"
    assert assign([[9, 9, 5], [0, 8, 0]]) == [[0, 2], [1]], "the one with the most to gain first"
    assert assign([[], []]) == [[], []] and assign([]) == [] and assign([[0, 0, 0]]) == [[0, 1, 2]]
    with pytest.raises(ValueError):
        assign([[1], [1, 2]])


def test_each_file_is_given_once_and_none_has_two_more_than_another():
    choice = random.Random(7)
    for _ in range(300):
        workers, files = choice.randint(1, 9), choice.randint(0, 40)
        local = [[choice.choice([0, 0, 7, 100]) for _ in range(files)] for _ in range(workers)]
        given = assign(local)
        assert sorted(file for own in given for file in own) == list(range(files))
        assert max(map(len, given)) - min(map(len, given)) <= 1
        assert given == assign([list(own) for own in local])


def test_bytes_of_this_machine_are_counted(connection, folder):
    connection.write_bytes(f"{folder}/a", b"x" * 1000)
    connection.write_bytes(f"{folder}/b", b"")
    assert local_bytes(connection, [f"{folder}/a", f"{folder}/b"]) == [1000, 0]
