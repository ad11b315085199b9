"use strict";
// What the page knows: the columns, unpacked, and answers about them in the time of a binary search. Nothing is drawn here.

const KINDS = { f64: Float64Array, u32: Uint32Array, u8: Uint8Array };

async function unpack(text, layout, size) {
  const packed = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
  const buffer = await new Response(stream).arrayBuffer();
  if (buffer.byteLength !== size) throw new Error(`unpacked ${buffer.byteLength} bytes, expected ${size}`);
  const columns = {};
  for (const [name, [kind, at, bytes]] of Object.entries(layout)) {
    columns[name] = new KINDS[kind](buffer, at, bytes / KINDS[kind].BYTES_PER_ELEMENT);
  }
  for (const name of ["oldest", "newest", "landed"]) {
    const column = columns[name];
    for (let i = 1; i < column.length; i++) column[i] += column[i - 1];
  }
  return columns;
}

// The first place whose value is not below, and the first whose value is above.
function lower(sorted, value, from = 0, to = sorted.length) {
  while (from < to) {
    const middle = (from + to) >>> 1;
    if (sorted[middle] < value) from = middle + 1; else to = middle;
  }
  return from;
}
function upper(sorted, value, from = 0, to = sorted.length) {
  while (from < to) {
    const middle = (from + to) >>> 1;
    if (sorted[middle] <= value) from = middle + 1; else to = middle;
  }
  return from;
}

// One Kafka partition of one generation. Range i lies at [offsets[i], offsets[i + 1]) and [times[i], times[i + 1]).
class Row {
  constructor(line, columns, looks, madeMs) {
    Object.assign(this, line);
    this.columns = columns;
    const { lengths, looks: look } = columns, n = line.count;
    this.offsets = new Float64Array(n + 1);
    this.offsets[0] = line.start;
    for (let i = 0; i < n; i++) this.offsets[i + 1] = this.offsets[i] + lengths[line.first + i];
    this.look = look.subarray(line.first, line.first + n);
    // of each look but the first: how many offsets lie before range i, and which ranges they are
    this.before = looks.map(() => null);
    this.places = looks.map(() => []);
    for (let i = 0; i < n; i++) if (this.look[i]) this.places[this.look[i]].push(i);
    this.places.forEach((places, kind) => {
      if (!places.length) return;
      const before = (this.before[kind] = new Float64Array(n + 1));
      for (let i = 0; i < n; i++) before[i + 1] = before[i] + (this.look[i] === kind ? lengths[line.first + i] : 0);
      this.places[kind] = Uint32Array.from(places);
    });
    // which ranges wait to be decoded, and which have dead letters; null of a topic that is not decoded
    const dead = columns.deadLetters;
    this.undecoded = this.dead = null;
    if (dead.length) {
      const all = Array.from({ length: n }, (_, i) => i);
      this.undecoded = Uint32Array.from(all.filter((i) => dead[line.first + i] === -1));
      this.dead = Uint32Array.from(all.filter((i) => dead[line.first + i] > 0));
    }
    this.holes = this.countHoles();
    this.times = this.findTimes(madeMs);
    this.head = this.offsets[n];
  }

  countHoles() {
    const { totalOf, totalCount } = this.columns, from = lower(totalOf, this.first), to = lower(totalOf, this.first + this.count);
    if (from === to) return null;
    const before = new Float64Array(this.count + 1);
    for (let k = from; k < to; k++) before[totalOf[k] - this.first + 1] += totalCount[k];
    for (let i = 0; i < this.count; i++) before[i + 1] += before[i];
    return before;
  }

