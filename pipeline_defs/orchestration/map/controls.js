// What a person does: buttons, wheel, keys, pointer; the tables that say the picture in words; and the beginning of it all.

const SHOWN_PROBLEMS = 200;

function legend(view) {
  const kinds = WORDS.map((word, kind) => [word, (pen) => { pen.fillStyle = view.fills[kind]; pen.fillRect(0, 8, 26, 12); if (ALARMS.includes(kind)) mark(pen, kind, 13, 0); }]);
  kinds.push(["offsets without a row", (pen) => { pen.fillStyle = HOLE; pen.fillRect(4, 15, 18, 5); }]);
  if (view.all.some((row) => row.dead)) {
    for (const [word, kind] of [["landed, not decoded yet", UNDECODED], ["decoded, with dead letters", DEAD]]) {
      kinds.push([word, (pen) => { pen.fillStyle = view.fills[0]; pen.fillRect(0, 8, 26, 6); pen.fillStyle = view.fills[kind]; pen.fillRect(0, 15, 26, 5); }]);
    }
  }
  kinds.push(["head: planned up to here", (pen) => { pen.fillStyle = HEAD; pen.fillRect(15, 0, 2, 20); pen.beginPath(); pen.moveTo(16, 0); pen.lineTo(8, 3.5); pen.lineTo(16, 7); pen.fill(); }]);
  kinds.push(["on the broker, not planned yet", (pen) => { pen.setLineDash([4, 3]); pen.strokeStyle = "#666"; pen.strokeRect(0.5, 8.5, 25, 11); }]);
  kinds.push(["the broker's log begins", (pen) => { pen.lineWidth = 2; pen.beginPath(); pen.moveTo(14, 6); pen.lineTo(9, 6); pen.lineTo(9, 19); pen.lineTo(14, 19); pen.stroke(); }]);
  for (const [word, paint] of kinds) {
    const item = $("legend").appendChild(document.createElement("li")), canvas = document.createElement("canvas");
    canvas.width = 26; canvas.height = 21; paint(canvas.getContext("2d"));
    item.append(canvas, word);
  }
}

function tabulate(table, head, rows) {
  const fill = (cells, tag) => {
    const line = table.insertRow();
    for (const cell of cells) {
      const place = line.appendChild(document.createElement(tag));
      if (cell instanceof Node) place.append(cell); else place.textContent = typeof cell === "number" ? number(cell) : cell;
      if (typeof cell === "string") place.className = "words";
    }
  };
  fill(head, "th");
  table.rows[0].querySelectorAll("th").forEach((cell, k) => { if (typeof (rows[0] ?? head)[k] !== "string") cell.className = ""; });
  rows.forEach((cells) => fill(cells, "td"));
}

// What is landed has a note where some of it is lost.
function problemsOf(doc, rows) {
  const noted = Object.keys(doc.notes).map(Number);
  return rows.flatMap((row) => {
    const own = noted.slice(lower(noted, row.first), lower(noted, row.first + row.count));
    const lossy = own.map((at) => at - row.first).filter((i) => !row.look[i]);
    return [...ALARMS.flatMap((kind) => [...row.places[kind]]), ...lossy].sort((a, b) => a - b).map((i) => [row, i]);
  });
}

function tell(doc, rows, view) {
  const most = (row) => row.holes ? row.holes[row.count] : 0, isDecoded = rows.some((row) => row.dead);
  tabulate($("sums"), ["partition", ...doc.looks, ...(isDecoded ? ["not decoded yet", "with dead letters"] : []), "offsets without a row", "head", "broker's end"], rows.map((row) => [
    `${row.partition}${row.generation ? ` of generation ${row.generation}` : ""}`,
    ...row.counts(0, row.count), ...(isDecoded ? row.derived(0, row.count) : []), most(row), row.head, row.end ?? "-",
  ]));
  const problems = problemsOf(doc, rows);
  tabulate($("problems"), ["range", "state", "why", ""], problems.slice(0, SHOWN_PROBLEMS).map(([row, i]) => {
    const button = document.createElement("button");
    button.textContent = "show"; button.onclick = () => view.reveal(row, i);
    return [row.key(i), doc.looks[row.look[i]], doc.notes[row.first + i] ?? "", button];
  }));
  if (problems.length > SHOWN_PROBLEMS) $("problems").after(`the first ${SHOWN_PROBLEMS} of ${number(problems.length)}`);
  if (!problems.length) $("problems").replaceChildren("nothing: no range has failed and nothing is lost");
  return problems;
}

