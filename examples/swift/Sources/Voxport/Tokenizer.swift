import Foundation

typealias Bytes = [UInt8]

/// A regular expression. `\s` of the published tokenizers has other members than in NSRegularExpression.
func pattern(_ source: String) throws -> NSRegularExpression {
    let unicode = source.replacingOccurrences(of: #"\s"#, with: #"\p{White_Space}"#)
    return try NSRegularExpression(
        pattern: unicode.replacingOccurrences(of: #"\S"#, with: #"\P{White_Space}"#))
}

func pieces(_ text: String, _ pattern: NSRegularExpression) -> [String] {
    let whole = NSString(string: text), all = NSRange(location: 0, length: whole.length)
    return pattern.matches(in: text, range: all).map { whole.substring(with: $0.range) }
}

/// Joins the two neighbours with the lowest rank, the leftmost first, until no pair has one
private func merge(_ piece: String, _ rank: (Bytes, Bytes) -> Int?) -> [Bytes] {
    var symbols = piece.utf8.map { [$0] }
    while true {
        var best = (rank: Int.max, at: 0)
        for at in symbols.indices.dropLast() {
            if let found = rank(symbols[at], symbols[at + 1]), found < best.rank { best = (found, at) }
        }
        if best.rank == .max { return symbols }
        symbols[best.at] += symbols.remove(at: best.at + 1)
    }
}

/// tekken.json of Mistral
struct Tekken {
    private struct File: Decodable {
        struct Config: Decodable { let pattern: String, defaultNumSpecialTokens, defaultVocabSize: Int }
        struct Token: Decodable { let rank: Int, tokenBytes: Data }  // base64 in the file
        struct SpecialToken: Decodable { let rank: Int, tokenStr: String }
        let config: Config, vocab: [Token], specialTokens: [SpecialToken]
    }
    let special: [String: Int]
    private let expression: NSRegularExpression
    private let tokens: [Int: Bytes], ids: [Bytes: Int]  // ids are in the order of ranks
    init(_ bundle: ModelBundle) throws {
        let file = try decode(File.self, try bundle.read("tekken.json")), config = file.config
        expression = try pattern(config.pattern)
        let all = file.vocab.map { ($0.rank + config.defaultNumSpecialTokens, Bytes($0.tokenBytes)) }
        tokens = Dictionary(all.filter { $0.0 < config.defaultVocabSize }) { $1 }
        ids = Dictionary(tokens.map { ($1, $0) }) { $1 }
        special = Dictionary(file.specialTokens.map { ($0.tokenStr, $0.rank) }) { $1 }
    }
    func encode(_ text: String) -> [Int] {
        pieces(text, expression).flatMap { merge($0) { ids[$0 + $1] } }.compactMap { ids[$0] }
    }
    func bytes(_ id: Int) -> Bytes { tokens[id] ?? [] }
}

private let qwenPattern =
    #"'(?:[sSſ]|[tT]|[rR][eE]|[vV][eE]|[mM]|[lL][lL]|[dD])|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"#
    + #"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"#

/// vocab.json and merges.txt of Qwen, whose bytes are letters: those that print stand for themselves
struct QwenTokenizer {
    private let expression: NSRegularExpression
    private let ids: [Bytes: Int], ranks: [[Bytes]: Int]  // ranks are of two symbols
    init(_ bundle: ModelBundle) throws {
        var bytes = [UnicodeScalar: UInt8](), next = UInt32(256)
        for byte in UInt8.min...UInt8.max {
            let prints = (33...126).contains(byte) || (byte > 160 && byte != 173)
            bytes[prints ? UnicodeScalar(byte) : UnicodeScalar(next)!] = byte
            next += prints ? 0 : 1
        }
        let symbol = { (letters: Substring) in letters.unicodeScalars.compactMap { bytes[$0] } }
        let vocabulary = try decode([String: Int].self, try bundle.read("vocab.json"))
        let merges = String(decoding: try bundle.read("merges.txt"), as: UTF8.self)
        let lines = merges.split(whereSeparator: \.isNewline).filter { !$0.hasPrefix("#version") }
        expression = try pattern(qwenPattern)
        ids = Dictionary(vocabulary.map { (symbol($0[...]), $1) }) { $1 }
        ranks = Dictionary(lines.enumerated().map { ($1.split(separator: " ").map(symbol), $0) }) { $1 }
    }
    func encode(_ text: String) -> [Int] {
        pieces(text.precomposedStringWithCanonicalMapping, expression)
            .flatMap { merge($0) { ranks[[$0, $1]] } }.compactMap { ids[$0] }
    }
}

/// UTF-8 that arrives in parts. A character may span them.
struct TextDecoder {
    private var waiting = Bytes()
    /// What is left, with U+FFFD for the incomplete character
    var rest: String { String(decoding: waiting, as: UTF8.self) }
    /// The characters that these bytes complete
    mutating func append(_ bytes: Bytes) -> String {
        waiting += bytes
        let lead = waiting.suffix(3).lastIndex { $0 >= 0xC0 }  // first byte, if a character has several
        let size = lead.map { waiting[$0] >= 0xF0 ? 4 : waiting[$0] >= 0xE0 ? 3 : 2 } ?? 0
        let end = lead.map { $0 + size > waiting.count ? $0 : waiting.count } ?? waiting.count
        defer { waiting.removeFirst(end) }
        return String(decoding: waiting[..<end], as: UTF8.self)
    }
}
