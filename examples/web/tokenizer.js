// Byte-level BPE: text to ids with the files of a bundle.
// A regular expression of the published tokenizers: `\s` has other members in JavaScript
const pattern = source =>
  new RegExp(source.replaceAll("\\s", "\\p{White_Space}").replaceAll("\\S", "\\P{White_Space}"), "gu");

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

export class Tekken {
  constructor({config, vocab, special_tokens: special}) {
    this.first = config.default_num_special_tokens;
    this.pattern = pattern(config.pattern);
    const used = vocab.filter(each => each.rank < config.default_vocab_size - this.first);
    this.pieces = new Map(used.map(each => [each.rank, atob(each.token_bytes)]));
    this.ranks = new Map(Array.from(this.pieces, ([rank, piece]) => [piece, rank]));
    this.special = new Map(special.map(each => [each.token_str, each.rank]));
  }

  encode(text) {
    return [...text.matchAll(this.pattern)].flatMap(([piece]) => {
      const symbols = Array.from(new TextEncoder().encode(piece), byte => String.fromCharCode(byte));
      return merge(symbols, (a, b) => this.ranks.get(a + b)).map(each => this.ranks.get(each) + this.first);
    });
  }

  bytes(id) {
    return Uint8Array.from(this.pieces.get(id - this.first) ?? "", each => each.charCodeAt(0));
  }
}

const QWEN =
  "'(?:[sSſ]|[tT]|[rR][eE]|[vV][eE]|[mM]|[lL][lL]|[dD])|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}" +
  "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";

// vocab.json and merges.txt of Qwen, whose bytes are letters: those that print stand for themselves
export class QwenTokenizer {
  constructor(vocabulary, merges) {
    const prints = byte => (byte > 32 && byte < 127) || (byte > 160 && byte !== 173);
    let next = 256;
    this.letters = Array.from({length: 256}, (_, byte) => String.fromCharCode(prints(byte) ? byte : next++));
    this.ids = new Map(Object.entries(vocabulary));
    const pairs = merges.split("\n").filter(line => line && !line.startsWith("#version"));
    this.ranks = new Map(pairs.map((pair, index) => [pair.trimEnd(), index]));
    this.pattern = pattern(QWEN);
  }

  encode(text) {
    return [...text.normalize("NFC").matchAll(this.pattern)].flatMap(([piece]) => {
      const symbols = Array.from(new TextEncoder().encode(piece), byte => this.letters[byte]);
      return merge(symbols, (a, b) => this.ranks.get(`${a} ${b}`)).map(each => this.ids.get(each));
    });
  }
}
