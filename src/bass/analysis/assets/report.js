// The picture of the batch: which tokens of which row were accepted, rejected, corrected or added, step by step.
"use strict";
(() => {
  const data = JSON.parse(document.getElementById("pictures").textContent);
  if (!data.pictures.length) return;
  const find = (id) => document.getElementById(id);
  const [choice, slider, counts, overview, table, tip] = ["cell", "step", "counts", "overview", "window", "tip"].map(find);
  const NAMES = { A: "accepted", R: "rejected", C: "correction", B: "bonus", P: "plain", U: "unused" };
  const SVG = "http://www.w3.org/2000/svg";
  const HIGH = 12, GAP = 4;
  let picture, tokens, cursor = [0, 0];

  const make = (name, options = {}, ...inside) => {
    const made = Object.assign(document.createElement(name), options);
    made.append(...inside);
    return made;
  };
  const visible = (text) => text.replaceAll("\n", "⏎").replaceAll("\t", "⇥").replaceAll(" ", "␣")
    .replace(/[\p{C}\p{Zl}\p{Zp}]/gu, (one) => `\\u${one.codePointAt(0).toString(16).padStart(4, "0")}`); // what has no shape of its own
  const textOf = (id) => (id === undefined ? "" : (data.pieces[id] ?? `#${id}`));
  const percent = (p) => (p === undefined || p === null ? null : p >= 0.0995 ? p.toFixed(2) : p.toPrecision(2));

  // The tokens of every step and row: tokens[step][row] = [{kind, id, probability, drafted, position}, ...]
  function unfold() {
    const done = {};
    tokens = picture.steps.map((step, s) => step.kinds.map((kinds, row) => {
      const index = step.requests[row];
      if (index < 0) return [];
      const request = picture.requests[index] ?? { prompt: 0, tokens: [], probs: [] };
      const first = done[index] ?? 0;
      let taken = first;
      const found = [...kinds].map((kind, i) => {
        const target = "CBP".includes(kind), mine = kind === "A" || target;
        const at = mine ? taken++ : null;
        return {
          kind, row, request: index, step: s,
          id: mine ? request.tokens[at] : step.tokens?.[row]?.[i],
          probability: mine ? request.probs[at] : undefined,
          drafted: target ? undefined : step.probs?.[row]?.[i],
          position: request.prompt + (mine ? at : first + i),
        };
      });
      done[index] = taken;
      return found;
    }));
  }

  function describe(token) {
    const known = token.id !== undefined;
    const lines = [`${known ? `“${visible(textOf(token.id))}”` : "(this token was not recorded)"}: ${NAMES[token.kind]}`];
    if (percent(token.probability)) lines.push(`probability of the target: ${percent(token.probability)}`);
    if (percent(token.drafted)) lines.push(`probability of the draft: ${percent(token.drafted)}`);
    lines.push(`row ${token.row}, request ${token.request}, position ${token.position}, step ${token.step + 1}` + (known ? `, id ${token.id}` : ""));
    return lines.join("\n");
  }

  function showTip(text, x, y) {
    tip.textContent = text;
    tip.hidden = false;
    const box = tip.getBoundingClientRect();
    tip.style.left = `${Math.max(4, Math.min(x, innerWidth - box.width - 8))}px`;
    tip.style.top = `${y + box.height + 8 > innerHeight ? Math.max(4, y - box.height - 34) : y + 6}px`;
  }
  const hideTip = () => { tip.hidden = true; };

  // The request that each row holds at a step, or held last.
  function holders(s) {
    return picture.steps[s].requests.map((index, row) => {
      for (let t = s; index < 0 && t-- > 0;) index = picture.steps[t].requests[row];
      return index;
    });
  }

  function drawOverview(s) {
    const held = holders(s), rows = held.length;
    overview.setAttribute("viewBox", `${picture.from} 0 ${picture.to - picture.from} ${rows * (HIGH + GAP) + GAP}`);
    overview.style.height = `${Math.max(rows * 16, 40)}px`;
    const paths = { prompt: "", accepted: "", correction: "", bonus: "", plain: "", rejected: "", unused: "", now: "" };
    const add = (name, x, row, top, high, wide = 1) => { paths[name] += `M${x} ${GAP + row * (HIGH + GAP) + top}h${wide}v${high}h${-wide}z`; };
    held.forEach((index, row) => {
      if (index >= 0) add("prompt", picture.from, row, 4, HIGH - 8, Math.max(0, picture.requests[index].prompt - picture.from));
    });
    // Heights tell the kinds apart without colour: accepted full, correction its lower half, bonus its upper half.
    const SHAPES = { A: [0, HIGH], C: [HIGH / 2, HIGH / 2], B: [0, HIGH / 2], P: [3, HIGH - 6], R: [2, HIGH - 4], U: [4, HIGH - 8] };
    for (let t = 0; t <= s; t++) {
      tokens[t].forEach((row, b) => row.forEach((token) => {
        const left = "RU".includes(token.kind);
        if (token.request === held[b] && (t === s || !left)) add(NAMES[token.kind], token.position + (left ? 0.15 : 0), b, ...SHAPES[token.kind], left ? 0.7 : 1);
      }));
    }
    tokens[s].forEach((row, b) => { if (row.length) add("now", row[0].position, b, -1.5, HIGH + 3, row.length); });
    overview.replaceChildren(...Object.entries(paths).map(([name, d]) => {
      const path = document.createElementNS(SVG, "path");
      path.setAttribute("class", name);
      path.setAttribute("d", d);
      return path;
    }));
  }

  function chip(token) {
    const text = token.id === undefined ? "   " : visible(textOf(token.id));
    const made = make("span", { className: `token ${NAMES[token.kind]}`, tabIndex: -1 }, make("b", { textContent: token.kind }), make("span", { textContent: text }));
    made.setAttribute("aria-label", describe(token).replaceAll("\n", ", "));
    made.token = token;
    return made;
  }

  function drawStep(s) {
    const step = picture.steps[s], k = Math.max(0, ...step.drafted);
    const head = ["row", "text so far", "emitted", ...Array.from({ length: k }, (_, i) => `d${i + 1}`), "target adds"];
    const body = tokens[s].map((row, b) => {
      const index = step.requests[b];
      if (index < 0) return make("tr", {}, make("th", { textContent: b, scope: "row" }), make("td", { className: "context", textContent: "(idle)" }));
      const before = row.length ? picture.requests[index].tokens.slice(0, row[0].position - picture.requests[index].prompt) : [];
      const said = before.slice(-24).map((id) => textOf(id)).join("").replaceAll("\n", "⏎").slice(-48);
      const drafted = row.filter((token) => "ARU".includes(token.kind)), target = row.filter((token) => "CBP".includes(token.kind));
      const cells = Array.from({ length: k }, (_, i) => make("td", {}, ...(drafted[i] ? [chip(drafted[i])] : [])));
      return make("tr", {}, make("th", { textContent: b, scope: "row" }), make("td", { className: "context" }, make("bdi", { textContent: said })),
        make("td", { className: "count", textContent: step.emitted[b] }), ...cells, make("td", { className: "added" }, ...target.map(chip)));
    });
    table.replaceChildren(make("thead", {}, make("tr", {}, ...head.map((text, i) => make("th", { textContent: text, scope: "col", className: i === head.length - 1 ? "added" : "" })))), make("tbody", {}, ...body));
  }

  const chipsOf = (row) => [...(table.tBodies[0].rows[row]?.querySelectorAll(".token") ?? [])];
  function enter(row, column, focus) {
    for (const old of table.querySelectorAll('[tabindex="0"]')) old.tabIndex = -1;
    const chips = chipsOf(row);
    const found = chips[Math.min(column, chips.length - 1)] ?? table.querySelector(".token");
    if (!found) return;
    cursor = [row, column];
    found.tabIndex = 0;
    if (focus) found.focus();
  }

  function draw() {
    const s = Number(slider.value) - 1, step = picture.steps[s];
    const sum = (list) => list.reduce((a, b) => a + b, 0);
    const words = `${picture.title}, step ${s + 1} of ${picture.steps.length}: k = ${step.k}, drafted ${sum(step.drafted)}, accepted ${sum(step.accepted)}, emitted ${sum(step.emitted)}, ${(step.seconds * 1e3).toFixed(1)} ms`;
    counts.textContent = words;
    slider.setAttribute("aria-valuetext", words);
    hideTip();
    drawOverview(s);
    drawStep(s);
    enter(...cursor, false);
  }

  function choose() {
    picture = data.pictures[Number(choice.value)];
    find("picture-note").textContent = picture.note;
    slider.max = picture.steps.length;
    // What all prompts have in common is left out but for its end, and the first step to see is one in which something was rejected.
    const all = Object.values(picture.requests), most = Math.max(...all.map((r) => r.tokens.length));
    picture.from = Math.max(0, Math.min(...all.map((r) => r.prompt)) - Math.ceil(most / 10));
    picture.to = Math.max(...all.map((r) => r.prompt + r.tokens.length)) + picture.longest;
    const third = Math.floor(picture.steps.length / 3);
    const telling = picture.steps.findIndex((step, s) => s >= third && /[AB]/.test(step.kinds) && /R/.test(step.kinds));
    slider.value = 1 + (telling < 0 ? third : telling);
    unfold();
    draw();
  }

  const go = (by) => { slider.value = Number(slider.value) + by; draw(); };
  data.pictures.forEach((p, i) => choice.append(make("option", { value: i, textContent: p.title })));
  choice.addEventListener("change", choose);
  slider.addEventListener("input", draw);
  find("back").addEventListener("click", () => go(-1));
  find("on").addEventListener("click", () => go(1));
  const below = (chip) => { const box = chip.getBoundingClientRect(); showTip(describe(chip.token), box.left, box.bottom); };
  table.addEventListener("pointerover", (event) => { const chip = event.target.closest(".token"); chip ? below(chip) : hideTip(); });
  table.addEventListener("pointerleave", hideTip);
  table.addEventListener("focusin", (event) => {
    if (!event.target.token) return;
    const row = event.target.closest("tr").sectionRowIndex;
    enter(row, chipsOf(row).indexOf(event.target), false);
    below(event.target);
  });
  table.addEventListener("focusout", hideTip);
  table.addEventListener("keydown", (event) => {
    const [row, column] = cursor, last = table.tBodies[0].rows.length - 1;
    const next = (by) => { for (let r = row + by; r >= 0 && r <= last; r += by) if (chipsOf(r).length) return r; return row; };
    const moves = { ArrowLeft: [row, Math.max(0, column - 1)], ArrowRight: [row, Math.min(column + 1, chipsOf(row).length - 1)], ArrowUp: [next(-1), column], ArrowDown: [next(1), column],
      Home: [row, 0], End: [row, chipsOf(row).length - 1] };
    if (event.key === "Escape") hideTip();
    if (moves[event.key]) { event.preventDefault(); enter(...moves[event.key], true); }
  });
  const under = (event) => {
    const box = overview.getBoundingClientRect(), view = overview.viewBox.baseVal, s = Number(slider.value) - 1;
    const row = Math.floor(((event.clientY - box.top) / box.height * view.height - GAP / 2) / (HIGH + GAP));
    const position = Math.floor(view.x + (event.clientX - box.left) / box.width * view.width), index = holders(s)[row];
    const all = tokens.slice(0, s + 1).flatMap((step) => step[row] ?? []).filter((t) => t.request === index && t.position === position);
    return all.find((t) => !"RU".includes(t.kind)) ?? all.find((t) => t.step === s);
  };
  overview.addEventListener("pointermove", (event) => {
    const token = under(event);
    token ? showTip(describe(token), event.clientX + 8, event.clientY + 8) : hideTip();
  });
  overview.addEventListener("pointerleave", hideTip);
  overview.addEventListener("click", (event) => { const token = under(event); if (token) { slider.value = token.step + 1; draw(); } });
  document.addEventListener("keydown", (event) => { if (event.key === "Escape") hideTip(); });
  choose();
})();
