// What Many-Workers/schemes.py says of each scheme. Made by build/page_data.py.
export const FORMULAS = {
 "HogWild": {
  "formula": "push g(w); w~ <- w~ - eta g",
  "source": "Niu et al. 2011, arXiv 1106.5730.",
  "defaults": {
   "learning_rate": 0.2
  },
  "folder": true
 },
 "Staleness-Aware": {
  "formula": "push g(w); w~ <- w~ - (eta / max(1, s)) g",
  "source": "Zhang et al. 2016, arXiv 1511.05950.",
  "defaults": {
   "learning_rate": 0.2
  },
  "folder": false
 },
 "Stale-Synchronous-Parallel": {
  "formula": "before its step t, wait until every worker has finished its step t - 1 - s; push g(w); w~ <- w~ - eta g",
  "source": "Ho et al. 2013. s is `--max_staleness`.",
  "defaults": {
   "learning_rate": 0.2,
   "max_staleness": 3
  },
  "folder": true
 },
 "DC-ASGD": {
  "formula": "push g(w); w~ <- w~ - eta (g + lambda g g (w~ - w)); with --adaptive, M <- 0.95 M + 0.05 g g first, and lambda / sqrt(M + 1e-7) for lambda",
  "source": "Zheng et al. 2017, arXiv 1609.08326, Algorithm 2 and section 6.",
  "defaults": {
   "learning_rate": 0.2,
   "dc_lambda": 0.04,
   "adaptive": false
  },
  "folder": true
 },
 "AGN": {
  "formula": "T times w <- w - eta g_t; push the mean a = (1/T) sum g_t; w~ <- w~ - eta a",
  "source": "Hermans et al. 2017, arXiv 1710.02368.",
  "defaults": {
   "learning_rate": 0.2,
   "window": 10
  },
  "folder": true
 },
 "Plain-DOWNPOUR": {
  "formula": "T times w <- w - eta g_t; push the sum a = sum g_t; w~ <- w~ - eta a",
  "source": "What dist-keras calls DOWNPOUR.",
  "defaults": {
   "learning_rate": 0.2,
   "window": 10
  },
  "folder": false
 },
 "DOWNPOUR-Easy": {
  "formula": "T times w <- w - eta g_t; push the sum a = sum g_t; G <- G + a a, w~ <- w~ - eta a / sqrt(G)",
  "source": "Dean et al. 2012 (DistBelief), section 4.1. G starts at 0.1, as in TensorFlow.",
  "defaults": {
   "learning_rate": 0.05,
   "window": 10
  },
  "folder": true
 },
 "DOWNPOUR": {
  "formula": "T times H <- H + g_t g_t, w <- w - eta g_t / sqrt(H); push and update as DownpourEasy",
  "source": "Each worker keeps its H, which starts at 0.1. Adagrad in the local steps is our addition.",
  "defaults": {
   "learning_rate": 0.05,
   "window": 10
  },
  "folder": true
 },
 "Dynamic-SGD": {
  "formula": "T times w <- w - eta g_t; push d = w - w_pulled; w~ <- w~ + d / (s + 1)",
  "source": "Jiang et al., SIGMOD 2017; the rule is that of dist-keras' DynSGD.",
  "defaults": {
   "learning_rate": 0.2,
   "window": 10
  },
  "folder": true
 },
 "AEASGD": {
  "formula": "push e = alpha (w - w~); w~ <- w~ + e; meanwhile, with x = w: w <- w - e; T times w <- w - eta g(x), x <- w",
  "source": "Zhang, Choromanska and LeCun 2015, arXiv 1412.6651, Algorithm 1. A worker keeps its w.",
  "defaults": {
   "learning_rate": 0.2,
   "window": 10,
   "moving_rate": null
  },
  "folder": true
 },
 "AEAMSGD": {
  "formula": "As AEASGD, with the local step v <- delta v - eta g(x + delta v), w <- w + v, x <- w",
  "source": "Zhang, Choromanska and LeCun 2015, arXiv 1412.6651, Algorithm 2.",
  "defaults": {
   "learning_rate": 0.2,
   "window": 10,
   "moving_rate": null,
   "momentum": 0.9
  },
  "folder": true
 },
 "Synchronous-SGD": {
  "formula": "push g(w), wait; w~ <- w~ - eta / (n - b) sum_k g_k, over the first n - b of n workers",
  "source": "Chen et al. 2016, arXiv 1604.00981. b is `--backup_workers`.",
  "defaults": {
   "learning_rate": 0.4,
   "backup_workers": 0
  },
  "folder": true
 },
 "Synchronous-SGD-different-learning-rates": {
  "formula": "push g(w), wait; w~ <- w~ - sum_k eta_k g_k",
  "source": "The update of Chen et al. 2016 with a rate for each worker.",
  "defaults": {
   "learning_rate": 0.4,
   "learning_rates": null
  },
  "folder": true
 },
 "Sign-SGD": {
  "formula": "m_k <- beta m_k + (1 - beta) g(w); push sign(m_k), wait; w~ <- w~ - eta vote, the sign that most workers sent; if as many sent the other, that of the first of them",
  "source": "Bernstein et al. 2018, 2019, arXiv 1802.04434, 1810.05291. beta is `--sign_momentum`; the sign of 0 is +1. A worker pulls the vote and applies it to its own w, which is always w~.",
  "defaults": {
   "learning_rate": 0.001,
   "sign_momentum": 0.9
  },
  "folder": true
 },
 "SAGN": {
  "formula": "T times w <- w - eta g_t; push the mean a_k = (1/T) sum g_t, wait; w~ <- w~ - (eta/n) sum_k a_k",
  "source": "The synchronous form of Hermans et al. 2017, arXiv 1710.02368.",
  "defaults": {
   "learning_rate": 0.4,
   "window": 5
  },
  "folder": true
 },
 "Local-SGD": {
  "formula": "T times w <- w - eta g_t; push d_k = w - w_pulled, wait; w~ <- w~ + (1/n) sum_k d_k",
  "source": "Stich 2019, arXiv 1805.09767: w~ becomes the mean of the workers' w.",
  "defaults": {
   "learning_rate": 0.2,
   "window": 10
  },
  "folder": true
 },
 "DiLoCo": {
  "formula": "T times i <- i + 1, m <- b1 m + (1 - b1) g, v <- b2 v + (1 - b2) g g, w <- w - eta (m^ / (sqrt(v^) + eps) + decay w), m^ = m / (1 - b1^i), v^ = v / (1 - b2^i); push d_k = w_pulled - w, wait; D = 1 / (n - b) sum_k d_k; u <- mu u + D, w~ <- w~ - rate (D + mu u)",
  "source": "Douillard et al. 2023, arXiv 2311.08105, Algorithm 1. With --outer momentum, u <- mu u + D / eta, w~ <- w~ - rate eta u: SlowMo, Wang et al. 2019, arXiv 1910.00643.",
  "defaults": {
   "learning_rate": 0.002,
   "window": 20,
   "inner": "adamw",
   "inner_beta1": 0.9,
   "inner_beta2": 0.99,
   "inner_epsilon": 1e-08,
   "weight_decay": 0.1,
   "outer_rate": 0.7,
   "outer_momentum": 0.9,
   "outer": "nesterov",
   "backup_workers": 0
  },
  "folder": true
 },
 "Async-DiLoCo": {
  "formula": "T times i <- i + 1, m <- b1 m + (1 - b1) g, v <- b2 v + (1 - b2) g g, w <- w - eta (m^ / (sqrt(v^) + eps) + decay w), m^ = m / (1 - b1^i), v^ = v / (1 - b2^i); push d = w_pulled - w; B <- B + d; at every N-th update u <- beta u + B / N, w~ <- w~ - rate (beta u + d / N), B <- 0; else w~ <- w~ - rate d / N",
  "source": "Liu et al. 2024, arXiv 2401.09135, with c = 0. N is `--delay_period`.",
  "defaults": {
   "learning_rate": 0.002,
   "window": 20,
   "inner": "adamw",
   "inner_beta1": 0.9,
   "inner_beta2": 0.99,
   "inner_epsilon": 1e-08,
   "weight_decay": 0.1,
   "outer_rate": 0.7,
   "outer_momentum": 0.9,
   "delay_period": null
  },
  "folder": true
 }
};
