"""The catalogue of schemes, asynchronous, elastic and synchronous: in NumPy, under their formulas.

These classes are what this folder simulates, and what the tests compare real runs with.

w~ are the global parameters on the ps, w is a worker's copy: flat arrays, and products are
elementwise. g(w) is the gradient of the mean loss on a worker's next mini-batch, eta the rate, T
the window, s the staleness.

A scheme says what worker k sends after it has pulled w~ (`contribution`), and what the ps does with
it (`update`; `update_round`, if the workers wait for each other). `workers.py` says who waits for
whom. Make new arrays, do not change old ones in place: `pulled` is w~ itself, not a copy.
"""

import numpy as np


class Scheme:
    """What all schemes have.

    Args:
        flags: the command line; see `simulate.py`.
        gradient: `gradient(k, w)` is g(w) on worker k's next mini-batch.
        w: the initial parameters.
    """

    worker = "asynchronous"  # its workers' process in workers.py
    defaults: dict  # the flags of the scheme; a new name becomes a flag
    bits = 32  # what a pull or a push sends for each parameter

    def __init__(self, flags, gradient, w):
        self.flags, self.gradient, self.eta = flags, gradient, flags.learning_rate
        self.window = getattr(flags, "window", 1)

    def may_begin(self, k, finished):
        """Whether worker k may begin a step. `finished`: how many each worker has finished. Workers
        in synchronous rounds are not asked: they wait for a token."""
        return True

    def contribution(self, k, pulled):
        return self.gradient(k, pulled)

    def state(self):
        """What the ps keeps besides w~: its name in the checkpoint -> its value.

        For an array like w~, `slot` stands for `PARAMETER/slot` of each parameter, as TensorFlow's
        optimizers call them; a scalar has its full name.
        """
        return {}


class HogWild(Scheme):
    """push g(w);  w~ <- w~ - eta g

    Niu et al. 2011, arXiv 1106.5730."""

    defaults = {"learning_rate": 0.2}

    def update(self, w, g, s, pulled):
        """Returns the new w~. `s`: updates by others since this worker pulled `pulled`."""
        return w - self.eta * g


class StalenessAware(HogWild):
    """push g(w);  w~ <- w~ - (eta / max(1, s)) g

    Zhang et al. 2016, arXiv 1511.05950."""

    def update(self, w, g, s, pulled):
        return w - self.eta / max(1, s) * g


class StaleSynchronous(HogWild):
    """before its step t, wait until every worker has finished its step t - 1 - s;
    push g(w);  w~ <- w~ - eta g

    Ho et al. 2013. s is `--max_staleness`."""

    defaults = {"learning_rate": 0.2, "max_staleness": 3}

    def may_begin(self, k, finished):
        return finished[k] - min(finished) <= self.flags.max_staleness


class DCASGD(HogWild):
    """push g(w);  w~ <- w~ - eta (g + lambda g g (w~ - w));
    with --adaptive, M <- 0.95 M + 0.05 g g first, and lambda / sqrt(M + 1e-7) for lambda

    Zheng et al. 2017, arXiv 1609.08326, Algorithm 2 and section 6."""

    defaults = {"learning_rate": 0.2, "dc_lambda": 0.04, "adaptive": False}

    def __init__(self, flags, gradient, w):
        super().__init__(flags, gradient, w)
        self.M = np.zeros_like(w)

    def update(self, w, g, s, pulled):
        strength = self.flags.dc_lambda
        if self.flags.adaptive:
            self.M = 0.95 * self.M + 0.05 * g * g
            strength = strength / np.sqrt(self.M + 1e-7)
        return w - self.eta * (g + strength * g * g * (w - pulled))

    def state(self):
        return {"mean_square": self.M} if self.flags.adaptive else {}


class SparseEmbeddings(HogWild):
    """push g(w), 0 but for the rows of a batch;  G <- G + g g,  w~ <- w~ - eta g / sqrt(G);
    with --optimizer sgd, w~ <- w~ - eta g

    What Niu et al. 2011 made HogWild! for. G starts at 0.1, as in TensorFlow. A row that no batch
    names does not change, nor does its G. Not simulated: the problems of this folder are dense."""

    defaults = {"learning_rate": 0.1, "optimizer": "adagrad"}

    def __init__(self, flags, gradient, w):
        super().__init__(flags, gradient, w)
        self.G = np.full_like(w, 0.1)

    def update(self, w, g, s, pulled):
        if self.flags.optimizer == "sgd":
            return super().update(w, g, s, pulled)
        self.G = self.G + g * g
        return w - self.eta * g / np.sqrt(self.G)

    def state(self):
        return {} if self.flags.optimizer == "sgd" else {"Adagrad": self.G}


