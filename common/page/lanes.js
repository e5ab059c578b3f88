// The lanes of a run: what each worker does, and the updates on the ps.

export const ROW = 34, LONGEST = 8; // pixels of a lane; times as long as a mini-batch usually takes

/** Colours of the style sheet by name. */
export function colours() {
  const style = getComputedStyle(document.documentElement);
  return new Proxy({}, { get: (_, name) => style.getPropertyValue(`--${name}`).trim() });
}

/** A canvas that is sharp on every screen, cleared. */
export function pencil(canvas) {
  const { clientWidth: width, clientHeight: height } = canvas, ratio = window.devicePixelRatio || 1;
  if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(height * ratio)) {
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
  }
  const context = canvas.getContext("2d");
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.clearRect(0, 0, width, height);
  context.font = '12px system-ui, "Liberation Sans", "DejaVu Sans", sans-serif';
  return { context, width, height };
}

export class Lanes {
  /**
   * @param place the element that gets the lanes
   * @param on `slow(k, factor)` and `kill(who)` are called
   */
  constructor(place, on) {
    Object.assign(this, { place, on, rows: 0 });
    place.innerHTML = '<h2></h2><div class="lanes"><canvas aria-hidden="true"></canvas></div>';
    [this.heading, this.grid, this.canvas] = ["h2", ".lanes", "canvas"].map((each) => place.querySelector(each));
    this.#drag();
  }

  /** The names and buttons of the lanes, for these flags; the title is empty if there is one run. */
  label(flags, title) {
    this.heading.textContent = title;
    this.heading.hidden = !title;
    if (this.rows !== flags.workers + 1) {
      this.rows = flags.workers + 1;
      this.grid.querySelectorAll(".lane").forEach((lane) => lane.remove());
      for (let k = 0; k < flags.workers; k++) this.grid.append(this.#lane(`w${k}`, `worker ${k}`, k));
      this.grid.append(this.#lane("ps", "ps"));
      this.grid.style.gridTemplateRows = `repeat(${this.rows}, ${ROW}px)`;
      this.canvas.style.gridRow = `1 / span ${this.rows}`;
      this.canvas.style.height = `${ROW * this.rows}px`;
    }
    this.grid.querySelectorAll(".lane input").forEach((input, k) => {
      const factor = flags.slow[k] ?? 1;
      input.value = factor;
      input.setAttribute("aria-valuetext", `${factor} times as long`);
    });
  }

  #lane(who, name, k) {
    const lane = document.createElement("div");
    lane.className = "lane";
    lane.style.gridColumn = 1;
    lane.innerHTML = `<button type="button" aria-pressed="false" data-who="${who}">☠</button><span>${name}</span>`;
    const kill = lane.querySelector("button");
    kill.setAttribute("aria-label", `kill ${name}`);
    kill.title = `Kill ${name}`;
    kill.onclick = () => this.on.kill(who);
    if (k === undefined) return lane;
    const slow = document.createElement("input");
    Object.assign(slow, { type: "range", min: 1, max: LONGEST, step: 0.1, title: "How long its mini-batches take" });
    slow.setAttribute("aria-label", `how long a mini-batch of ${name} takes`);
    slow.oninput = () => this.on.slow(k, +slow.value);
    lane.append(slow);
    return lane;
  }

  /** To drag by the width of a mini-batch makes the worker slower by one. */
  #drag() {
    let dragged = null;
    this.canvas.onpointerdown = (event) => {
      const k = Math.floor(event.offsetY / ROW);
      if (k >= this.rows - 1) return;
      const before = this.flags.slow[k] ?? 1;
      dragged = { k, before, x: event.clientX, y: event.clientY, on: event.pointerType === "mouse" };
      this.canvas.setPointerCapture(event.pointerId);
    };
    this.canvas.onpointermove = (event) => {
      if (!dragged) return;
      const [across, along] = [event.clientX - dragged.x, event.clientY - dragged.y].map(Math.abs);
      dragged.on ||= across > 8 && across > 2 * along; // a finger that scrolls does not drag
      if (!dragged.on) return;
      const batch = (this.flags.compute / this.span) * this.canvas.clientWidth;
      const by = (event.clientX - dragged.x) / Math.max(batch, 12);
      const factor = Math.min(LONGEST, Math.max(1, dragged.before + by));
      this.on.slow(dragged.k, Math.round(factor * 10) / 10);
    };
    this.canvas.onpointerup = () => (dragged = null);
    this.canvas.onpointercancel = () => {
      if (dragged?.on) this.on.slow(dragged.k, dragged.before);
      dragged = null;
    };
  }

