// A bundle: its manifest, and its files, whose sizes and hashes are checked.

const SCHEMA_VERSION = 3;

export class BundleError extends Error {}

export class Bundle {
  // source: {name, read(path, size) -> Promise<Uint8Array>, path(path) -> string of a local file, or absent}
  static async open(source) {
    let manifest;
    try {
      manifest = JSON.parse(new TextDecoder().decode(await source.read("manifest.json")));
    } catch (error) {
      throw new BundleError(`${source.name}: no manifest.json that can be read (${error.message}); choose the folder of a bundle`);
    }
    const {schema_version: version, job, files} = manifest;
    if (version !== SCHEMA_VERSION || !job || !files) {
      throw new BundleError(`${source.name}: schema version ${version}, expected ${SCHEMA_VERSION}; export it again`);
    }
    if (job.target !== "onnx") {
      throw new BundleError(`${source.name}: made for ${job.target}; export it with --target onnx`);
    }
    return new Bundle(source, manifest);
  }

  constructor(source, manifest) {
    Object.assign(this, {source, manifest, family: manifest.job.family, constants: manifest.job.constants});
  }

  component(name) {
    const found = this.manifest.job.components.find(each => each.name === name);
    if (!found) throw new BundleError(`${this.source.name}: no component ${name}; export it again`);
    return found;
  }

  async read(path) {
    const entry = this.manifest.files[path];
    if (!entry) throw new BundleError(`${this.source.name}: no file ${path} in its manifest`);
    const bytes = await this.source.read(path, entry);
    if (bytes.length !== entry.size) {
      throw new BundleError(`${path}: ${bytes.length} bytes, expected ${entry.size}; copy the bundle again`);
    }
    if (globalThis.crypto?.subtle) {
      const hash = new Uint8Array(await crypto.subtle.digest("SHA-256", bytes));
      if (Array.from(hash, byte => byte.toString(16).padStart(2, "0")).join("") !== entry.sha256) {
        throw new BundleError(`${path}: damaged, its hash is not that of the manifest; copy the bundle again`);
      }
    }
    return bytes;
  }

  async text(path) {
    return new TextDecoder().decode(await this.read(path));
  }

  // vectors.json, which is not among `files`
  async vectors() {
    return JSON.parse(new TextDecoder().decode(await this.source.read("vectors.json")));
  }
}

// Files under a URL. Those of the manifest are kept by their hash, so that a page works without a network.
export function urlSource(base, progress = () => {}) {
  const root = new URL(base.endsWith("/") ? base : `${base}/`, location.href);
  const read = async (path, entry) => {
    const url = new URL(path, root);
    if (entry) url.search = `sha256=${entry.sha256}`;
    const cache = await globalThis.caches?.open("voxport");
    let response;
    try {
      response = (entry && (await cache?.match(url))) ?? (await fetch(url));
      if (response.ok && !response.headers.has("x-kept")) await cache?.put(url, response.clone());
    } catch (error) {
      response = await cache?.match(url); // the manifest of a page without a network
      if (!response) throw error;
    }
    if (!response.ok) throw new BundleError(`${url.pathname}: ${response.status} ${response.statusText}`);
    const bytes = new Uint8Array(entry?.size ?? 0), parts = [];
    let length = 0;
    for (const reader = response.body.getReader(); ; ) {
      const {done, value} = await reader.read();
      if (done) break;
      if (length + value.length <= bytes.length) bytes.set(value, length);
      else parts.push(value);
      length += value.length;
      if (entry) progress(path, length, entry.size);
    }
    return parts.length ? concatenate([bytes.subarray(0, length - parts.reduce((n, each) => n + each.length, 0)), ...parts]) : bytes.subarray(0, length);
  };
  return {name: root.href, read};
}

// Files of a folder that the user picked, by <input type="file" webkitdirectory>
export function filesSource(files) {
  const byPath = new Map(Array.from(files, file => [file.webkitRelativePath.split("/").slice(1).join("/"), file]));
  const read = async path => {
    if (!byPath.has(path)) throw new BundleError(`${path}: missing`);
    return new Uint8Array(await byPath.get(path).arrayBuffer());
  };
  return {name: files[0]?.webkitRelativePath.split("/")[0] ?? "nothing", read};
}

export function concatenate(parts) {
  const whole = new parts[0].constructor(parts.reduce((sum, each) => sum + each.length, 0));
  parts.reduce((at, each) => (whole.set(each, at), at + each.length), 0);
  return whole;
}
