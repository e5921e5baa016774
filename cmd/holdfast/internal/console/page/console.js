// The page keeps no state of its own but what the address says after "#": filter, sort, page
// and lock. The server sends a scene a second; what others have written into it is only ever
// set as text.
"use strict";

const $ = (id) => document.getElementById(id);
const silence = 6000; // ms without a scene after which the page says that it is not live

// set changes a text, where it has changed, so that a selection and a screen reader stay calm.
const set = (el, text) => { if (el.textContent !== text) el.textContent = text; };
const attr = (el, name, value) => { if (el.getAttribute(name) !== value) el.setAttribute(name, value); };
const show = (el, on) => { if (el.hidden === on) el.hidden = !on; };

// able says whether a button does something. One that does not keeps the focus, which a disabled one would lose.
const able = (el, on) => attr(el, "aria-disabled", String(!on));
const isAble = (el) => el.getAttribute("aria-disabled") !== "true";
const press = (el, does) => el.addEventListener("click", () => { if (isAble(el)) does(); });

// printable shows what steers a text rather than lets it steer: controls, changes of direction, ends of lines, what no font has.
const printable = (s) => s.replace(/[\p{C}\p{Zl}\p{Zp}]/gu, (c) => "\\u{" + c.codePointAt(0).toString(16) + "}");

function brief(ms) {
  if (ms < 0) return "no end";
  const s = Math.floor(ms / 1000), two = (n) => String(n).padStart(2, "0");
  if (s < 60) return (ms / 1000).toFixed(1) + " s";
  if (s < 3600) return Math.floor(s / 60) + "m " + two(s % 60) + "s";
  if (s < 86400) return Math.floor(s / 3600) + "h " + two(Math.floor(s / 60) % 60) + "m";
  return Math.floor(s / 86400) + "d " + two(Math.floor(s / 3600) % 24) + "h";
}

function make(tag, attrs, ...children) {
  const el = document.createElement(tag);
  for (const [name, value] of Object.entries(attrs || {})) el.setAttribute(name, value);
  el.append(...children);
  return el;
}

// choose goes to a field, and what is typed replaces what stands there.
function choose(field) {
  field.focus();
  field.select(); // in some browsers this goes there too
}

// wish is what the address says.
const wish = () => new URLSearchParams(location.hash.slice(1));

function address(changes) {
  const want = wish();
  for (const [name, value] of Object.entries(changes)) value ? want.set(name, value) : want.delete(name);
  return "#" + want;
}
const go = (changes) => { location.hash = address(changes); };

// sync makes el's children match items, one for each key, and keeps those that are there.
function sync(el, items, key, create, update) {
  const old = new Map([...el.children].map((c) => [c.dataset.key, c]));
  let at = el.firstElementChild;
  for (const item of items) {
    const k = key(item);
    let child = old.get(k);
    old.delete(k);
    if (!child) {
      child = create(item);
      child.dataset.key = k;
    }
    if (child === at) at = at.nextElementSibling;
    else if (el.moveBefore && child.parentNode === el) el.moveBefore(child, at);
    else el.insertBefore(child, at);
    update(child, item);
  }
  for (const child of old.values()) child.remove();
}

// live: the stream of scenes, and whether it flows.
let stream, last = 0, refused = "", scene, states, asked;

// rows is what an address says about which locks to show, and in which order.
const rows = (want) => ["filter", "sort", "page"].map((name) => want.get(name)).join("\n");

function listen() {
  if (stream) stream.close();
  const want = wish(), before = asked;
  asked = rows(want);
  let tell = before !== undefined && before !== asked; // what the user has changed
  stream = new EventSource("events?" + want);
  stream.onmessage = (e) => { last = Date.now(); refused = ""; scene = JSON.parse(e.data); draw(scene, want); if (tell) count(scene, want); tell = false; };
  stream.onerror = () => {
    if (stream.readyState !== EventSource.CLOSED) return; // it tries again by itself
    refused = "the console refuses the page: too many pages look at it, or its address is wrong";
    setTimeout(() => { if (stream.readyState === EventSource.CLOSED) listen(); }, 3000);
  };
  $("filter").value = document.activeElement === $("filter") ? $("filter").value : want.get("filter") || "";
  $("sort").value = want.get("sort") || "state";
  if (!want.get("lock")) show($("detail"), false);
}