  /** Draws `span` seconds that end now. */
  draw(run, time, span) {
    const { context, width, height } = pencil(this.canvas), colour = colours();
    Object.assign(this, { flags: run.flags, span });
    const start = Math.max(0, time - span * 0.97), x = (at) => ((at - start) / span) * width;
    const bar = (k, from, to, fill) => {
      if (to <= start || from >= time || to <= from) return;
      context.fillStyle = fill;
      const left = Math.max(0, x(from)), right = x(Math.min(to, time));
      context.fillRect(left, k * ROW + 5, Math.max(0.5, right - left - 0.5), ROW - 10);
    };
    const { workers } = run.flags, ps = workers * ROW;
    context.fillStyle = colour.panel;
    for (let k = 0; k <= workers; k++) context.fillRect(0, k * ROW + 4, width, ROW - 8);
    for (let k = 0; k < workers; k++) {
      for (const each of recent(run.steps[k], start)) phases(bar, k, each, colour);
      if (!run.isDead(`w${k}`) && !run.isDown()) phases(bar, k, run.current(k, time), colour);
    }
    context.lineWidth = 1;
    for (let k = 0; k < workers; k++) { // a line for each push, from its worker to the ps
      context.strokeStyle = colour.push;
      context.globalAlpha = 0.4;
      for (const { counted } of recent(run.steps[k], start)) {
        if (counted > time) continue;
        context.beginPath();
        context.moveTo(x(counted), (k + 1) * ROW - 5);
        context.lineTo(x(counted), ps + 5);
        context.stroke();
      }
      context.globalAlpha = 1;
    }
    context.fillStyle = colour.ps;
    let free = width; // from the newest to the oldest: a number where there is room for it
    for (let i = run.updates.length - 1; i >= 0 && run.updates[i].time > start; i--) {
      if (run.updates[i].time > time) continue;
      const at = x(run.updates[i].time);
      context.fillRect(at - 1.5, ps + 5, 3, ROW - 10);
      if (free - at > 30) context.fillText(run.updates[i].number, at + 4, ps + 21);
      free = at;
    }
    for (const { time: from, back, who } of run.falls) {
      for (let k = 0; k < workers && who === "ps"; k++) bar(k, from, Math.min(back, time), colour.wait); // for it
      const k = who === "ps" ? workers : +who.slice(1);
      context.globalAlpha = 0.75;
      bar(k, from, Math.min(back, time), colour.dead);
      context.globalAlpha = 1;
    }
    context.fillStyle = colour.text; // now
    context.fillRect(x(time), 0, 1.5, height);
    this.grid.querySelectorAll("[data-who]").forEach((button) => {
      const dead = run.isDead(button.dataset.who) || (button.dataset.who === "ps" && run.isDown());
      if (button.ariaPressed !== String(dead)) button.setAttribute("aria-pressed", String(dead));
    });
  }
}

/** The steps that end after `start`. */
function recent(steps, start) {
  let first = steps.length;
  while (first && steps[first - 1].told > start) first--;
  return steps.slice(first);
}

function phases(bar, k, { began, asked, got, computed, told }, colour) {
  bar(k, began, asked, colour.wait);
  bar(k, asked, got, colour.pull);
  bar(k, got, computed, colour.compute);
  bar(k, computed, told, colour.push);
}