// `0-400-503`, `1-0-5-g1` or `3:12345`: the row and the range that holds it.
function find(text, rows, generation) {
  const key = /^(\d+)-(\d+)-(\d+)(?:-g(\d+))?$/.exec(text.trim()), place = /^(\d+)\s*:\s*([\d,]+)$/.exec(text.trim());
  if (!key && !place) return null;
  const [partition, offset] = key ? [+key[1], +key[2]] : [+place[1], +place[2].replaceAll(",", "")];
  const wanted = key ? +(key[4] ?? 0) : generation, row = rows.find((each) => each.partition === partition && each.generation === wanted);
  const i = row ? upper(row.offsets, offset) - 1 : -1;
  if (!row || i < 0 || i >= row.count || (key && row.key(i) !== text.trim())) return null;
  return [row, i];
}

function listen(view, rows, problems) {
  const { canvas } = view, tip = $("tip");
  let at = -1, drag = null;
  const step = (by) => { if (problems.length) { at = (at + by + problems.length) % problems.length; view.reveal(...problems[at]); } else $("said").textContent = "there is no problem"; };
  const actions = { whole: () => view.whole(), in: () => view.zoom(0.5), out: () => view.zoom(2), next: () => step(1), previous: () => step(at < 0 ? 0 : -1) };
  for (const [name, act] of Object.entries(actions)) $(name).onclick = act;
  const keys = { "+": actions.in, "=": actions.in, "-": actions.out, Home: actions.whole, n: actions.next, p: actions.previous,
    ArrowLeft: () => pan(-0.2), ArrowRight: () => pan(0.2) };
  const pan = (share) => { const by = (view.to - view.from) * share; view.show(view.from + by, view.to + by); };
  canvas.onkeydown = (event) => { if (keys[event.key] && !event.ctrlKey && !event.metaKey) { event.preventDefault(); keys[event.key](); } };
  canvas.addEventListener("wheel", (event) => {
    if (event.shiftKey) return;
    event.preventDefault();
    view.zoom(Math.exp(Math.sign(event.deltaY) * Math.min(Math.abs(event.deltaY), 240) / 400), event.offsetX);
  }, { passive: false });
  canvas.onpointerdown = (event) => { drag = { x: event.clientX, from: view.from, to: view.to, moved: false }; canvas.setPointerCapture(event.pointerId); };
  canvas.onpointermove = (event) => {
    if (drag) {
      const by = ((drag.x - event.clientX) / (view.width - GUTTER)) * (drag.to - drag.from);
      drag.moved ||= Math.abs(drag.x - event.clientX) > 3;
      if (drag.moved) { tip.hidden = true; view.show(drag.from + by, drag.to + by); }
    } else if (!view.pinned) hover(event);
  };
  canvas.onpointerup = (event) => { const still = drag && !drag.moved; drag = null; if (still) { view.pinned = null; hover(event); view.pinned = tip.hidden ? null : event; } };
  canvas.onpointerleave = () => { if (!view.pinned) tip.hidden = true; };
  document.addEventListener("keydown", (event) => { if (event.key === "Escape") { view.pinned = null; tip.hidden = true; } });
  const hover = (event) => {
    const found = view.under(event.offsetX, event.offsetY);
    tip.hidden = !found;
    if (!found) return;
    tip.textContent = view.facts(found).join("\n");
    tip.style.left = `${Math.min(event.clientX + 14, innerWidth - tip.offsetWidth - 8)}px`;
    tip.style.top = `${event.clientY + 18 + tip.offsetHeight > innerHeight ? event.clientY - tip.offsetHeight - 10 : event.clientY + 18}px`;
  };
  $("frame").onscroll = () => view.ask();
  window.onresize = () => view.ask();
  $("axis").onchange = () => { view.axis = $("axis").value; view.whole(); };
  $("generation").onchange = () => view.choose(+$("generation").value);
  $("controls").onsubmit = (event) => {
    event.preventDefault();
    const found = find($("goto").value, rows, +$("generation").value);
    if (found) view.reveal(...found); else $("said").textContent = "no such range here";
  };
}

async function begin() {
  const doc = JSON.parse($("document").textContent), columns = await unpack($("columns").textContent.trim(), doc.layout, doc.bytes);
  $("columns").remove();
  const rows = doc.lines.map((line) => new Row(line, columns, doc.looks, Date.parse(doc.made)));
  $("made").textContent = `as of ${doc.made}: ${number(columns.lengths.length)} ranges. ${doc.remark}`;
  if (!rows.length) { $("said").textContent = "nothing is planned yet"; return; }
  rows.sort((a, b) => b.generation - a.generation || a.partition - b.partition);
  const generations = [...new Set(rows.map((row) => row.generation))].sort((a, b) => b - a);
  for (const each of generations) $("generation").add(new Option(each === generations[0] ? `${each} (open)` : `${each} (closed)`, each));
  const view = new View(doc, rows);
  legend(view);
  listen(view, rows, tell(doc, rows, view));
  view.choose(generations[0]);
  window.offsetlake = { view, rows };  // for whoever looks with the browser's console, and for the tests
  document.body.dataset.ready = "yes";
}
begin().catch((error) => { $("made").textContent = `this page cannot be shown: ${error.message}`; throw error; });
