// A run that really happened, in the form in which `lanes.js` and `plots.js` draw simulated ones.

export class Recorded {
  /** @param run what `write.py` has written into the page; its times count from the start */
  constructor(run) {
    this.flags = { slow: [], compute: 0.1, ...run.flags, workers: run.steps.length };
    this.diverged = false;
    this.steps = run.steps.map((mine, k) => {
      let before = 0, done = 0;
      return mine.map(([began, pull, compute, push, counted, number, pulledAt, staleness, loss, local]) => {
        const step = { began: Math.min(before || began, began), asked: began, got: began + pull,
          computed: began + pull + compute, told: began + pull + compute + push,
          counted: counted ?? began + pull + compute + push, number, pulledAt, staleness, loss, k, local };
        step.again = local <= done; // its task died since the last step, and counts from 0 again
        if (step.again) step.began = began;
        [before, done] = [step.told, local];
        return step;
      });
    });
    this.updates = run.updates.map(([time, number, workers]) => ({ time, number, workers }));
    this.losses = run.evaluations.map(([time, number, loss]) => ({ time, number, loss }));
    this.falls = this.steps.flatMap((mine, k) => mine.flatMap((step, i) =>
      (step.again && i ? [{ time: mine[i - 1].told, back: step.asked, who: `w${k}` }] : [])));
    for (let i = 1; i < this.updates.length; i++) { // the ps died, and read its checkpoint
      const [before, update] = [this.updates[i - 1], this.updates[i]];
      if (update.number < before.number) this.falls.push({ time: before.time, back: update.time, who: "ps" });
    }
    this.end = Math.max(0, ...this.steps.flat().map(({ told }) => told), ...this.updates.map(({ time }) => time));
    this.staleness = [];
    for (const { staleness } of this.steps.flat()) {
      this.staleness[staleness] = (this.staleness[staleness] ?? 0) + 1;
    }
  }

  isDead() {
    return false;
  }

  isDown() {
    return false;
  }

  /** All steps are complete. */
  current(k, time) {
    return { began: time, asked: time, got: time, computed: time, told: time };
  }

  /** The step of worker k at this time; undefined between two. */
  at(k, time) {
    return this.steps[k]?.find(({ began, told }) => began <= time && time <= told);
  }
}
