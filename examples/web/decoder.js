// What all families have in common: a decoder that reads rows of numbers, and counts them.
export function argmax(values, isAllowed = () => true) {
  let best = -1;
  values.forEach((value, i) => (best = isAllowed(i) && (best < 0 || value > values[best]) ? i : best));
  return best;
}

// The one of `names` that is meant, in any case
export function named(kind, name, names) {
  const found = names.find(each => each.toLowerCase() === name?.toLowerCase());
  if (found === undefined) throw new Error(`${kind} ${name}: unknown, this bundle has ${names.join(", ")}`);
  return found;
}

// Subclasses have prepare().
export class Decoder {
  static async open(bundle, engine) {
    const decoder = Object.assign(new this(), {bundle, engine, constants: bundle.constants, position: 0});
    await decoder.prepare();
    const {cache, shape} = bundle.component("prefill").signature.states[0] ?? {};
    decoder.rows = cache?.window ? Infinity : bundle.number("rows", shape?.[2], 1, 2 ** 24);
    return decoder;
  }

  // The most of a dimension that one call of a component takes
  most(component, dim) {
    return this.bundle.number(dim, this.bundle.component(component).signature.dims[dim][1], 1, 2 ** 24);
  }

  // The rows of ids. table: the component that has them
  async embed(table, ids) {
    const {embeddings} = await this.engine.run(table, {ids: [ids, [1, ids.length]]});
    this.bundle.number("dim", this.constants.dim, embeddings.dims[2], embeddings.dims[2]);
    return embeddings.data.slice();
  }

  // The first `count` rows of a tensor
  rowsOf({data}, count) {
    const {dim} = this.constants;
    return Array.from({length: count}, (_, i) => data.slice(i * dim, (i + 1) * dim));
  }

  // Reads rows behind those before: `outputs` are those of the last one. others: inputs beside the rows
  async read(component, values, others = {}) {
    const rows = values.length / this.constants.dim;
    if (this.position + rows > this.rows) throw new Error("too long for the caches; shorten the text");
    const inputs = {embeddings: [values, [1, rows, this.constants.dim]], position: [[this.position], [1]]};
    this.outputs = await this.engine.run(component, {...inputs, ...others});
    this.position += rows;
  }

  // The token that the model chooses after the last row
  next() {
    return argmax(this.outputs.logits.data);
  }
}
