"""Killed tasks come back, in every example that recovers in a way of its own."""

import traceback
from concurrent.futures import ThreadPoolExecutor

import pytest
import test_actor_learner
import test_behaviour
import test_cifar
import test_in_graph
import test_model_parallelism
import test_one_network
import test_tensorflow_2
import test_your_own

CASES = [  # the longest first
    (test_tensorflow_2.parameter_server_survives_the_loss_of_each_task,),
    (test_behaviour.local_state_survives, "DOWNPOUR"),
    (test_behaviour.local_state_survives, "AEAMSGD"),
    (test_model_parallelism.killed_tasks_come_back,),
    (test_actor_learner.killed_tasks_come_back,),
    (test_in_graph.killed_tasks_come_back, "averaged", 600),
    (test_in_graph.killed_tasks_come_back, "threads", 1000),
    (test_one_network.no_trial_is_lost_or_done_twice,),
    (test_behaviour.synchronous_training_survives,),
    (test_tensorflow_2.multi_worker_mirrored_starts_again_when_a_worker_is_lost, 0),
    (test_tensorflow_2.multi_worker_mirrored_starts_again_when_a_worker_is_lost, 1),
    (test_cifar.killed_ps_comes_back, "asynchronous"),
    (test_cifar.killed_ps_comes_back, "synchronous"),
    (test_your_own.killed_ps_comes_back_with_the_slots,),
]


@pytest.mark.slow("waits until killed tasks are back, in fourteen runs")
def test_killed_tasks_come_back(start):
    """Three runs at a time, since they mostly wait."""

    def failure(case) -> str:
        check, *arguments = case
        try:
            check(start, *arguments)
        except Exception:  # of one case; the others go on
            return f"{check.__module__}.{check.__name__}{arguments}\n{traceback.format_exc()}"
        return ""

    with ThreadPoolExecutor(3) as pool:
        failures = list(filter(None, pool.map(failure, CASES)))
    assert not failures, "\n\n".join(failures)
