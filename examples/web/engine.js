// Sessions of ONNX Runtime, one per graph, and the states of one stream.

const ARRAYS = {float32: Float32Array, float16: Uint16Array, int64: BigInt64Array, int32: Int32Array};

export class Engine {
  // ort: the module onnxruntime-web or onnxruntime-node
  constructor(ort, bundle, options = {}) {
    Object.assign(this, {ort, bundle, options, sessions: new Map(), states: new Map()});
  }

  tensor(type, values, dims) {
    const data = type === "int64" ? BigInt64Array.from(values, BigInt) : ARRAYS[type].from(values);
    return new this.ort.Tensor(type, data, dims);
  }

  // inputs: name -> [values, dims] -> name -> tensor. States are kept from call to call.
  async run(component, inputs) {
    const {file, graph, signature} = this.bundle.component(component);
    const session = await this.session(file);
    const feeds = {};
    for (const {name, dtype} of signature.inputs) feeds[name] = this.tensor(dtype, ...inputs[name]);
    const key = state => `${graph}.${state.name}`;
    for (const state of signature.states) {
      feeds[`past.${state.name}`] = this.states.get(key(state)) ?? this.empty(state);
    }
    const results = await session.run(feeds);
    for (const state of signature.states) {
      const present = results[`present.${state.name}`];
      if (state.cache?.window) moveIntoHistory(present, state.cache, feeds, signature);
      this.states.set(key(state), present);
    }
    return results;
  }

  // A cache without a window starts without rows, and each call returns it with its own.
  empty({dtype, shape, cache}) {
    const dims = cache && !cache.window ? [shape[0], shape[1], 0, shape[3]] : shape;
    return new this.ort.Tensor(dtype, new ARRAYS[dtype](dims.reduce((a, b) => a * b)), dims);
  }

  reset() {
    this.states.clear();
  }

  async session(file) {
    if (!this.sessions.has(file)) this.sessions.set(file, this.open(file));
    return this.sessions.get(file);
  }

  async open(file) {
    const {bundle, ort, options} = this, local = bundle.source.path?.(file);
    if (local) return ort.InferenceSession.create(local, options);
    const data = `${file}.data`;
    const externalData = data in bundle.manifest.files ? [{path: data, data: await bundle.read(data)}] : [];
    return ort.InferenceSession.create(await bundle.read(file), {...options, externalData});
  }

  // Opens all graphs, the small ones first
  async warmUp() {
    const {components, files} = {...this.bundle.manifest.job, files: this.bundle.manifest.files};
    const size = file => files[file].size + (files[`${file}.data`]?.size ?? 0);
    const graphs = [...new Set(components.map(each => each.file))].sort((a, b) => size(a) - size(b));
    for (const file of graphs) await this.session(file);
  }
}

// The rows of a call, which the graph wrote behind the history, become part of it
function moveIntoHistory(tensor, {window, rows_per_position: perPosition, max_call_rows: most}, feeds, signature) {
  const [, heads, rows, size] = tensor.dims, {data} = tensor;
  const first = Number(feeds.position.data[0]) * perPosition;
  const count = feeds[signature.inputs[0].name].dims[1] * perPosition;
  const history = most === 1 ? Math.min(first, window - 1) : window - 1;
  for (let i = 0; i < count; i++) {
    const from = history + i, to = (first + i) % (window - 1);
    for (let head = 0; from >= window - 1 && head < heads; head++) {
      data.copyWithin((head * rows + to) * size, (head * rows + from) * size, (head * rows + from + 1) * size);
    }
  }
}
