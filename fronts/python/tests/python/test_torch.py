"""PyTorch, where it is installed."""

import io
import os
import socket

import fsspec
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed: `make test-long` has it")

import torch.distributed.checkpoint as checkpoint  # noqa: E402
import torch.multiprocessing  # noqa: E402
from torch.distributed.checkpoint import fsspec_filesystem  # noqa: E402

import weft  # noqa: E402
import weft.torch  # noqa: E402

SHARDS = 10
SAMPLES = 20


def decode(file):
    """Samples are four bytes each, read into a tensor."""
    samples = torch.empty(file.size() // 4, dtype=torch.int32)
    file.readinto(samples.numpy())
    return iter(samples)


@pytest.fixture
def shards(connection, folder):
    paths = [f"{folder}/shard-{number}" for number in range(SHARDS)]
    for number, path in enumerate(paths):
        first = number * SAMPLES
        connection.write_bytes(path, memoryview(torch.arange(first, first + SAMPLES, dtype=torch.int32).numpy()))
    return paths


def samples_of(loader):
    return [int(sample) for batch in loader for sample in batch]


def test_state_is_saved_and_loaded(name, connection, folder):
    state = {"weights": torch.randn(300, 300), "step": 7}
    with connection.open(f"{folder}/state.pt", "wb") as file:
        torch.save(state, file)
    with connection.open(f"{folder}/state.pt", "rb") as file:
        assert torch.equal(torch.load(file)["weights"], state["weights"])
    with fsspec.open(f"weft://{name}{folder}/state.pt", "rb") as file:
        assert torch.load(io.BytesIO(file.read()))["step"] == 7


def test_distributed_checkpoints_are_written_and_read(name, folder):
    state = {"weights": torch.randn(100, 50), "more": {"bias": torch.randn(50)}}
    url = f"weft://{name}{folder}/checkpoint"
    checkpoint.save(state, storage_writer=fsspec_filesystem.FsspecWriter(url, thread_count=2))
    other = {"weights": torch.zeros(100, 50), "more": {"bias": torch.zeros(50)}}
    checkpoint.load(other, storage_reader=fsspec_filesystem.FsspecReader(url))
    assert torch.equal(other["weights"], state["weights"])
    assert torch.equal(other["more"]["bias"], state["more"]["bias"])


@pytest.mark.parametrize("workers, start", [(0, None), (3, "fork"), (2, "spawn")])
def test_each_sample_comes_once_from_any_number_of_workers(name, shards, workers, start):
    dataset = weft.torch.ShardDataset(name, shards, decode)
    loader = torch.utils.data.DataLoader(dataset, 7, num_workers=workers, multiprocessing_context=start)
    assert sorted(samples_of(loader)) == list(range(SHARDS * SAMPLES))
    assert sorted(samples_of(loader)) == list(range(SHARDS * SAMPLES)), "again"


def test_epochs_have_orders_of_their_own(name, shards):
    dataset = weft.torch.ShardDataset(name, shards, decode, shuffle=True, seed=3)
    first = [int(sample) for sample in dataset]
    assert first == [int(sample) for sample in dataset]
    dataset.set_epoch(1)
    other = [int(sample) for sample in dataset]
    assert first != other and sorted(first) == sorted(other)


def rank(number, world, port, name, shards, results):
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    torch.distributed.init_process_group("gloo", rank=number, world_size=world)
    dataset = weft.torch.ShardDataset(name, shards, decode)
    results.put((number, dataset.paths, [int(sample) for sample in dataset]))
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


def test_ranks_divide_the_files(name, shards):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    results = torch.multiprocessing.get_context("spawn").SimpleQueue()
    torch.multiprocessing.spawn(rank, (3, port, name, shards, results), nprocs=3)
    told = sorted(results.get() for _ in range(3))
    assert sorted(len(paths) for _, paths, _ in told) == [3, 3, 4]
    assert sorted(path for _, paths, _ in told for path in paths) == shards
    assert sorted(sample for _, _, samples in told for sample in samples) == list(range(SHARDS * SAMPLES))
