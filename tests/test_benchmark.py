"""The contenders of the benchmark that are not examples: their processes run to the end."""

import benchmark
import pytest


@pytest.mark.slow("two runs")
def test_contenders_that_are_not_examples_run(tmp_path):
    bare, strategy = tmp_path / "bare", tmp_path / "strategy"
    for folder in (bare, strategy):
        folder.mkdir()
    assert benchmark.bare_loop(100, bare)[benchmark.BARE] > 0
    assert benchmark.strategy(benchmark.STRATEGY, 100, strategy)[benchmark.STRATEGY] > 0
