// How the page looks and moves. A row is drawn range by range where there are few, else pixel by pixel; never both.

const GUTTER = 64, ROW = 40, ALARM = 3, BAR = 11, BAR_HEIGHT = 20, HOLES = 33;
const COLORS = ["#0072B2", "#56B4E9", "#D55E00", "#000000", "#999999", "#CC79A7"], HOLE = "#E69F00", HEAD = "#009E73";
const WORDS = ["landed", "planned", "failed", "lost", "skipped", "claimed, never landed"];
const ALARMS = [2, 3, 5], STACK = [0, 4, 1, 5, 3, 2];
const STRIP = 27, STRIP_HEIGHT = 4, UNDECODED = 1, DEAD = 6;  // what is decoded: along the foot of the bar, as patterns
const $ = (id) => document.getElementById(id);

// Each look has a pattern too, so that nothing is said by colour alone.
function texture(context, kind) {
  const tile = document.createElement("canvas"), size = (tile.width = tile.height = 8), pen = tile.getContext("2d");
  const fill = (color) => { pen.fillStyle = color; pen.fillRect(0, 0, size, size); };
  const line = (color, ...points) => { pen.strokeStyle = color; pen.lineWidth = 2; pen.beginPath();
    for (let k = 0; k < points.length; k += 4) { pen.moveTo(points[k], points[k + 1]); pen.lineTo(points[k + 2], points[k + 3]); } pen.stroke(); };
  if (kind === 0) return COLORS[0];
  if (kind === 1) { fill("#fff"); line(COLORS[1], -2, 6, 6, -2, 0, 12, 12, 0, 2, 10, 10, 2); }
  if (kind === 2) { fill(COLORS[2]); line("#fff", 0, 0, 8, 8, 0, 8, 8, 0); }
  if (kind === 3) { fill(COLORS[3]); line("#fff", 0, 4, 8, 4); }
  if (kind === 4) { fill("#fff"); pen.fillStyle = COLORS[4]; pen.fillRect(1, 1, 3, 3); pen.fillRect(5, 5, 3, 3); }
  if (kind === 5) { fill(COLORS[5]); line("#fff", 4, 0, 4, 8); }
  if (kind === DEAD) { fill("#F0E442"); line("#000", 2, 0, 2, 8, 6, 0, 6, 8); }
  return context.createPattern(tile, "repeat");
}

// A mark above the bar: a triangle for failed, a square for lost, a diamond for claimed.
function mark(pen, kind, x, y) {
  pen.fillStyle = COLORS[kind];
  pen.beginPath();
  if (kind === 2) { pen.moveTo(x - 4, y); pen.lineTo(x + 4, y); pen.lineTo(x, y + 7); }
  if (kind === 3) pen.rect(x - 3, y, 6, 6);
  if (kind === 5) { pen.moveTo(x, y - 1); pen.lineTo(x + 4, y + 3); pen.lineTo(x, y + 7); pen.lineTo(x - 4, y + 3); }
  pen.fill();
}

class View {
  constructor(doc, rows) {
    Object.assign(this, { doc, all: rows, axis: "offset", pinned: null, asked: false });
    this.canvas = $("map"); this.pen = this.canvas.getContext("2d");
    this.scale = $("scale"); this.scalePen = this.scale.getContext("2d");
    this.fills = [...COLORS.keys(), DEAD].map((kind) => texture(this.pen, kind));
  }

  choose(generation) {
    this.rows = this.all.filter((row) => row.generation === generation);
    $("tall").style.height = `${this.rows.length * ROW}px`;
    this.whole();
  }

  whole() {
    const firsts = this.rows.map((row) => row.bounds(this.axis)[0]);
    const lasts = this.rows.map((row) => Math.max(row.bounds(this.axis)[row.count], this.axis === "time" ? 0 : row.end ?? 0));
    this.least = Math.min(...firsts); this.most = Math.max(...lasts, this.least + 1);
    this.show(this.least, this.most);
  }

  show(from, to) {
    const room = this.most - this.least, width = Math.min(Math.max(to - from, 10), room * 1.05);
    const middle = Math.min(Math.max((from + to) / 2, this.least), this.most);
    this.from = middle - width / 2; this.to = middle + width / 2;
    this.ask();
  }

  zoom(factor, x = (this.width + GUTTER) / 2) {
    const at = this.valueAt(x);
    this.show(at - (at - this.from) * factor, at + (this.to - at) * factor);
  }

  valueAt(x) { return this.from + ((x - GUTTER) / (this.width - GUTTER)) * (this.to - this.from); }
  place(value) { return GUTTER + ((value - this.from) / (this.to - this.from)) * (this.width - GUTTER); }