// count tells a screen reader what a filter, an order or a page has brought.
function count(s, want) {
  const filter = want.get("filter"), order = $("sort").selectedOptions[0];
  set($("l-said"), s.matching.toLocaleString("en") + (s.matching === 1 ? " lock" : " locks") + (filter ? " for " + printable(filter) : "") +
    (order ? ", " + order.text : "") + ", page " + (s.page + 1) + " of " + s.pages);
}

// headline is read out where it changes, so it must not count seconds.
function headline(text, level) {
  attr($("headline"), "data-level", level);
  set($("headline").querySelector(".text"), text);
  document.title = (level === "fine" || level === "early" ? "" : level === "bad" ? "✕ " : "▲ ") + "holdfast";
}

setInterval(() => {
  const age = Date.now() - last;
  if (last && age < silence) return;
  attr(document.body, "data-live", "no");
  const text = refused || (last ? "nothing heard from the console since " + new Date(last).toLocaleTimeString() : "the console does not answer");
  if (last || refused || performance.now() > silence) headline("NOT LIVE: " + text, "bad");
  set($("live"), "not live" + (last ? " for " + brief(age).replace(/\.\d s$/, " s") : ""));
}, 1000);

function draw(s, want) {
  attr(document.body, "data-live", "yes");
  headline(s.headline[0].toUpperCase() + printable(s.headline.slice(1)), s.level);
  set($("prefix"), s.prefix ? printable(s.prefix) + "*" : "");
  set($("live"), s.whole < 0 ? "live" : "live · all locks seen " + (s.whole < 1500 ? "just now" : brief(s.whole).replace(/\.\d s$/, " s") + " ago"));
  sync($("nodes"), s.nodes, (n) => n.node, () => make("li", {},
    make("span", { class: "mark", "aria-hidden": "true" }), make("span", { class: "node" }), make("span", { class: "word" }), make("span", { class: "cause" })),
  (li, n) => {
    attr(li, "data-level", n.level);
    set(li.querySelector(".node"), printable(n.node));
    set(li.querySelector(".word"), n.level === "fine" ? (n.state + " " + (n.trip || "")).trim() : n.state.toUpperCase());
    set(li.querySelector(".cause"), printable(n.cause || ""));
    show(li.querySelector(".cause"), !!n.cause);
  });
  const now = s.nodes.map((n) => n.state).join();
  if (states !== undefined && states !== now) setTimeout(examine, 6000); // what the server has found is old by then
  states = now;
  for (const name of ["locks", "held", "waiting", "trouble"]) set($("c-" + name), s[name].toLocaleString("en"));
  set($("c-hand_overs"), s.hand_overs);
  attr($("c-trouble"), "data-level", s.trouble ? "warn" : "fine");
  drawRows(s, want);
  drawLock(s, want);
}

const cells = ["state", "holder", "held", "left", "waiting"];

