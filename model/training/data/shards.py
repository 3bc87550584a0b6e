"""The shards of a training run, one after the other."""

import subprocess

from voxport.model.training.data.clips import Clip, Shard, read_shard, start_shard


class Shards:
    """Each shard serves `steps_per_shard` steps. The next one is made while one is used."""

    def __init__(self, steps_per_shard: int, varied: bool, seed: int):
        self._steps, self._varied, self._seed = steps_per_shard, varied, seed
        self._started: dict[int, subprocess.Popen[bytes]] = {}
        self._index, self._clips = -1, list[Clip]()

    def at(self, step: int) -> list[Clip]:
        """The clips of a step."""
        index = self.index(step)
        if index != self._index:
            self._start(index)
            self._index, self._clips = index, read_shard(self._started.pop(index))
            self._start(index + 1)
        return self._clips

    def index(self, step: int) -> int:
        """The number of the shard of a step."""
        return step // self._steps

    def _start(self, index: int) -> None:
        if index not in self._started:
            self._started[index] = start_shard(Shard(index, self._seed, varied=self._varied))