  // Record times never run backwards here: a range begins where the newest record before it was. A range of which no
  // record is known takes its share, by offsets, of the time between its neighbours, the last ones up to now.
  findTimes(madeMs) {
    const { oldest, newest } = this.columns, n = this.count, times = new Float64Array(n + 1);
    const known = (i) => newest[this.first + i] >= 0;
    let first = 0;
    while (first < n && !known(first)) first++;
    times[0] = first < n ? oldest[this.first + first] : madeMs;
    for (let i = 0; i < n; ) {
      if (known(i)) {
        times[i + 1] = Math.max(times[i], newest[this.first + i]);
        i++;
        continue;
      }
      let j = i;
      while (j < n && !known(j)) j++;
      const left = times[i], right = Math.max(left, j < n ? oldest[this.first + j] : madeMs), from = this.offsets[i];
      for (let k = i; k < j; k++) times[k + 1] = left + ((right - left) * (this.offsets[k + 1] - from)) / (this.offsets[j] - from);
      i = j;
    }
    return times;
  }

  bounds(axis) {
    return axis === "time" ? this.times : this.offsets;
  }

  // How many ranges of [from, to) have each look.
  counts(from, to) {
    const found = this.places.map((places) => lower(places, to) - lower(places, from));
    found[0] = to - from - found.reduce((sum, count) => sum + count, 0);
    return found;
  }

  // How many ranges of [from, to) wait to be decoded, and how many have dead letters.
  derived(from, to) {
    return [this.undecoded, this.dead].map((places) => lower(places, to) - lower(places, from));
  }

  key(i) {
    return `${this.partition}-${this.offsets[i]}-${this.offsets[i + 1]}${this.generation ? `-g${this.generation}` : ""}`;
  }

  // The causes and counts of what has no row, and each such interval that travelled with the page.
  gone(i) {
    const { totalOf, totalCount, totalCause, holeOf, holeStart, holeLength, holeCause } = this.columns, at = this.first + i;
    const totals = [], intervals = [];
    for (let k = lower(totalOf, at); k < totalOf.length && totalOf[k] === at; k++) totals.push([totalCause[k], totalCount[k]]);
    for (let k = lower(holeOf, at); k < holeOf.length && holeOf[k] === at; k++) {
      const start = this.offsets[i] + holeStart[k];
      intervals.push([start, start + holeLength[k], holeCause[k]]);
    }
    return { totals, intervals };
  }
}

const number = (value) => value.toLocaleString("en-US");
const moment = (ms) => (ms >= 0 ? `${new Date(ms).toISOString().slice(0, 19).replace("T", " ")} UTC` : "not known");

// The facts of one range, as lines; `offset` is where the pointer is, for the hole there.
function factsOf(doc, row, i, offset) {
  const { runs, oldest, newest, landed, deadLetters } = row.columns, at = row.first + i, look = doc.looks[row.look[i]];
  const { totals, intervals } = row.gone(i), size = row.offsets[i + 1] - row.offsets[i];
  const lines = [`${row.key(i)}: ${look}`];
  lines.push(`offsets [${number(row.offsets[i])}, ${number(row.offsets[i + 1])}), ${number(size)} of them`);
  if (look === "landed") lines.push(`rows ${number(size - totals.reduce((sum, [, count]) => sum + count, 0))}`);
  for (const [cause, count] of totals) lines.push(`${look === "landed" ? "without a row" : "gone"}: ${number(count)} ${doc.causes[cause]}`);
  const here = intervals.find(([start, end]) => start <= offset && offset < end);
  if (here) lines.push(`here: [${number(here[0])}, ${number(here[1])}) ${doc.causes[here[2]]}`);
  if (doc.notes[at]) lines.push(doc.notes[at]);
  if (newest[at] >= 0) lines.push(`records of ${moment(oldest[at])} to ${moment(newest[at])}`);
  if (landed[at] >= 0) lines.push(`landed ${moment(landed[at])}`);
  if (deadLetters[at] >= -1) lines.push(deadLetters[at] < 0 ? "waits to be decoded" : `decoded${deadLetters[at] ? `, ${number(deadLetters[at])} dead letters` : ""}`);
  if (runs[at]) lines.push(`run ${doc.runs[runs[at]]}`);
  return lines;
}