class AGN(HogWild):
    """T times w <- w - eta g_t;  push the mean a = (1/T) sum g_t;  w~ <- w~ - eta a

    Hermans et al. 2017, arXiv 1710.02368."""

    defaults = {"learning_rate": 0.2, "window": 10}

    def local_steps(self, k, pulled):
        """Returns sum g_t."""
        w, total = pulled, 0
        for _ in range(self.window):
            g = self.gradient(k, w)
            w, total = w - self.eta * g, total + g
        return total

    def contribution(self, k, pulled):
        return self.local_steps(k, pulled) / self.window


class PlainDownpour(AGN):
    """T times w <- w - eta g_t;  push the sum a = sum g_t;  w~ <- w~ - eta a

    What dist-keras calls DOWNPOUR."""

    def contribution(self, k, pulled):
        return self.local_steps(k, pulled)


class DownpourEasy(PlainDownpour):
    """T times w <- w - eta g_t;  push the sum a = sum g_t;
    G <- G + a a,  w~ <- w~ - eta a / sqrt(G)

    Dean et al. 2012 (DistBelief), section 4.1. G starts at 0.1, as in TensorFlow."""

    defaults = {"learning_rate": 0.05, "window": 10}

    def __init__(self, flags, gradient, w):
        super().__init__(flags, gradient, w)
        self.G = np.full_like(w, 0.1)

    def update(self, w, a, s, pulled):
        self.G = self.G + a * a
        return w - self.eta * a / np.sqrt(self.G)

    def state(self):
        return {"Adagrad": self.G}


class Downpour(DownpourEasy):
    """T times H <- H + g_t g_t,  w <- w - eta g_t / sqrt(H);  push and update as DownpourEasy

    Each worker keeps its H, which starts at 0.1. Adagrad in the local steps is our addition."""

    def __init__(self, flags, gradient, w):
        super().__init__(flags, gradient, w)
        self.H = [np.full_like(w, 0.1) for _ in range(flags.workers)]

    def local_steps(self, k, pulled):
        w, total = pulled, 0
        for _ in range(self.window):
            g = self.gradient(k, w)
            self.H[k] = self.H[k] + g * g
            w, total = w - self.eta * g / np.sqrt(self.H[k]), total + g
        return total


class DynamicSGD(AGN):
    """T times w <- w - eta g_t;  push d = w - w_pulled;  w~ <- w~ + d / (s + 1)

    Jiang et al., SIGMOD 2017; the rule is that of dist-keras' DynSGD."""

    def contribution(self, k, pulled):
        return -self.eta * self.local_steps(k, pulled)  # w - w_pulled

    def update(self, w, d, s, pulled):
        return w + d / (s + 1)


class AEASGD(Scheme):
    """push e = alpha (w - w~);  w~ <- w~ + e;  meanwhile, with x = w:
    w <- w - e;  T times w <- w - eta g(x), x <- w

    Zhang, Choromanska and LeCun 2015, arXiv 1412.6651, Algorithm 1. A worker keeps its w."""

    worker = "elastic"
    defaults = {"learning_rate": 0.2, "window": 10, "moving_rate": None}  # None: 0.9 / n
    momentum = 0.0  # AEAMSGD sets it

    def __init__(self, flags, gradient, w):
        super().__init__(flags, gradient, w)
        self.w = [w for _ in range(flags.workers)]
        self.v = [0 * w for _ in range(flags.workers)]

    def contribution(self, k, pulled):
        x, v = self.w[k], self.v[k]
        e = self.flags.moving_rate * (x - pulled)
        w = x - e
        for _ in range(self.window):
            v = self.momentum * v - self.eta * self.gradient(k, x + self.momentum * v)
            w = w + v
            x = w  # only the first gradient is taken before the force moves w
        self.w[k], self.v[k] = w, v
        return e

    def update(self, w, e, s, pulled):
        return w + e


