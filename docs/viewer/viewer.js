"use strict";
// The page around what worker.js finds: takes files, says how far it is, shows a page, an error, or how two models differ.

// Browsers start no worker of a page that was opened from a disk.
if (location.protocol === "file:") {
  document.getElementById("error").textContent =
    "This page needs a web server: python scripts/viewer.py FOLDER --serve 8000 builds it and serves it.";
}

const part = (id) => document.getElementById(id);
const worker = new Worker("worker.js", { type: "module" });
let asked = 0;
let address = null;
let first = null; // what the page shows; another model is compared with it

const size = (bytes) => {
  const unit = ["B", "kB", "MB", "GB", "TB"];
  let at = 0;
  while (bytes >= 999.5 && at < unit.length - 1) [bytes, at] = [bytes / 1000, at + 1];
  return `${at && bytes < 9.95 ? bytes.toFixed(1) : bytes.toFixed(0)} ${unit[at]}`;
};

const say = (text) => (part("status").textContent = text);

const fail = (text) => {
  say("");
  part("error").textContent = text;
};

const look = (files, other = false) => {
  if (!files.length) return;
  part("error").textContent = "";
  part("changes").hidden = true;
  if (!other) {
    first = null;
    for (const id of ["keep", "beside", "page"]) part(id).hidden = true;
    part("page").removeAttribute("srcdoc");
  }
  say(`Reading ${files.length === 1 ? files[0].name : `${files.length} files`}...`);
  worker.postMessage({ number: ++asked, files });
};

const row = (kind, cells) => {
  const made = document.createElement("tr");
  for (const cell of cells) made.appendChild(document.createElement(kind)).textContent = cell ?? "-";
  return made;
};

// Headers alone: values are what `ckconv diff` reads.
const compare = (one, other) => {
  const rows = [];
  for (const part of ["config", "metadata", "tensors"]) {
    const [a, b] = [one.facts[part], other.facts[part]];
    for (const name of new Set([...Object.keys(a), ...Object.keys(b)]))
      if (a[name] !== b[name] && (part !== "metadata" || (name in a && name in b))) rows.push([part, name, a[name], b[name]]);
  }
  const table = document.createElement("table");
  table.append(row("th", ["", "", one.name, other.name]), ...rows.map((cells) => row("td", cells)));
  const count = `${rows.length || "no"} difference${rows.length === 1 ? "" : "s"} in names, types, shapes and settings`;
  say(`${one.name} and ${other.name}: ${count}. Values were not read: ckconv diff compares them.`);
  part("changes").replaceChildren(...(rows.length ? [table] : []));
  part("changes").hidden = !rows.length;
};

worker.onmessage = ({ data }) => {
  if (data.number === undefined) { // how starting went
    part("loading").hidden = data.error !== undefined || data.step === data.steps;
    [part("loading").max, part("loading").value] = [data.steps ?? 1, data.step ?? 0];
    if (data.error) fail(data.error);
    else if (!asked) say(data.step === data.steps ? "Ready." : `Starting: ${data.what} (${data.step + 1} of ${data.steps})...`);
    return;
  }
  if (data.number !== asked) return; // other files were dropped meanwhile
  if (data.page === undefined) return fail(data.error);
  if (first) return compare(first, data);
  first = data;
  // What is read twice counts twice, so of a small file this is more than there is.
  say(`${data.name}: at most ${size(Math.min(data.read, data.size))} of ${size(data.size)} were read.`);
  part("page").srcdoc = data.page;
  URL.revokeObjectURL(address);
  address = URL.createObjectURL(new Blob([data.page], { type: "text/html" }));
  part("save").href = address;
  part("save").download = `${data.name}.html`;
  for (const id of ["page", "keep", "beside"]) part(id).hidden = false;
};
worker.onerror = (event) => fail(`ckconv does not start here: ${event.message || "worker.js is not to be had"}`);

say("Starting...");
part("files").onchange = (event) => look([...event.target.files]);
part("others").onchange = (event) => look([...event.target.files], true);
part("example").onclick = async () => {
  const answer = await fetch("example.gguf");
  if (answer.ok) look([new File([await answer.blob()], "example.gguf")]);
  else fail(`example.gguf: ${answer.status} ${answer.statusText}`);
};
// A file dropped anywhere is meant for us; the browser would leave the page for it. While one is dragged the frame lets
// it through (.over), as nothing that is dropped on a frame is told to the page around.
document.ondragover = (event) => {
  event.preventDefault();
  document.body.classList.add("over");
};
document.ondragleave = (event) => event.relatedTarget ?? document.body.classList.remove("over");
document.ondrop = (event) => {
  event.preventDefault();
  document.body.classList.remove("over");
  look([...event.dataTransfer.files]);
};
