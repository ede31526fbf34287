"use strict";
// The page around what worker.js finds: takes files, says how far it is, shows a page or an error.

// Browsers start no worker of a page that was opened from a disk.
if (location.protocol === "file:") {
  document.getElementById("error").textContent =
    "This page needs a web server: python scripts/viewer.py FOLDER --serve 8000 builds it and serves it.";
}

const part = (id) => document.getElementById(id);
const worker = new Worker("worker.js", { type: "module" });
let asked = 0;
let address = null;

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

const look = (files) => {
  if (!files.length) return;
  for (const id of ["keep", "page"]) part(id).hidden = true;
  part("error").textContent = "";
  part("page").removeAttribute("srcdoc");
  say(`Reading ${files.length === 1 ? files[0].name : `${files.length} files`}...`);
  worker.postMessage({ number: ++asked, files });
};

worker.onmessage = ({ data }) => {
  if (data.number === undefined) { // how starting went
    if (data.error) fail(data.error);
    else if (!asked) say("Ready.");
    return;
  }
  if (data.number !== asked) return; // other files were dropped meanwhile
  if (data.page === undefined) return fail(data.error);
  // What is read twice counts twice, so of a small file this is more than there is.
  say(`${data.name}: at most ${size(Math.min(data.read, data.size))} of ${size(data.size)} were read.`);
  part("page").srcdoc = data.page;
  URL.revokeObjectURL(address);
  address = URL.createObjectURL(new Blob([data.page], { type: "text/html" }));
  part("save").href = address;
  part("save").download = `${data.name}.html`;
  part("page").hidden = part("keep").hidden = false;
};
worker.onerror = (event) => fail(`ckconv does not start here: ${event.message || "worker.js is not to be had"}`);

say("Starting...");
part("files").onchange = (event) => look([...event.target.files]);
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
