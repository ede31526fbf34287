// ckconv in Pyodide: what `ckconv inspect PATH --html` writes of files that are mounted, never copied.
import { loadPyodide } from "./pyodide/pyodide.mjs";

// WORKERFS reads slices of a File, each with this call: they are counted.
let read = 0;
const readSlice = FileReaderSync.prototype.readAsArrayBuffer;
FileReaderSync.prototype.readAsArrayBuffer = function (slice) {
  read += slice.size;
  return readSlice.call(this, slice);
};

const wheels = ["click.whl", "yaml.whl", "ckconv.whl"];
const started = (async () => {
  const told = (step, what) => postMessage({ step, what, steps: wheels.length + 1 });
  told(0, "Python");
  const py = await loadPyodide();
  for (const [number, wheel] of wheels.entries()) {
    told(number + 1, wheel);
    const answer = await fetch(wheel);
    if (!answer.ok) throw new Error(`${wheel}: ${answer.status} ${answer.statusText}`);
    py.unpackArchive(await answer.arrayBuffer(), "wheel", { extractDir: "/packages" });
  }
  py.pyimport("sys").path.append("/packages");
  py.FS.mkdir("/model");
  py.FS.chdir("/");
  return py;
})();
started.then(
  () => postMessage({ step: wheels.length + 1, steps: wheels.length + 1 }),
  (error) => postMessage({ error: `ckconv does not start here: ${error.message}` }),
);

const inspected = (py, files) => {
  const said = [];
  py.setStderr({ batched: (line) => said.push(line) });
  read = 0;
  py.FS.mount(py.FS.filesystems.WORKERFS, { files }, "/model");
  try {
    const path = files.length === 1 ? `model/${files[0].name}` : "model";
    const run = py.pyimport("ckconv.cli").run;
    if (run(py.toPy(["inspect", path, "--html", "page.html"])) !== 0) {
      return { error: said.filter((line) => !line.startsWith("hint: ")).join("\n") }; // hints name flags
    }
    const page = py.FS.readFile("/page.html", { encoding: "utf8" });
    const json = [];
    py.setStdout({ batched: (line) => json.push(line) });
    run(py.toPy(["inspect", path, "--json"]));
    const { config, metadata, tensors } = JSON.parse(json.join("\n"));
    const flat = (table, text) => Object.fromEntries(Object.entries(table ?? {}).map(([key, value]) => [key, text(value)]));
    const facts = {
      config: flat(config, JSON.stringify),
      metadata: flat(metadata, (item) => JSON.stringify(item?.value ?? item)),
      tensors: Object.fromEntries(tensors.map((it) => [it.canonical ?? it.name, `${it.dtype} ${it.shape.join(" x ")}`])),
    };
    const size = files.reduce((sum, file) => sum + file.size, 0);
    return { page, facts, name: files.length === 1 ? files[0].name : `${files.length} files`, read, size };
  } finally {
    py.FS.unmount("/model");
    if (py.FS.analyzePath("/page.html").exists) py.FS.unlink("/page.html");
  }
};

onmessage = async ({ data: { number, files } }) => {
  try {
    postMessage({ number, ...inspected(await started, files) });
  } catch (error) {
    postMessage({ number, error: `ckconv does not run here: ${error.message}` });
  }
};
