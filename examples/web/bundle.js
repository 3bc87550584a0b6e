// A bundle: its manifest, and its files, whose sizes and hashes are checked.

const SCHEMA_VERSION = 3;

export class Bundle {
  // source: {name, read(path, entry) -> Promise<Uint8Array>}; entry: size and sha256 of a file
  static async open(source) {
    let manifest;
    try {
      manifest = JSON.parse(new TextDecoder().decode(await source.read("manifest.json")));
    } catch (error) {
      throw new Error(`${source.name}: no manifest.json of a bundle (${error.message})`);
    }
    const {schema_version: version, job, files} = manifest ?? {};
    if (version !== SCHEMA_VERSION || !job?.components || !job.constants || !files) {
      throw new Error(`${source.name}: not a bundle of version ${SCHEMA_VERSION}; export it again`);
    }
    if (job.target !== "onnx") {
      throw new Error(`${source.name}: made for ${job.target}; export it with --target onnx`);
    }
    return Object.assign(new Bundle(), {source, manifest, family: job.family, constants: job.constants});
  }

  component(name) {
    return this.manifest.job.components.find(each => each.name === name);
  }

  async read(path) {
    const entry = this.manifest.files[path], isInside = !/^\/|[\\:]|(^|\/)\.{0,2}(\/|$)/.test(path);
    if (!entry || !isInside) throw new Error(`${this.source.name}: no file ${path}; export it again`);
    const bytes = await this.source.read(path, entry);
    const digest = await globalThis.crypto?.subtle?.digest("SHA-256", bytes); // none in a page without TLS
    const hash = Array.from(new Uint8Array(digest), byte => byte.toString(16).padStart(2, "0")).join("");
    if (bytes.length === entry.size && (!digest || hash === entry.sha256)) return bytes;
    await this.source.forget?.(path, entry);
    throw new Error(`${path}: damaged, ${bytes.length} of ${entry.size} bytes; copy the bundle again`);
  }

  async text(path) {
    return new TextDecoder().decode(await this.read(path));
  }
}

// Files under a URL. progress(path, bytes, size). The service worker keeps what has a hash in its URL.
export function urlSource(base, progress = () => {}) {
  const root = new URL(base.endsWith("/") ? base : `${base}/`, location.href);
  const encode = path => path.split("/").map(encodeURIComponent).join("/");
  const locate = (path, entry) => new URL(encode(path) + (entry ? `?sha256=${entry.sha256}` : ""), root);
  const read = async (path, entry) => {
    const response = await fetch(locate(path, entry), entry ? {} : {cache: "no-cache"}); // it may change
    if (!response.ok) throw new Error(`${path}: ${response.status} ${response.statusText}`);
    const parts = [new Uint8Array(0)], reader = response.body.getReader();
    for (let length = 0, part; !(part = await reader.read()).done; ) {
      parts.push(part.value);
      progress(path, (length += part.value.length), entry?.size);
    }
    return concatenate(parts);
  };
  const forget = async (...file) => (await globalThis.caches?.open("voxport"))?.delete(locate(...file));
  return {name: root.href, read, forget};
}

// Files that the user picked, by <input type="file" webkitdirectory>
export function filesSource(files) {
  const inside = file => file.webkitRelativePath.split("/").slice(1).join("/");
  const byPath = new Map(Array.from(files, file => [inside(file), file]));
  const read = async path => {
    if (!byPath.has(path)) throw new Error(`${path}: missing`);
    return new Uint8Array(await byPath.get(path).arrayBuffer());
  };
  return {name: files[0].webkitRelativePath.split("/")[0], read};
}

// Typed arrays of one type as one
export function concatenate(parts) {
  const whole = new parts[0].constructor(parts.reduce((sum, each) => sum + each.length, 0));
  parts.reduce((at, each) => (whole.set(each, at), at + each.length), 0);
  return whole;
}