class AEAMSGD(AEASGD):
    """As AEASGD, with the local step v <- delta v - eta g(x + delta v),  w <- w + v,  x <- w

    Zhang, Choromanska and LeCun 2015, arXiv 1412.6651, Algorithm 2."""

    defaults = {"learning_rate": 0.2, "window": 10, "moving_rate": None, "momentum": 0.9}

    def __init__(self, flags, gradient, w):
        super().__init__(flags, gradient, w)
        self.momentum = flags.momentum


class SynchronousSGD(Scheme):
    """push g(w), wait;  w~ <- w~ - eta / (n - b) sum_k g_k,  over the first n - b of n workers

    Chen et al. 2016, arXiv 1604.00981. b is `--backup_workers`."""

    worker = "synchronous"
    defaults = {"learning_rate": 0.4, "backup_workers": 0}

    def update_round(self, w, pushes):
        """Returns the new w~. `pushes`: worker -> its contribution to this round."""
        return w - self.eta / len(pushes) * sum(pushes.values())


class DifferentRates(SynchronousSGD):
    """push g(w), wait;  w~ <- w~ - sum_k eta_k g_k

    The update of Chen et al. 2016 with a rate for each worker."""

    defaults = {"learning_rate": 0.4, "learning_rates": None}  # None: each is eta / n

    def update_round(self, w, pushes):
        return w - sum(self.flags.learning_rates[k] * g for k, g in pushes.items())


class SignSGD(SynchronousSGD):
    """m_k <- beta m_k + (1 - beta) g(w);  push sign(m_k), wait;  w~ <- w~ - eta vote,
    the sign that most workers sent; if as many sent the other, that of the first of them

    Bernstein et al. 2018, 2019, arXiv 1802.04434, 1810.05291. beta is `--sign_momentum`; the sign
    of 0 is +1. A worker pulls the vote and applies it to its own w, which is always w~."""

    defaults = {"learning_rate": 0.001, "sign_momentum": 0.9}
    bits = 1

    def __init__(self, flags, gradient, w):
        super().__init__(flags, gradient, w)
        self.m, self.vote = [0 * w for _ in range(flags.workers)], 0 * w

    def contribution(self, k, pulled):
        beta = self.flags.sign_momentum
        self.m[k] = beta * self.m[k] + (1 - beta) * self.gradient(k, pulled)
        return np.where(self.m[k] >= 0, 1.0, -1.0)

    def update_round(self, w, pushes):
        self.vote = np.sign(sum(pushes.values()) + pushes[min(pushes)] / 2)
        return w - self.eta * self.vote

    def state(self):
        return {"vote": self.vote > 0}  # packed, eight to a byte


class SAGN(SynchronousSGD):
    """T times w <- w - eta g_t;  push the mean a_k = (1/T) sum g_t, wait;
    w~ <- w~ - (eta/n) sum_k a_k

    The synchronous form of Hermans et al. 2017, arXiv 1710.02368."""

    defaults = {"learning_rate": 0.4, "window": 5}
    local_steps, contribution = AGN.local_steps, AGN.contribution


class LocalSGD(SynchronousSGD):
    """T times w <- w - eta g_t;  push d_k = w - w_pulled, wait;  w~ <- w~ + (1/n) sum_k d_k

    Stich 2019, arXiv 1805.09767: w~ becomes the mean of the workers' w."""

    defaults = {"learning_rate": 0.2, "window": 10}
    local_steps, contribution = AGN.local_steps, DynamicSGD.contribution

    def update_round(self, w, pushes):
        return w + sum(pushes.values()) / len(pushes)


