// What Many-Workers/schemes.py says of each scheme. Made by build/page_data.py.
export const FORMULAS = {
 "HogWild": {
  "formula": "push g(w); w̃ ← w̃ - η g",
  "cite": "Niu et al. 2011",
  "defaults": {
   "learning_rate": 0.2
  },
  "folder": true
 },
 "Staleness-Aware": {
  "formula": "push g(w); w̃ ← w̃ - (η / max(1, s)) g",
  "cite": "Zhang et al. 2016",
  "defaults": {
   "learning_rate": 0.2
  },
  "folder": false
 },
 "Stale-Synchronous-Parallel": {
  "formula": "before its step t, wait until every worker has finished its step t - 1 - s; push g(w); w̃ ← w̃ - η g",
  "cite": "Ho et al. 2013",
  "defaults": {
   "learning_rate": 0.2,
   "max_staleness": 3
  },
  "folder": true
 },
 "DC-ASGD": {
  "formula": "push g(w); w̃ ← w̃ - η (g + λ g g (w̃ - w))",
  "cite": "Zheng et al. 2017",
  "defaults": {
   "learning_rate": 0.2,
   "dc_lambda": 0.04,
   "adaptive": false
  },
  "folder": true
 },
 "AGN": {
  "formula": "T times w ← w - η g_t; push the mean a = (1/T) sum g_t; w̃ ← w̃ - η a",
  "cite": "Hermans et al. 2017",
  "defaults": {
   "learning_rate": 0.2,
   "window": 10
  },
  "folder": true
 },
 "Plain-DOWNPOUR": {
  "formula": "T times w ← w - η g_t; push the sum a = sum g_t; w̃ ← w̃ - η a",
  "cite": "",
  "defaults": {
   "learning_rate": 0.2,
   "window": 10
  },
  "folder": false
 },
 "DOWNPOUR-Easy": {
  "formula": "T times w ← w - η g_t; push the sum a = sum g_t; G ← G + a a, w̃ ← w̃ - η a / sqrt(G)",
  "cite": "Dean et al. 2012",
  "defaults": {
   "learning_rate": 0.05,
   "window": 10
  },
  "folder": true
 },
 "DOWNPOUR": {
  "formula": "T times H ← H + g_t g_t, w ← w - η g_t / sqrt(H); push and update as DOWNPOUR-Easy",
  "cite": "",
  "defaults": {
   "learning_rate": 0.05,
   "window": 10
  },
  "folder": true
 },
 "Dynamic-SGD": {
  "formula": "T times w ← w - η g_t; push d = w - w_pulled; w̃ ← w̃ + d / (s + 1)",
  "cite": "Jiang et al., SIGMOD 2017",
  "defaults": {
   "learning_rate": 0.2,
   "window": 10
  },
  "folder": true
 },
 "AEASGD": {
  "formula": "push e = α (w - w̃); w̃ ← w̃ + e; meanwhile, with x = w: w ← w - e; T times w ← w - η g(x), x ← w",
  "cite": "Zhang, Choromanska and LeCun 2015",
  "defaults": {
   "learning_rate": 0.2,
   "window": 10,
   "moving_rate": null
  },
  "folder": true
 },
 "AEAMSGD": {
  "formula": "As AEASGD, with the local step v ← δ v - η g(x + δ v), w ← w + v, x ← w",
  "cite": "Zhang, Choromanska and LeCun 2015",
  "defaults": {
   "learning_rate": 0.2,
   "window": 10,
   "moving_rate": null,
   "momentum": 0.9
  },
  "folder": true
 },
 "Synchronous-SGD": {
  "formula": "push g(w), wait; w̃ ← w̃ - η / (n - b) sum_k g_k, over the first n - b of n workers",
  "cite": "Chen et al. 2016",
  "defaults": {
   "learning_rate": 0.4,
   "backup_workers": 0
  },
  "folder": true
 },
 "Synchronous-SGD-different-learning-rates": {
  "formula": "push g(w), wait; w̃ ← w̃ - sum_k η_k g_k",
  "cite": "Chen et al. 2016",
  "defaults": {
   "learning_rate": 0.4,
   "learning_rates": null
  },
  "folder": true
 },
 "Sign-SGD": {
  "formula": "m_k ← β m_k + (1 - β) g(w); push sign(m_k), wait; w̃ ← w̃ - η vote, the sign that most workers sent; if as many sent the other, that of the first of them",
  "cite": "Bernstein et al. 2018",
  "defaults": {
   "learning_rate": 0.001,
   "sign_momentum": 0.9
  },
  "folder": true
 },
 "SAGN": {
  "formula": "T times w ← w - η g_t; push the mean a_k = (1/T) sum g_t, wait; w̃ ← w̃ - (η/n) sum_k a_k",
  "cite": "Hermans et al. 2017",
  "defaults": {
   "learning_rate": 0.4,
   "window": 5
  },
  "folder": true
 },
 "Local-SGD": {
  "formula": "T times w ← w - η g_t; push d_k = w - w_pulled, wait; w̃ ← w̃ + (1/n) sum_k d_k",
  "cite": "Stich 2019",
  "defaults": {
   "learning_rate": 0.2,
   "window": 10
  },
  "folder": true
 },
 "DiLoCo": {
  "formula": "T times i ← i + 1, m ← b1 m + (1 - b1) g, v ← b2 v + (1 - b2) g g, w ← w - η (m^ / (sqrt(v^) + eps) + decay w), m^ = m / (1 - b1^i), v^ = v / (1 - b2^i); push d_k = w_pulled - w, wait; D = 1 / (n - b) sum_k d_k; u ← μ u + D, w̃ ← w̃ - rate (D + μ u)",
  "cite": "Douillard et al. 2023",
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
  "formula": "T times i ← i + 1, m ← b1 m + (1 - b1) g, v ← b2 v + (1 - b2) g g, w ← w - η (m^ / (sqrt(v^) + eps) + decay w), m^ = m / (1 - b1^i), v^ = v / (1 - b2^i); push d = w_pulled - w; B ← B + d; at every N-th update u ← β u + B / N, w̃ ← w̃ - rate (β u + d / N), B ← 0; else w̃ ← w̃ - rate d / N",
  "cite": "Liu et al. 2024",
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
