from __future__ import annotations

import math
import random
from collections import Counter

from kernelwright.propose.bandit import RIGHT, Bandit, earned


def test_what_a_candidate_earns():
    assert earned(-math.inf, 2.0) == 0
    assert earned(1.0, 2.0) == RIGHT == earned(2.0, 2.0)
    assert RIGHT < earned(2.2, 2.0) < earned(3.0, 2.0) < earned(4.0, 2.0) == earned(9.0, 2.0) == 1.0
    assert earned(0.1, -math.inf) == 1.0, "the first that is right"


def play(worth, rounds: int = 200, seed: int = 0) -> Counter[str]:
    """Pulls by arm of the second half; `worth(arm, i)` is the chance to earn 0.5."""
    rng, bandit, pulls = random.Random(seed), Bandit(["a", "b", "c"]), Counter()
    for i in range(rounds):
        arm = bandit.ranked()[0]
        bandit.started(arm)
        pulls[arm] += i >= rounds // 2
        bandit.credit(arm, 0.5 if rng.random() < worth(arm, i) else 0.0)
    return pulls


def test_the_best_arm_gets_most_and_all_get_some():
    pulls = play(lambda arm, i: {"a": 0.05, "b": 0.9, "c": 0.05}[arm])
    assert pulls["b"] > 50 and min(pulls.values()) > 3


def test_it_notices_when_an_arm_dries_up():
    pulls = play(lambda arm, i: (arm == "a") * (i < 100) or (arm == "b") * (i >= 100) * 0.9, rounds=240)
    assert pulls["b"] > pulls["a"]


def test_tries_under_way_spread_the_choice():
    bandit = Bandit(["a", "b"])
    for _ in range(4):
        bandit.started(bandit.ranked()[0])
    assert bandit._pending == {"a": 2, "b": 2}
    bandit.withdraw("a")
    assert bandit.ranked()[0] == "a"


def test_unknown_and_removed_arms():
    bandit = Bandit(["a", "b"])
    bandit.credit("of an earlier run", 1.0)
    assert bandit.means() == {}
    bandit.remove("a")
    bandit.credit("a", 1.0)
    assert bandit.ranked() == ["b"]