function drawRows(s, want) {
  const body = $("l-table").tBodies[0], link = body.contains(document.activeElement) ? document.activeElement : null;
  const at = link ? link.closest("tr").sectionRowIndex : -1;
  sync(body, s.rows, (r) => r.name, (r) => {
    const tr = make("tr", { role: "row" }, make("th", { role: "rowheader", scope: "row" }, make("a", {}, printable(r.name))));
    for (const name of cells) tr.append(make("td", { role: "cell", class: name === "state" ? "state" : name === "holder" ? "" : "n" }));
    tr.children[1].append(make("span", { class: "mark", "aria-hidden": "true" }), make("span", { class: "word" }));
    ["held", "left", "waiting"].forEach((name, i) => tr.children[3 + i].setAttribute("data-label", name));
    tr.addEventListener("click", (e) => { if (e.target.tagName !== "A" && !String(getSelection())) go({ lock: r.name }); });
    return tr;
  }, (tr, r) => {
    attr(tr.querySelector("a"), "href", address({ lock: r.name }));
    const [, state, holder, held, left, waiting] = tr.children;
    attr(state, "data-level", r.level);
    set(state.querySelector(".word"), (r.level === "fine" ? "" : " ") + r.state);
    state.title = printable(r.why || "");
    set(holder, printable(r.holder || ""));
    set(held, r.held ? brief(r.held) : "");
    set(left, r.is_held ? brief(r.left) : "");
    set(waiting, r.waiting ? String(r.waiting) : "");
    r.name === want.get("lock") ? attr(tr, "aria-current", "true") : tr.removeAttribute("aria-current");
  });
  if (link && document.activeElement !== link) { // its row has moved or gone
    (link.isConnected ? link : body.rows.length ? body.rows[Math.min(at, body.rows.length - 1)].querySelector("a") : $("locks")).focus();
  }
  set($("p-text"), s.page + 1 + " of " + s.pages);
  able($("p-back"), s.page > 0);
  able($("p-next"), s.page + 1 < s.pages);
  show($("l-table"), s.rows.length > 0);
  show($("l-empty"), s.rows.length === 0);
  set($("l-empty"), s.whole < 0 ? "The locks are being read." : want.get("filter") ? "No lock matches the filter." : "No locks: nobody holds or wants one.");
  show($("l-hidden"), s.hidden > 0);
  set($("l-hidden"), s.hidden.toLocaleString("en") + " more locks are not shown. Start the console with a prefix to see them.");
}

// shortened is what tells one owner from another; the facts have all of it.
function shortened(owner) {
  const id = owner.split("~")[0];
  return id.length > 20 ? id.slice(0, 5) + "…" + id.slice(-8) : id;
}

function facts(el, rows) {
  rows = rows.filter(([, text]) => text);
  sync(el, rows.flatMap(([name, text]) => [["dt", name], ["dd", text, name]]), (r) => r[0] + (r[2] || r[1]), ([tag]) => make(tag), (child, r) => set(child, printable(r[1])));
}

const holderFacts = (l) => [
  ["Holder", l.holder], ["Held for", l.held ? brief(l.held) + (l.hand_overs ? ", " + l.hand_overs + " hand-overs seen" : "") : ""],
  ["Lease left", l.is_held ? brief(l.left) : ""], ["Asked", l.asked >= 0 && l.is_held && l.hand_overs ? brief(l.asked) + " ago, by the holder's clock" : ""],
  ["Token", l.token], ["Owner", l.owner], ["Waiting", String(l.waiting)],
];

