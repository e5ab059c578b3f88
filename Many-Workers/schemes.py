"""Every scheme of the collection in NumPy, each under its formula.

w~ are the global parameters on the ps, w is a worker's copy: flat arrays. `gradient(k, w)` is the
gradient g(w) of the mean loss on worker k's next mini-batch. `push` is what worker k sends after it
has pulled w~, and `update` is what the ps does with it. `workers.py` says who waits for whom.
"""

import numpy as np


class HogWild:
    """push g(w);  w~ <- w~ - eta g

    Niu et al. 2011, arXiv 1106.5730."""

    defaults = {"learning_rate": 0.2}  # its own flags

    def __init__(self, flags, gradient, w):
        self.flags, self.gradient, self.eta = flags, gradient, flags.learning_rate
        self.window = getattr(flags, "window", 1)

    def push(self, k, pulled):
        return self.gradient(k, pulled)

    def update(self, w, a, s, pulled):
        """Returns the new w~. `s`: updates by others since this worker pulled `pulled`."""
        return w - self.eta * a


class StalenessAware(HogWild):
    """push g(w);  w~ <- w~ - (eta / max(1, s)) g

    Zhang et al. 2016, arXiv 1511.05950."""

    def update(self, w, a, s, pulled):
        return w - self.eta / max(1, s) * a


class DCASGD(HogWild):
    """push g(w);  w~ <- w~ - eta (g + lambda g g (w~ - w))

    Zheng et al. 2017, arXiv 1609.08326, Algorithm 2."""

    defaults = {"learning_rate": 0.2, "dc_lambda": 0.04}

    def update(self, w, a, s, pulled):
        return w - self.eta * (a + self.flags.dc_lambda * a * a * (w - pulled))


class AGN(HogWild):
    """T times w <- w - eta g_t;  push the mean a = (1/T) sum g_t;  w~ <- w~ - eta a

    Hermans et al. 2017, arXiv 1710.02368."""

    defaults = {"learning_rate": 0.2, "window": 10}

    def total(self, k, pulled):
        w, total = pulled, 0
        for _ in range(self.window):
            g = self.gradient(k, w)
            w, total = w - self.eta * g, total + g
        return total

    def push(self, k, pulled):
        return self.total(k, pulled) / self.window


class PlainDownpour(AGN):
    """T times w <- w - eta g_t;  push the sum a = sum g_t;  w~ <- w~ - eta a

    What dist-keras calls DOWNPOUR."""

    def push(self, k, pulled):
        return self.total(k, pulled)


class DownpourEasy(PlainDownpour):
    """push the sum a, as above;  G <- G + a a,  w~ <- w~ - eta a / sqrt(G);  G starts at 0.1

    Dean et al. 2012 (DistBelief), section 4.1."""

    defaults = {"learning_rate": 0.05, "window": 10}

    def __init__(self, flags, gradient, w):
        super().__init__(flags, gradient, w)
        self.G = 0 * w + 0.1

    def update(self, w, a, s, pulled):
        self.G = self.G + a * a
        return w - self.eta * a / np.sqrt(self.G)


class Downpour(DownpourEasy):
    """T times H <- H + g_t g_t,  w <- w - eta g_t / sqrt(H);  the rest as above

    Each worker keeps its H, which starts at 0.1."""

    def __init__(self, flags, gradient, w):
        super().__init__(flags, gradient, w)
        self.H = [0 * w + 0.1] * flags.workers

    def total(self, k, pulled):
        w, total = pulled, 0
        for _ in range(self.window):
            g = self.gradient(k, w)
            self.H[k] = self.H[k] + g * g
            w, total = w - self.eta * g / np.sqrt(self.H[k]), total + g
        return total


class DynamicSGD(AGN):
    """T times w <- w - eta g_t;  push d = w - w_pulled;  w~ <- w~ + d / (s + 1)

    Jiang et al., SIGMOD 2017; the rule is that of dist-keras' DynSGD."""

    def push(self, k, pulled):
        return -self.eta * self.total(k, pulled)

    def update(self, w, a, s, pulled):
        return w + a / (s + 1)


class AEASGD(HogWild):
    """push e = alpha (w - w~);  w~ <- w~ + e;  meanwhile, with x = w:
    w <- w - e;  T times w <- w - eta g(x), x <- w

    Zhang, Choromanska and LeCun 2015, arXiv 1412.6651, Algorithm 1. A worker keeps its w."""

    defaults = {"learning_rate": 0.2, "window": 10, "moving_rate": None}
    momentum = 0.0

    def __init__(self, flags, gradient, w):
        super().__init__(flags, gradient, w)
        self.w = [w] * flags.workers
        self.v = [0 * w] * flags.workers

    def push(self, k, pulled):
        x, v = self.w[k], self.v[k]
        e = self.flags.moving_rate * (x - pulled)
        w = x - e
        for _ in range(self.window):
            v = self.momentum * v - self.eta * self.gradient(k, x + self.momentum * v)
            x = w = w + v
        self.w[k], self.v[k] = w, v
        return e

    def update(self, w, a, s, pulled):
        return w + a


class AEAMSGD(AEASGD):
    """The same with v <- delta v - eta g(x + delta v),  w <- w + v  as a local step

    Algorithm 2."""

    defaults = {"learning_rate": 0.2, "window": 10, "moving_rate": None, "momentum": 0.9}

    def __init__(self, flags, gradient, w):
        super().__init__(flags, gradient, w)
        self.momentum = flags.momentum


class SynchronousSGD(HogWild):
    """push g(w), wait;  w~ <- w~ - eta / (n - b) sum_k g_k,  over the first n - b of n workers

    Chen et al. 2016, arXiv 1604.00981."""

    defaults = {"learning_rate": 0.4, "backup_workers": 0}

    def together(self, w, pushes):
        """Returns the new w~. `pushes`: what each worker k has pushed in this round."""
        return w - self.eta / len(pushes) * sum(pushes.values())


class DifferentRates(SynchronousSGD):
    """push g(w), wait;  w~ <- w~ - sum_k eta_k g_k"""

    defaults = {"learning_rate": 0.4, "learning_rates": None}

    def together(self, w, pushes):
        return w - sum(self.flags.learning_rates[k] * a for k, a in pushes.items())


class SAGN(SynchronousSGD, AGN):
    """T times w <- w - eta g_t;  push the mean a_k = (1/T) sum g_t, wait;
    w~ <- w~ - (eta/n) sum_k a_k"""

    defaults = {"learning_rate": 0.4, "window": 10}


class LocalSGD(SynchronousSGD, DynamicSGD):
    """T times w <- w - eta g_t;  push d_k = w - w_pulled, wait;  w~ <- w~ + (1/n) sum_k d_k

    Stich 2019, arXiv 1805.09767: w~ becomes the mean of the workers' w."""

    defaults = {"learning_rate": 0.2, "window": 10}

    def together(self, w, pushes):
        return w + sum(pushes.values()) / len(pushes)


SCHEMES = {
    "HogWild": HogWild,
    "Staleness-Aware": StalenessAware,
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
    "SAGN": SAGN,
    "Local-SGD": LocalSGD,
}
