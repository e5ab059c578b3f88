"""The contenders of the benchmark that are no examples: their processes run to the end."""

import benchmark
import pytest


@pytest.mark.slow("two runs")
def test_contenders_that_are_no_examples_run(tmp_path):
    for contender in (
        lambda folder: benchmark.bare_loop(100, folder),
        lambda folder: benchmark.strategy(benchmark.STRATEGY, 100, folder),
    ):
        (folder := tmp_path / str(len(list(tmp_path.iterdir())))).mkdir()
        assert all(value > 0 for value in contender(folder).values())