class InnerSteps(Scheme):
    """T times  i <- i + 1,  m <- b1 m + (1 - b1) g,  v <- b2 v + (1 - b2) g g,
    w <- w - eta (m^ / (sqrt(v^) + eps) + decay w),  m^ = m / (1 - b1^i),  v^ = v / (1 - b2^i)

    AdamW (Loshchilov and Hutter 2019, arXiv 1711.05101); with --inner sgd, w <- w - eta g. Each
    worker keeps its m, v and i."""

    defaults = {"learning_rate": 0.002, "window": 20, "inner": "adamw", "inner_beta1": 0.9,
                "inner_beta2": 0.99, "inner_epsilon": 1e-8, "weight_decay": 0.1,
                "outer_rate": 0.7, "outer_momentum": 0.9}  # fmt: skip

    def __init__(self, flags, gradient, w):
        super().__init__(flags, gradient, w)
        self.m, self.v = ([0 * w for _ in range(flags.workers)] for _ in range(2))
        self.i = [0] * flags.workers
        self.u = 0 * w

    def contribution(self, k, pulled):
        """Returns w_pulled - w."""
        w, f = pulled, self.flags
        for _ in range(self.window):
            g = self.gradient(k, w)
            if f.inner == "sgd":
                w = w - self.eta * g
                continue
            self.i[k] += 1
            self.m[k] = f.inner_beta1 * self.m[k] + (1 - f.inner_beta1) * g
            self.v[k] = f.inner_beta2 * self.v[k] + (1 - f.inner_beta2) * g * g
            m = self.m[k] / (1 - f.inner_beta1 ** self.i[k])
            v = self.v[k] / (1 - f.inner_beta2 ** self.i[k])
            w = w - self.eta * (m / (np.sqrt(v) + f.inner_epsilon) + f.weight_decay * w)
        return pulled - w


class DiLoCo(InnerSteps):
    """InnerSteps;  push d_k = w_pulled - w, wait;  D = 1 / (n - b) sum_k d_k;
    u <- mu u + D,  w~ <- w~ - rate (D + mu u)

    Douillard et al. 2023, arXiv 2311.08105, Algorithm 1. With --outer momentum,
    u <- mu u + D / eta,  w~ <- w~ - rate eta u:  SlowMo, Wang et al. 2019, arXiv 1910.00643."""

    worker = "synchronous"
    defaults = {**InnerSteps.defaults, "outer": "nesterov", "backup_workers": 0}

    def update_round(self, w, pushes):
        rate, mu = self.flags.outer_rate, self.flags.outer_momentum
        moved = sum(pushes.values()) / len(pushes)
        if self.flags.outer == "momentum":
            self.u = mu * self.u + moved / self.eta
            return w - rate * self.eta * self.u
        self.u = mu * self.u + moved
        return w - rate * (moved + mu * self.u)

    def state(self):
        return {"u": self.u}


class AsyncDiLoCo(InnerSteps):
    """InnerSteps;  push d = w_pulled - w;  B <- B + d;  at every N-th update
    u <- beta u + B / N,  w~ <- w~ - rate (beta u + d / N),  B <- 0;  else w~ <- w~ - rate d / N

    Liu et al. 2024, arXiv 2401.09135, with c = 0. N is `--delay_period`."""

    defaults = {**InnerSteps.defaults, "delay_period": None}  # None: n

    def __init__(self, flags, gradient, w):
        super().__init__(flags, gradient, w)
        self.B, self.number = 0 * w, 0

    def update(self, w, d, s, pulled):
        rate, beta, period = (
            self.flags.outer_rate, self.flags.outer_momentum, self.flags.delay_period
        )  # fmt: skip
        self.B, self.number = self.B + d, self.number + 1
        if self.number % period:
            return w - rate * d / period
        self.u = beta * self.u + self.B / period
        self.B = 0 * d
        return w - rate * (beta * self.u + d / period)

    def state(self):
        return {"B": self.B, "u": self.u}


SCHEMES = {
    "HogWild": HogWild,
    "Staleness-Aware": StalenessAware,
    "Stale-Synchronous-Parallel": StaleSynchronous,
    "DC-ASGD": DCASGD,
    "AGN": AGN,
    "Plain-DOWNPOUR": PlainDownpour,
    "DOWNPOUR-Easy": DownpourEasy,
    "DOWNPOUR": Downpour,
    "Dynamic-SGD": DynamicSGD,
    "AEASGD": AEASGD,
    "AEAMSGD": AEAMSGD,
    "Synchronous-SGD": SynchronousSGD,
    "Synchronous-SGD-different-learning-rates": DifferentRates,
    "Sign-SGD": SignSGD,
    "SAGN": SAGN,
    "Local-SGD": LocalSGD,
    "DiLoCo": DiLoCo,
    "Async-DiLoCo": AsyncDiLoCo,
}