  ask() {
    if (this.asked) return;
    this.asked = true;
    requestAnimationFrame(() => { this.asked = false; this.draw(); });
  }

  fit() {
    const ratio = window.devicePixelRatio || 1, width = $("frame").clientWidth, height = Math.min($("frame").clientHeight || ROW, this.rows.length * ROW);
    for (const [canvas, tall] of [[this.canvas, height], [this.scale, 34]]) {
      if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(tall * ratio)) {
        canvas.width = Math.round(width * ratio); canvas.height = Math.round(tall * ratio); canvas.style.height = `${tall}px`;
      }
      canvas.getContext("2d").setTransform(ratio, 0, 0, ratio, 0, 0);
    }
    this.width = width; this.height = height;
  }

  draw() {
    this.fit();
    const pen = this.pen, top = $("frame").scrollTop;
    pen.clearRect(0, 0, this.width, this.height);
    this.drawScale();
    const last = Math.min(this.rows.length, Math.ceil((top + this.height) / ROW));
    for (let k = Math.floor(top / ROW); k < last; k++) this.drawRow(this.rows[k], k * ROW - top);
  }

  drawRow(row, y) {
    const pen = this.pen, at = row.bounds(this.axis), n = row.count;
    pen.save(); pen.beginPath(); pen.rect(GUTTER, y, this.width - GUTTER, ROW); pen.clip();
    const lo = Math.max(0, upper(at, this.from) - 1), hi = Math.min(n, lower(at, this.to));
    if (hi - lo <= (this.width - GUTTER) / 4) this.drawRanges(row, at, lo, hi, y);
    else this.drawPixels(row, at, lo, hi, y);
    if (row.dead) { this.drawStrip(row.undecoded, UNDECODED, at, lo, hi, y); this.drawStrip(row.dead, DEAD, at, lo, hi, y); }
    if (this.axis === "offset") this.drawEnds(row, y);
    else this.drawFlag(this.place(at[n]), y);
    pen.restore();
    pen.fillStyle = "#111"; pen.font = "12px system-ui, sans-serif"; pen.textBaseline = "middle"; pen.textAlign = "right";
    pen.fillText(`p ${row.partition}`, GUTTER - 8, y + BAR + BAR_HEIGHT / 2);
    pen.fillStyle = "#eee"; pen.fillRect(0, y + ROW - 1, this.width, 1);
  }

  drawRanges(row, at, lo, hi, y) {
    const pen = this.pen;
    for (let i = lo; i < hi; i++) {
      const kind = row.look[i], x = this.place(at[i]), wide = this.place(at[i + 1]) - x, shown = Math.max(wide - (wide > 4 ? 1 : 0), kind ? 3 : 1);
      pen.fillStyle = this.fills[kind]; pen.fillRect(x, y + BAR, shown, BAR_HEIGHT);
      if (kind && wide > 6) { pen.strokeStyle = COLORS[kind]; pen.strokeRect(x + 0.5, y + BAR + 0.5, shown - 1, BAR_HEIGHT - 1); }
      const middle = (Math.max(x, GUTTER) + Math.min(x + shown, this.width)) / 2;
      if (ALARMS.includes(kind)) mark(pen, kind, middle, y + ALARM);
      const key = row.key(i), seen = Math.min(x + shown, this.width) - Math.max(x, GUTTER);
      if (seen > key.length * 7 + 10) {
        pen.font = "12px system-ui, sans-serif"; pen.textAlign = "center"; pen.textBaseline = "middle";
        if (kind) { pen.fillStyle = "#fff"; pen.fillRect(middle - key.length * 3.6, y + BAR + 2, key.length * 7.2, BAR_HEIGHT - 4); }
        pen.fillStyle = kind ? "#111" : "#fff"; pen.fillText(key, middle, y + BAR + BAR_HEIGHT / 2 + 1);
      }
      if (row.holes && row.holes[i + 1] > row.holes[i]) this.drawHoles(row, at, i, x, wide, y);
    }
  }

  // Where there is room each hole at its offsets, else a notch as wide as their share.
  drawHoles(row, at, i, x, wide, y) {
    const { intervals, totals } = row.gone(i), first = row.offsets[i], size = row.offsets[i + 1] - first;
    this.pen.fillStyle = HOLE;
    if (wide > 40 && intervals.length) {
      for (const [start, end] of intervals) this.pen.fillRect(x + ((start - first) / size) * wide, y + HOLES, Math.max(1.5, ((end - start) / size) * wide), 5);
    } else {
      const count = totals.reduce((sum, [, each]) => sum + each, 0);
      this.pen.fillRect(x, y + HOLES, Math.max(1.5, (count / size) * wide), 5);
    }
  }

  drawPixels(row, at, lo, hi, y) {
    const pen = this.pen, left = Math.max(GUTTER, Math.floor(this.place(at[lo]))), right = Math.min(this.width, Math.ceil(this.place(at[hi])));
    const lastMark = {}, kinds = STACK.filter((kind) => kind && row.before[kind]), holes = new Path2D();
    let i = lo, began = left, run = 0;  // pixels that are of one look all through are one rectangle
    const turn = (x, kind) => {
      if (kind === run) return;
      if (x > began && run >= 0) { pen.fillStyle = this.fills[run]; pen.fillRect(began, y + BAR, x - began, BAR_HEIGHT); }
      began = x; run = kind;
    };
    for (let x = left; x < right; x++) {
      i = Math.max(lo, upper(at, this.valueAt(x), i, hi) - 1);
      const j = Math.max(i + 1, lower(at, this.valueAt(x + 1), i, hi)), size = row.offsets[j] - row.offsets[i];
      if (row.holes && row.holes[j] > row.holes[i]) holes.rect(x, y + HOLES, 1, Math.max(2, (6 * (row.holes[j] - row.holes[i])) / size));
      let look = 0;  // of all the pixel, or -1 where it has several
      for (const kind of kinds) {
        const offsets = row.before[kind][j] - row.before[kind][i];
        if (offsets) look = offsets === size && !ALARMS.includes(kind) ? kind : -1;
        if (look) break;
      }
      turn(x, look);
      if (look < 0) this.drawMixed(kinds.map((kind) => [kind, (row.before[kind][j] - row.before[kind][i]) / size]), x, y, lastMark);
    }
    turn(right, -2);
    pen.fillStyle = HOLE; pen.fill(holes);
  }

  // One pixel of several looks: shares stacked upon landed, and what is alarming over all of it, however little it is.
  drawMixed(shares, x, y, lastMark) {
    const pen = this.pen;
    pen.fillStyle = this.fills[0]; pen.fillRect(x, y + BAR, 1, BAR_HEIGHT);
    let used = 0;
    for (const [kind, share] of shares) {
      if (!share) continue;
      const tall = Math.max(4, share * BAR_HEIGHT);
      if (!ALARMS.includes(kind)) {
        pen.fillStyle = this.fills[kind]; pen.fillRect(x, y + BAR + Math.min(used, BAR_HEIGHT - tall), 1, tall);
        used += tall;
        continue;
      }
      pen.fillStyle = COLORS[kind]; pen.fillRect(x - 1, y + BAR, 3, BAR_HEIGHT);  // no pattern could be seen in so little
      if (x - (lastMark[kind] ?? -9) > 8) { mark(pen, kind, x, y + ALARM); lastMark[kind] = x; }
    }
  }

  // What waits to be decoded, or has dead letters, however little: from pixel to pixel, neighbours as one rectangle.
  drawStrip(places, kind, at, lo, hi, y) {
    const pen = this.pen, right = Math.min(this.width, Math.ceil(this.place(at[hi])));
    let began = 0, ended = -1;
    const paint = () => {
      if (ended < began) return;
      pen.fillStyle = "#fff"; pen.fillRect(began, y + STRIP - 1, ended - began, STRIP_HEIGHT + 1);
      pen.fillStyle = this.fills[kind]; pen.fillRect(began, y + STRIP, ended - began, STRIP_HEIGHT);
    };
    for (let x = GUTTER; x < right;) {
      const k = lower(places, Math.max(lo, upper(at, this.valueAt(x), lo, hi) - 1));
      if (k === places.length || places[k] >= hi) break;
      const from = Math.max(x, Math.floor(this.place(at[places[k]])));
      x = Math.max(from + 1, Math.floor(this.place(at[places[k] + 1])));
      if (from > ended) { paint(); began = from; }
      ended = Math.min(x, right);
    }
    paint();
  }

  // The head, what is on the broker beyond it, and where the broker's log begins.
  drawEnds(row, y) {
    const pen = this.pen, head = this.place(row.head);
    if (row.end !== null && row.end > row.head) {
      pen.setLineDash([4, 3]); pen.strokeStyle = "#666";
      pen.strokeRect(head, y + BAR + 0.5, this.place(row.end) - head, BAR_HEIGHT - 1); pen.setLineDash([]);
    }
    if (row.earliest !== null && row.earliest > row.start) {
      const x = this.place(row.earliest);
      pen.strokeStyle = "#111"; pen.lineWidth = 2; pen.beginPath();
      pen.moveTo(x + 5, y + BAR - 4); pen.lineTo(x, y + BAR - 4); pen.lineTo(x, y + HOLES - 1); pen.lineTo(x + 5, y + HOLES - 1);
      pen.stroke(); pen.lineWidth = 1;
    }
    this.drawFlag(head, y);
  }

  drawFlag(x, y) {
    const pen = this.pen;
    pen.fillStyle = HEAD; pen.fillRect(x - 1, y + 1, 2, HOLES + 3);
    pen.beginPath(); pen.moveTo(x, y + 1); pen.lineTo(x - 8, y + 4.5); pen.lineTo(x, y + 8); pen.fill();
  }

  drawScale() {
    const pen = this.scalePen, wanted = (this.width - GUTTER) / 130, span = this.to - this.from;
    pen.clearRect(0, 0, this.width, 34);
    const step = this.axis === "time" ? timeStep(span / wanted) : roundStep(span / wanted);
    pen.fillStyle = "#111"; pen.font = "12px system-ui, sans-serif"; pen.textAlign = "center";
    for (let at = Math.ceil(this.from / step) * step; at <= this.to; at += step) {
      const x = this.place(at);
      if (x < GUTTER + 30 || x > this.width - 40) continue;
      pen.fillRect(x, 26, 1, 8);
      pen.fillText(this.axis === "time" ? timeText(at, step) : number(at + 0), x, 20);
    }
    pen.textAlign = "left"; pen.fillText(this.axis === "time" ? "UTC" : "offset", 4, 20);
  }

  // What lies under a point: the row, and the ranges under that pixel.
  under(x, y) {
    const k = Math.floor((y + $("frame").scrollTop) / ROW), row = this.rows[k];
    if (!row || x < GUTTER) return null;
    const at = row.bounds(this.axis), a = this.valueAt(x), b = this.valueAt(x + 1);
    if (b <= at[0] || a >= at[row.count]) return { row, from: 0, to: 0, value: a };
    const from = Math.max(0, upper(at, a) - 1);
    return { row, from, to: Math.max(from + 1, Math.min(row.count, lower(at, b))), value: a };
  }

  facts({ row, from, to, value }) {
    if (from === to) {
      const beyond = row.end !== null && this.axis === "offset" && value >= row.head && value < row.end;
      return [`partition ${row.partition}: ${beyond ? `${number(row.end - row.head)} offsets beyond the head, in no range yet` : "nothing here"}`];
    }
    if (to - from === 1) {
      const at = row.bounds(this.axis), share = (value - at[from]) / (at[from + 1] - at[from] || 1);
      return factsOf(this.doc, row, from, row.offsets[from] + share * (row.offsets[from + 1] - row.offsets[from]));
    }
    const counts = row.counts(from, to), lines = [`partition ${row.partition}: ${number(to - from)} ranges under this pixel`];
    lines.push(counts.map((count, kind) => count && `${number(count)} ${this.doc.looks[kind]}`).filter(Boolean).join(", "));
    if (row.dead) { const [waiting, dead] = row.derived(from, to); lines.push(`${number(waiting)} wait to be decoded, ${number(dead)} have dead letters`); }
    const worst = ALARMS.flatMap((kind) => { const places = row.places[kind], k = lower(places, from); return k < places.length && places[k] < to ? [places[k]] : []; });
    for (const i of worst) lines.push("", ...factsOf(this.doc, row, i, -1));
    return lines;
  }

  reveal(row, i) {
    if (!this.rows.includes(row)) { $("generation").value = row.generation; this.choose(row.generation); }
    const at = row.bounds(this.axis), wide = at[i + 1] - at[i] || 1000;
    this.show(at[i] - wide * 2, at[i + 1] + wide * 2);
    const top = this.rows.indexOf(row) * ROW, frame = $("frame");
    if (top < frame.scrollTop || top + ROW > frame.scrollTop + frame.clientHeight) frame.scrollTop = top - ROW;
    $("said").textContent = factsOf(this.doc, row, i, -1)[0];
  }
}

function roundStep(least) {
  const ten = 10 ** Math.floor(Math.log10(Math.max(least, 1)));
  return [1, 2, 5, 10].map((each) => each * ten).find((each) => each >= least) ?? 1;
}
function timeStep(least) {
  return [1, 5, 15, 60, 300, 900, 3600, 14400, 43200, 86400, 604800, 2592000, 31536000].map((s) => s * 1000).find((each) => each >= least) ?? 31536000000;
}
function timeText(ms, step) {
  const text = new Date(ms).toISOString();
  return step >= 86400000 ? text.slice(0, 10) : step >= 60000 ? `${text.slice(5, 10)} ${text.slice(11, 16)}` : text.slice(11, 19);
}
