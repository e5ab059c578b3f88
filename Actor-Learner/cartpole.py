"""The game, and how an actor plays it: gymnasium and NumPy.

The policy is so small that a session call would take many times as long as the two matrix products
below (the notebook measures both). So an actor pulls the policy's arrays once per batch and
computes every move in NumPy.
"""

import gymnasium
import numpy as np

LONGEST = 500  # moves: CartPole-v1 ends an episode here. Each move earns a reward of 1.


def start(*numbers: int) -> tuple[gymnasium.Env, np.random.Generator]:
    """The game and a random generator for the moves, both seeded with `numbers`."""
    rng = np.random.default_rng(numbers)
    game = gymnasium.make("CartPole-v1")
    game.reset(seed=int(rng.integers(2**31)))
    return game, rng


def preferences(policy: list[np.ndarray], observation: np.ndarray) -> np.ndarray:
    """The policy's output for left and right, before the softmax.

    Args:
        policy: weights [4, hidden], biases [hidden], weights [hidden, 2], biases [2].
        observation: position, speed, angle, angular speed: [..., 4].

    Returns:
        [..., 2].
    """
    hidden = np.maximum(observation @ policy[0] + policy[1], 0)
    return hidden @ policy[2] + policy[3]


def episode(game: gymnasium.Env, choose) -> tuple[np.ndarray, np.ndarray]:
    """Plays until the pole falls or the cart leaves the track, for at most `LONGEST` moves.

    Args:
        game: CartPole-v1.
        choose: maps an observation to a move, 0 (left) or 1 (right).

    Returns:
        The observations, [moves, 4] float32, and the moves that followed them, [moves].
    """
    observations, actions, over = [], [], False
    observation, _ = game.reset()
    while not over:
        actions.append(choose(observation))
        observations.append(observation)
        observation, _, fallen, longest, _ = game.step(actions[-1])
        over = fallen or longest
    return np.array(observations, np.float32), np.array(actions)


def returns_to_go(moves: int, discount: float) -> np.ndarray:
    """G_t = 1 + discount G_{t+1}, from the last move (where G = 1) to the first; [moves]."""
    returns = np.ones(moves, np.float32)
    for t in reversed(range(moves - 1)):
        returns[t] += discount * returns[t + 1]
    return returns


def collect(game, policy: list[np.ndarray], flags, rng: np.random.Generator) -> dict:
    """Plays `--episodes` episodes, drawing each move from the policy, and joins them into a batch.

    Returns:
        `observations` [moves, 4], `actions` [moves], `returns_to_go` [moves], and `returns`
        [episodes]: the number of moves in each.
    """

    def draw(observation):
        left, right = preferences(policy, observation)
        return int(rng.random() < 1 / (1 + np.exp(left - right)))  # the probability of right

    played = [episode(game, draw) for _ in range(flags.episodes)]
    lasted = [len(actions) for _, actions in played]
    return {
        "observations": np.concatenate([observations for observations, _ in played]),
        "actions": np.concatenate([actions for _, actions in played]),
        "returns_to_go": np.concatenate([returns_to_go(n, flags.discount) for n in lasted]),
        "returns": lasted,
    }


def greedy_return(policy: list[np.ndarray], episodes: int, seed: int) -> float:
    """The mean return of the greedy policy, which always makes the more likely move."""
    game, _ = start(seed, 0)  # no actor uses this seed, so these episodes are new

    def best(observation):
        return int(np.argmax(preferences(policy, observation)))

    return float(np.mean([len(episode(game, best)[1]) for _ in range(episodes)]))
