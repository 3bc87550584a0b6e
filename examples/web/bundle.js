// A bundle: its manifest, whose numbers have limits, and its files, whose sizes and hashes are checked.
const SCHEMA_VERSION = 3;
// The least and the most of some constants. Beyond them a loop may never end, or memory be short.
const LIMITS = {
  acoustic_levels: [2, 65536], chunk_frames: [1, 4096], chunk_rows: [1, 4096], dim: [1, 65536],
  euler_steps: [1, 256], first_codes: [1, 2 ** 20], flush_tokens: [0, 256], hop_length: [32, 1024],
  left_pad_tokens: [0, 256], n_codebooks: [2, 256], n_mels: [1, 1024], other_codes: [1, 65536],
  sample_rate: [1000, 384000], samples_per_token: [1024, 8192], semantic_codes: [1, 2 ** 20],
  vocab_size: [1, 2 ** 20], window_chunks: [1, 1024], window_size: [32, 1024],
};

export class Bundle {
  // source: {name, read(path, entry) -> Promise<Uint8Array>}; entry: size and sha256 of a file
  static async open(source) {
    let manifest;
    try {
      manifest = JSON.parse(new TextDecoder().decode(await source.read("manifest.json")));
    } catch (error) {
      throw new Error(`no manifest.json of a bundle (${error.message})`);
    }
    const {schema_version: version, job, files} = manifest ?? {};
    if (version !== SCHEMA_VERSION || !job?.components || !job.constants || !files) {
      throw new Error(`not a bundle of version ${SCHEMA_VERSION}; export it again`);
    }
    if (job.target !== "onnx") throw new Error(`made for ${job.target}; export it with --target onnx`);
    const {family, constants} = job;
    const bundle = Object.assign(new Bundle(), {source, manifest, family, constants});
    for (const [name, limits] of Object.entries(LIMITS)) {
      bundle.number(name, constants[name] ?? limits[0], ...limits);
    }
    return bundle;
  }

  component(name) {
    const found = this.manifest.job.components.find(each => each.name === name);
    if (!found) throw new Error(`manifest.json: no component ${name}; export the bundle again`);
    return found;
  }

  // A number of the manifest, within its limits
  number(what, value, low, high) {
    if (Number.isInteger(value) && value >= low && value <= high) return value;
    throw new Error(`manifest.json: ${what} is ${JSON.stringify(value)}, expected ${low} to ${high}`);
  }

  async read(path) {
    const entry = this.manifest.files[path], isInside = !/^\/|[\\:]|(^|\/)\.{0,2}(\/|$)/.test(path);
    if (!entry || !isInside) throw new Error(`manifest.json: no file ${path}; export the bundle again`);
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
    let length = 0;
    const transform = (part, stream) => {
      progress(path, (length += part.length), entry?.size);
      stream.enqueue(part);
    };
    const body = response.body.pipeThrough(new TransformStream({transform}));
    return new Uint8Array(await new Response(body).arrayBuffer());
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
