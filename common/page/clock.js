// Virtual time, as SimPy keeps it: events in the order of time, then urgency, then number.

const URGENT = 0, NORMAL = 1;

export class Event {
  constructor(clock) {
    this.clock = clock;
    this.callbacks = []; // null once they have been called
    this.triggered = false;
    this.value = undefined;
  }

  /** It happens now, after what is already due. */
  succeed(value) {
    this.triggered = true;
    this.value = value;
    this.clock.schedule(this, NORMAL, 0);
  }
}

/** Runs a generator; each event that it yields lets time pass. `dead`: it goes on no more. */
export class Process extends Event {
  constructor(clock, generator) {
    super(clock);
    this.generator = generator;
    this.dead = false;
    this.resume = this.resume.bind(this);
    const begin = new Event(clock);
    begin.callbacks.push(this.resume);
    clock.schedule(begin, URGENT, 0);
  }

  resume(event) {
    while (!this.dead) {
      const { value, done } = this.generator.next(event.value);
      if (done) return this.succeed(value);
      if (value.callbacks) return void value.callbacks.push(this.resume);
      event = value; // it has already happened
    }
  }
}

export class Clock {
  constructor() {
    this.now = 0;
    this.queue = []; // a binary heap
    this.number = 0;
  }

  event() {
    return new Event(this);
  }

  timeout(seconds) {
    const event = new Event(this);
    event.triggered = true;
    this.schedule(event, NORMAL, seconds);
    return event;
  }

  process(generator) {
    return new Process(this, generator);
  }

  schedule(event, urgency, delay) {
    const queue = this.queue, item = [this.now + delay, urgency, this.number++, event];
    let k = queue.push(item) - 1;
    while (k && before(item, queue[(k - 1) >> 1])) {
      queue[k] = queue[(k - 1) >> 1];
      k = (k - 1) >> 1;
    }
    queue[k] = item;
  }

  /** When the next event is due; infinite if there is none. */
  next() {
    return this.queue.length ? this.queue[0][0] : Infinity;
  }

  /** The next event happens. */
  step() {
    const queue = this.queue, [time, , , event] = queue[0], last = queue.pop();
    if (queue.length) {
      let k = 0;
      for (;;) {
        let child = 2 * k + 1;
        if (child + 1 < queue.length && before(queue[child + 1], queue[child])) child++;
        if (child >= queue.length || !before(queue[child], last)) break;
        queue[k] = queue[child];
        k = child;
      }
      queue[k] = last;
    }
    this.now = time;
    const callbacks = event.callbacks;
    event.callbacks = null;
    for (const callback of callbacks) callback(event);
  }
}

function before(a, b) {
  return (a[0] - b[0] || a[1] - b[1] || a[2] - b[2]) < 0;
}
