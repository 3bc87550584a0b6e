import Foundation

/// How to speak. nil stands for the bundle's default. All but voice and seed are for Qwen3-TTS.
public struct SpeakOptions {
    public var voice, instruct: String?, language = "auto", seed: UInt64 = 0
    public init() {}
}

/// A model that speaks. Each family has its own `start`, which reads a sentence, `frame`, which returns the
/// codes of the next frame, or nil at the end of the speech, and `step`, which reads the codes of a frame.
public class Speaker: Model {
    public let voices: [String]
    public let sampleRate: Int  // Hz
    let engine: any Engine
    private let width, capacity: Int  // values in a row, and rows in the caches
    private var position = 0, frames = 0  // rows read, and frames decoded to samples
    private var prompt = [Float]()  // rows [n * width]
    private(set) var outputs = [String: [Float]]()  // for the last row
    var ids = [Int]()  // prompt or text
    var noise = [Float]()  // what the last frame drew
    var generator = Generator(seed: 0)
    init(_ engine: any Engine, voices: some Sequence<String>, width: Int, rate: Int) throws {
        (self.engine, self.voices, self.width, sampleRate) = (engine, voices.sorted(), width, rate)
        capacity = try engine.bundle.component("prefill").signature.states.first?.shape[2] ?? 0
    }
    func start(_ text: String, _ options: SpeakOptions) async throws { fatalError("a family has it") }
    func frame() async throws -> [Int]? { fatalError("a family has it") }
    func step(_ codes: [Int]) async throws { fatalError("a family has it") }
    func usualFrames(_ text: String) -> Double { fatalError("a family has it") }
    var leastCharacters: Int { 60 }  // shorter sentences are spoken with the next one
    /// Reads the rows [n * width] of a new utterance
    final func prefill(_ rows: [Float], _ seed: UInt64) async throws {
        engine.reset()
        (position, frames, prompt, generator) = (0, 0, rows, Generator(seed: seed))
        try await read("prefill", rows)
    }
    final func read(_ component: String, _ rows: [Float]) async throws {
        let count = rows.count / width
        guard position + count <= capacity else { throw VoxportError("the text is too long for the caches") }
        outputs = try await engine.run(component, ["embeddings": rows, "position": [Float(position)]])
        outputs["hidden"] = outputs["hidden"]?.suffix(width)
        position += count
    }
    /// The samples of the next frames. How frames are divided into calls changes roundings only.
    private func decode(_ codes: [[Int]]) async throws -> [Float] {
        let inputs = ["codes": codes.flatMap { $0.floats }, "position": [Float(frames)]]
        frames += codes.count
        return try await engine.run("codec_step", inputs)["audio"]!
    }
    /// `play` takes samples [n] in [-1, 1], those of `chunk` frames at a time.
    public final func speak(
        _ text: String, _ options: SpeakOptions, chunk: Int = 5, play: ([Float]) throws -> Void
    ) async throws {
        for (index, sentence) in sentences(text, leastCharacters).enumerated() {
            if index > 0 { try play(silence(sampleRate / 5)) }  // a pause of 0.2 s
            try await start(sentence, options)
            let usual = usualFrames(sentence), spare = 10 + 4 * Double(pieces(sentence, words).count)
            // a model may miss the end of a text
            let limit = Int((3 * usual).rounded(.up) + min(40, spare + usual.rounded(.toNearestOrEven)))
            var waiting = [[Int]]()
            while waiting.count + frames < limit, let codes = try await frame() {
                waiting.append(codes)
                if waiting.count == chunk {
                    try play(try await decode(waiting))
                    waiting = []
                }
                if position >= capacity { break }
                try await step(codes)
            }
            if !waiting.isEmpty { try play(try await decode(waiting)) }
        }
    }
    public final func vectors() async throws -> [String: [Float]] {
        let request: Request = try engine.bundle.request()
        var options = SpeakOptions()
        (options.voice, options.language) = (request.voice ?? request.speaker, request.language ?? "auto")
        (options.instruct, options.seed) = (request.instruct, request.seed ?? 0)
        try await start(request.text, options)
        var values = ["ids": ids.floats, "prefill": prompt]
        for given in request.codes {
            values.merge(outputs) { $0 + $1 }
            values["codes", default: []] += (try await frame() ?? []).floats
            values["noise", default: []] += noise
            values["samples", default: []] += try await decode([given])
            try await step(given)
        }
        return values
    }
    private struct Request: Decodable {
        let text: String, voice, speaker, language, instruct: String?, seed: UInt64?, codes: [[Int]]
    }
}

/// The first index of the largest value
func argmax<Value: Comparable>(_ values: [Value], where isAllowed: (Int) -> Bool = { _ in true }) -> Int {
    values.indices.filter(isAllowed).max { values[$0] < values[$1] } ?? 0
}

private let speakable = try! pattern(#"[\p{L}\p{N}]"#)
private let words = try! pattern(#"[\p{N}\p{S}\p{Lu}]"#)  // characters that may be spoken as words
private let gaps = try! pattern(#"\S+|\s+"#), unmarked = try! pattern(#"[\p{L}\p{N}]\z"#)
/// Up to a mark before a space, a mark of Chinese or Japanese, or the end
private let sentence = try! pattern(#"(?=\S).*?([.!?…](?=\s)|[。！？]|(?=\s*\z))"#)

/// Parts of a text that are spoken one after another. Sentences below `least` characters are joined, at the
/// end of a paragraph those below 20.
func sentences(_ text: String, _ least: Int) -> [String] {
    var parts = [String]()
    let plain = pieces(text, gaps).map { each in
        each.contains { !$0.isWhitespace } ? each : each.filter(\.isNewline).count > 1 ? "\n" : " "
    }
    for paragraph in plain.joined().split(separator: "\n") {
        for (index, typed) in pieces(String(paragraph), sentence).enumerated() {
            let each = pieces(typed, unmarked).isEmpty ? typed : typed + "."
            let fewest = index == 0 ? min(least, 20) : least
            let joins = parts.last.map { $0.unicodeScalars.count < fewest } ?? false
            parts.append(joins ? parts.removeLast() + " " + each : each)
        }
    }
    return parts.filter { !pieces($0, speakable).isEmpty }
}