function drawLock(s, want) {
  const l = s.lock, name = want.get("lock");
  if (!l || l.name !== name) return;
  const opened = $("detail").hidden || $("d-name").dataset.name !== name;
  show($("detail"), true);
  $("d-name").dataset.name = name;
  set($("d-name"), printable(name));
  attr($("d-state"), "data-level", l.level);
  set($("d-state"), l.state + (l.why ? ": " + printable(l.why) : ""));
  show($("d-error"), !!l.error);
  set($("d-error"), printable(l.error || ""));
  facts($("d-facts"), holderFacts(l));
  if ($("d-act").contains(document.activeElement) && !l.is_held) $("detail").focus(); // the button goes
  show($("d-act"), s.force && l.is_held);
  show($("d-readonly"), !s.force && l.is_held);
  show($("d-nobody"), l.queue.length < l.waiting || l.queue.length === 0);
  set($("d-nobody"), l.waiting === 0 ? "Nobody." : l.queue.length ? "The first " + l.queue.length + " of " + l.waiting + ":" : l.waiting + "; who they are is not known.");
  sync($("d-queue"), l.queue.map((w, i) => ({ ...w, i })), (w) => String(w.i), () => make("li"),
    (li, w) => set(li, printable(w.holder) + (w.asked >= 0 ? ", asked " + brief(w.asked) + " ago" : "")));
  show($("d-votes"), l.votes.length > 0);
  show($("d-novotes"), l.votes.length === 0);
  sync($("d-votes").tBodies[0], l.votes, (v) => v.node, () => {
    const tr = make("tr", { role: "row" }, make("th", { role: "rowheader", scope: "row" }));
    for (const c of ["verdict", "", "n", "n"]) tr.append(make("td", { role: "cell", class: c }));
    tr.children[3].setAttribute("data-label", "left");
    tr.children[4].setAttribute("data-label", "waiting");
    return tr;
  }, (tr, v) => {
    attr(tr, "data-level", v.level);
    const texts = v.error ? [v.node, "SILENT", v.error, "", ""] : [v.node, v.vote, "", v.owner ? brief(v.left) : "", String(v.waiting)];
    if (v.owner) texts[2] = shortened(v.owner) + (v.token ? "\n" + v.token : "");
    texts.forEach((text, i) => set(tr.children[i], text.split("\n").map(printable).join("\n")));
  });
  if (opened && document.activeElement && document.activeElement.tagName === "A") $("detail").focus();
}

// The doctor is asked when the page opens, when a node has changed, every five minutes, and by its button. Only
// the button has it say so, because a screen reader reads that out.
async function examine(aloud) {
  able($("doc-run"), false);
  set($(aloud ? "doc-text" : "doc-time"), "Examining …");
  try {
    const answer = await fetch("doctor"), findings = await answer.json();
    if (!answer.ok) throw new Error(findings.error);
    drawDoctor(findings || []);
  } catch (e) {
    set($("doc-text"), "The doctor could not look: " + printable(e.message));
    set($("c-doctor"), "?");
  }
  set($("doc-time"), "At " + new Date().toLocaleTimeString() + ".");
  able($("doc-run"), true);
}

function drawDoctor(findings) {
  const bad = findings.filter((f) => f.verdict === "fault" || f.verdict === "warning");
  bad.sort((a, b) => a.verdict.localeCompare(b.verdict)); // faults come first
  const rest = findings.filter((f) => !bad.includes(f)), faults = bad.filter((f) => f.verdict === "fault").length;
  const text = bad.length ? (faults ? faults + (faults > 1 ? " faults" : " fault") : "") + (faults && bad.length > faults ? ", " : "") +
    (bad.length > faults ? bad.length - faults + (bad.length - faults > 1 ? " warnings" : " warning") : "") : "sound";
  set($("c-doctor"), text);
  attr($("c-doctor"), "data-level", faults ? "bad" : bad.length ? "warn" : "fine");
  set($("doc-text"), bad.length ? "Found " + text + "." : "Nothing is wrong.");
  show($("doc-table"), bad.length > 0);
  let i = 0;
  sync($("doc-table").tBodies[0], bad, () => String(i++), () => {
    const tr = make("tr", { role: "row" }, make("th", { role: "rowheader", scope: "row", class: "verdict" }));
    for (let c = 0; c < 3; c++) tr.append(make("td", { role: "cell" }));
    tr.lastChild.append(make("span"), make("span", { class: "fix" }));
    return tr;
  }, (tr, f) => {
    attr(tr, "data-level", f.verdict === "fault" ? "bad" : "warn");
    [f.verdict.toUpperCase(), f.node || "all", f.check].forEach((t, n) => set(tr.children[n], printable(t)));
    set(tr.lastChild.firstChild, printable(f.text));
    set(tr.lastChild.lastChild, printable(f.fix || ""));
  });
  show($("doc-rest"), rest.length > 0);
  set($("doc-rest").querySelector("summary"), rest.length + " checks without a fault");
  sync($("doc-rest").querySelector("ul"), rest, () => String(i++), () => make("li"),
    (li, f) => set(li, printable([f.verdict, f.node, f.check].filter(Boolean).join(" · ") + ": " + f.text)));
}

