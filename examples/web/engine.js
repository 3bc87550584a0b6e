// Sessions of ONNX Runtime, one per graph, and the states of one stream.
const ARRAYS = {float32: Float32Array, float16: Uint16Array, int64: BigInt64Array, int32: Int32Array};

export class Engine {
  constructor(ort, bundle, options = {}) {
    Object.assign(this, {ort, bundle, options, sessions: new Map(), states: new Map()});
  }

  // inputs: name -> [values, dims] -> name -> tensor. States are kept from call to call, from position 0 on.
  async run(component, inputs) {
    try {
      const {file, graph, signature} = this.bundle.component(component);
      const session = await this.session(file), feeds = {}, isFirst = inputs.position?.[0][0] === 0;
      for (const {name, dtype} of signature.inputs) {
        const [values, dims] = inputs[name], convert = dtype === "int64" ? BigInt : Number;
        feeds[name] = new this.ort.Tensor(dtype, ARRAYS[dtype].from(values, convert), dims);
      }
      const key = state => `${graph}.${state.name}`;
      for (const state of signature.states) {
        feeds[`past.${state.name}`] = isFirst ? this.empty(state) : this.states.get(key(state));
      }
      const results = await session.run(feeds), count = inputs[signature.inputs[0].name][1][1];
      for (const state of signature.states) {
        const present = results[`present.${state.name}`];
        if (state.cache?.window) this.moveIntoHistory(present, state.cache, inputs.position[0][0], count);
        this.states.set(key(state), present);
      }
      return results;
    } catch (error) {
      throw new Error(`${component}: ${error.message.replace(/\s+/g, " ")}`);
    }
  }

  // A cache without a window starts without rows, and each call returns it with its own.
  empty({name, dtype, shape, cache}) {
    const dims = cache && !cache.window ? [shape[0], shape[1], 0, shape[3]] : shape;
    const count = this.bundle.number(`size of ${name}`, dims.reduce((a, b) => a * b), 0, 2 ** 28);
    return new this.ort.Tensor(dtype, new ARRAYS[dtype](count), dims);
  }

  async session(file) {
    const {bundle, ort, options, sessions} = this, data = `${file}.data`;
    if (!sessions.has(file)) {
      const externalData = data in bundle.manifest.files ? [{path: data, data: await bundle.read(data)}] : [];
      const graph = await bundle.read(file);
      sessions.set(file, await ort.InferenceSession.create(graph, {...options, externalData}));
    }
    return sessions.get(file);
  }

  // The graph wrote the rows of a call behind the history. They become part of it.
  moveIntoHistory({dims: [, heads, rows, size], data}, cache, position, tokens) {
    const kept = this.bundle.number("window", cache.window, 2, rows) - 1;
    const perPosition = this.bundle.number("rows_per_position", cache.rows_per_position, 1, rows);
    const first = position * perPosition, count = tokens * perPosition;
    const history = cache.max_call_rows === 1 ? Math.min(first, kept) : kept;
    this.bundle.number("number of rows of a call", history + count, 1, rows);
    for (let i = Math.max(0, kept - history); i < count; i++) {
      for (let head = 0; head < heads; head++) {
        const from = (head * rows + history + i) * size, to = (head * rows + ((first + i) % kept)) * size;
        data.copyWithin(to, from, from + size);
      }
    }
  }
}
