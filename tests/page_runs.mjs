// Runs of the page's simulation, for test_page.py: reads flags from the standard input, a JSON list,
// and writes what happened.

import { readFileSync } from "node:fs";

import { DIGITS } from "../common/page/digits.js";
import { Simulation } from "../common/page/simulation.js";

const found = JSON.parse(readFileSync(0, "utf8")).map((flags) => {
  const run = new Simulation({ checkpoint_seconds: Infinity, ...flags }, DIGITS);
  run.advance(Infinity);
  const { cluster, problem, steps, updates, staleness, dropped } = run;
  return {
    steps, updates, staleness: { ...staleness }, dropped, w: [...cluster.w],
    test: problem.size > 1 ? problem.evaluate(cluster.w) : null, megabytes: run.megabytes,
  };
});
process.stdout.write(JSON.stringify(found));
