// Sessions of ONNX Runtime, one per graph, and the states of one stream.

const ARRAYS = {float32: Float32Array, float16: Uint16Array, int64: BigInt64Array, int32: Int32Array};

export class Engine {
  constructor(ort, bundle, options = {}) {
    Object.assign(this, {ort, bundle, options, sessions: new Map(), states: new Map()});
  }

  // inputs: name -> [values, dims] -> name -> tensor. States are kept from call to call.
  async run(component, inputs) {
    const {file, graph, signature} = this.bundle.component(component);
    const session = await this.session(file);
    const feeds = {};
    for (const {name, dtype} of signature.inputs) {
      const [values, dims] = inputs[name], convert = dtype === "int64" ? BigInt : Number;
      feeds[name] = new this.ort.Tensor(dtype, ARRAYS[dtype].from(values, convert), dims);
    }
    const key = state => `${graph}.${state.name}`;
    for (const state of signature.states) {
      feeds[`past.${state.name}`] = this.states.get(key(state)) ?? this.empty(state);
    }
    const results = await session.run(feeds), count = inputs[signature.inputs[0].name][1][1];
    for (const state of signature.states) {
      const present = results[`present.${state.name}`];
      if (state.cache?.window) moveIntoHistory(present, state.cache, inputs.position[0][0], count);
      this.states.set(key(state), present);
    }
    return results;
  }

  // A cache without a window starts without rows, and each call returns it with its own.
  empty({dtype, shape, cache}) {
    const dims = cache && !cache.window ? [shape[0], shape[1], 0, shape[3]] : shape;
    return new this.ort.Tensor(dtype, new ARRAYS[dtype](dims.reduce((a, b) => a * b)), dims);
  }

  async session(file) {
    if (!this.sessions.has(file)) this.sessions.set(file, await this.open(file));
    return this.sessions.get(file);
  }

  async open(file) {
    const {bundle, ort, options} = this, data = `${file}.data`;
    const externalData = data in bundle.manifest.files ? [{path: data, data: await bundle.read(data)}] : [];
    return ort.InferenceSession.create(await bundle.read(file), {...options, externalData});
  }
}

// The graph wrote the rows of a call behind the history. They become part of it.
function moveIntoHistory({dims: [, heads, rows, size], data}, cache, position, count) {
  const kept = cache.window - 1, first = position * cache.rows_per_position;
  const history = cache.max_call_rows === 1 ? Math.min(first, kept) : kept;
  for (let i = Math.max(0, kept - history); i < count * cache.rows_per_position; i++) {
    for (let head = 0; head < heads; head++) {
      const from = (head * rows + history + i) * size, to = (head * rows + ((first + i) % kept)) * size;
      data.copyWithin(to, from, from + size);
    }
  }
}
