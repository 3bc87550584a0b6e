// Byte-level BPE: text to ids with the files of a bundle, and ids to bytes.
// Joins the two neighbours with the lowest rank, the leftmost first, until no pair has one
function merge(symbols, rank) {
  for (;;) {
    let best = Infinity, at = -1;
    for (let i = 0; i + 1 < symbols.length; i++) {
      const found = rank(symbols[i], symbols[i + 1]) ?? Infinity;
      if (found < best) [best, at] = [found, i];
    }
    if (at < 0) return symbols;
    symbols.splice(at, 2, symbols[at] + symbols[at + 1]);
  }
}

class Tokenizer {
  // letters: of the 256 bytes. ids: of symbols, which have a letter for each byte. rank: of a pair of symbols
  constructor({letters, ids, pattern, rank, normalized = text => text}) {
    Object.assign(this, {letters, ids, rank, normalized});
    this.symbols = new Map(Array.from(ids, ([symbol, id]) => [id, symbol]));
    const portable = pattern.replaceAll("\\s", "\\p{White_Space}").replaceAll("\\S", "\\P{White_Space}");
    this.pattern = new RegExp(portable, "gu"); // `\s` has other members in JavaScript
  }

  encode(text) {
    return [...this.normalized(text).matchAll(this.pattern)].flatMap(([piece]) => {
      const symbols = Array.from(new TextEncoder().encode(piece), byte => this.letters[byte]);
      return merge(symbols, this.rank).map(symbol => this.ids.get(symbol));
    });
  }

  // None of an id without a symbol
  bytes(id) {
    return Uint8Array.from(this.symbols.get(id) ?? "", letter => this.letters.indexOf(letter));
  }
}

export async function openTekken(bundle) {
  const {config, vocab, special_tokens: special} = JSON.parse(await bundle.text("tekken.json"));
  const {default_num_special_tokens: first, default_vocab_size: size, pattern} = config;
  const used = vocab.filter(each => each.rank < size - first);
  const ids = new Map(used.map(each => [atob(each.token_bytes), first + each.rank]));
  const letters = Array.from({length: 256}, (_, byte) => String.fromCharCode(byte));
  const tokenizer = new Tokenizer({letters, ids, pattern, rank: (a, b) => ids.get(a + b)});
  return Object.assign(tokenizer, {special: new Map(special.map(each => [each.token_str, each.rank]))});
}

const QWEN =
  "'(?:[sSſ]|[tT]|[rR][eE]|[vV][eE]|[mM]|[lL][lL]|[dD])|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}" +
  "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";

// vocab.json and merges.txt of Qwen, or tokenizer.json. Bytes that print stand for themselves.
export async function openQwen(bundle) {
  let vocab, merges;
  if ("vocab.json" in bundle.manifest.files) {
    vocab = JSON.parse(await bundle.text("vocab.json"));
    merges = (await bundle.text("merges.txt")).split("\n").filter(line => !line.startsWith("#version"));
  } else {
    ({vocab, merges} = JSON.parse(await bundle.text("tokenizer.json")).model);
  }
  const prints = byte => (byte > 32 && byte < 127) || (byte > 160 && byte !== 173);
  let next = 256;
  const letters = Array.from({length: 256}, (_, byte) => String.fromCharCode(prints(byte) ? byte : next++));
  const ranks = new Map(merges.map((pair, i) => [Array.isArray(pair) ? pair.join(" ") : pair.trimEnd(), i]));
  const rank = (a, b) => ranks.get(`${a} ${b}`);
  const ids = new Map(Object.entries(vocab)), normalized = text => text.normalize("NFC");
  return new Tokenizer({letters, ids, pattern: QWEN, rank, normalized});
}