// Taking a lock away. The dialog keeps the holder that it shows: the server refuses it if
// another one has the lock by then.
let target;

function ask() {
  target = { ...scene.lock };
  facts($("f-facts"), [["Lock", target.name], ...holderFacts(target).filter(([name]) => name !== "Asked")]);
  for (const id of ["f-reason", "f-name"]) $(id).value = "";
  fail("");
  $("force").showModal();
  $("f-reason").focus();
}

// fail says what is wrong, and goes to the field in which it is. Without a text nothing is wrong.
function fail(text, field) {
  set($("f-error"), printable(text));
  show($("f-error"), !!text);
  for (const id of ["f-name", "f-token"]) attr($(id), "aria-invalid", String($(id) === field));
  if (field) choose(field);
}

async function take(e) {
  e.preventDefault();
  if (!isAble($("f-go"))) return;
  fail("");
  if ($("f-name").value !== printable(target.name)) return fail("That is not the name of the lock. Nothing was done.", $("f-name"));
  able($("f-go"), false);
  let wrong;
  try {
    const answer = await fetch("force", {
      method: "POST",
      headers: { "Content-Type": "application/json", Authorization: "Bearer " + $("f-token").value.trim() },
      body: JSON.stringify({ name: target.name, token: target.token || "0", reason: $("f-reason").value }),
    });
    const body = await answer.json();
    if (answer.status === 403) wrong = $("f-token");
    if (!answer.ok) throw new Error(body.error);
    $("force").close();
    said(target.name + " was taken from " + target.holder + ".");
  } catch (problem) {
    fail(problem.message, wrong);
  } finally {
    able($("f-go"), true);
  }
}

function said(text) {
  set($("said"), printable(text));
  setTimeout(() => set($("said"), ""), 10000);
}

let typing;
$("filter").addEventListener("input", () => {
  clearTimeout(typing);
  typing = setTimeout(() => go({ filter: $("filter").value.trim(), page: "" }), 250);
});
document.querySelector(".tools").addEventListener("submit", (e) => e.preventDefault());
$("sort").addEventListener("change", () => go({ sort: $("sort").value, page: "" }));
const turn = (by) => go({ page: String(Math.min(Number(wish().get("page")) || 0, scene.pages - 1) + by) });
press($("p-back"), () => turn(-1));
press($("p-next"), () => turn(1));
press($("d-close"), close);
press($("d-force"), ask);
press($("doc-run"), () => examine(true));
press($("c-doctor"), () => { $("doctor").scrollIntoView(); $("doctor").focus(); });
press($("f-cancel"), () => $("force").close());
$("force").addEventListener("submit", take);
$("force").addEventListener("close", () => {
  target = undefined;
  if ($("d-act").hidden) $("detail").focus(); // the button that opened it has gone
});
document.querySelector(".skip").addEventListener("click", (e) => { e.preventDefault(); $("locks").focus(); });
addEventListener("hashchange", listen);
addEventListener("keydown", (e) => {
  if (e.ctrlKey || e.altKey || e.metaKey || $("force").open) return;
  if (e.key === "/" && !/INPUT|SELECT/.test(e.target.tagName)) {
    e.preventDefault();
    choose($("filter"));
  } else if (e.key === "Escape" && !$("detail").hidden && !(e.target === $("filter") && e.target.value)) close(); // a filter is emptied first
});

// close goes back to the row of the lock, or to the locks where that has gone.
function close() {
  const name = wish().get("lock");
  go({ lock: "" });
  const row = [...$("l-table").tBodies[0].rows].find((tr) => tr.dataset.key === name);
  (row ? row.querySelector("a") : $("locks")).focus();
}

listen();
examine(true);
setInterval(examine, 5 * 60 * 1000);
